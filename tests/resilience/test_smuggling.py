"""Framing that two readers could understand differently, from clients and from backends: refused or
made plain, never passed on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.doubles.backend import Canned, Reply, ScriptedBackend
from tests.doubles.client import post
from tests.doubles.events import read_events
from tests.doubles.frames import DONE, D
from tests.doubles.proxy import REQ, Ferrule, config_for

HEAD = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\n"
SMUGGLED = post("/v1/messages", REQ(messages=[{"role": "user", "content": "smuggled"}]))
BODY = b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"plain"}]}'
SIZE = b"%x" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
LENGTH = b"content-length: %d\r\n" % len(BODY)

REFUSED = {
    "cl-te": LENGTH + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "te-cl": b"transfer-encoding: chunked\r\n" + LENGTH + b"\r\n0\r\n\r\n",
    "two-cl": LENGTH + b"content-length: 0\r\n\r\n" + BODY,
    "cl-list": b"content-length: 0, %d\r\n\r\n" % len(BODY) + BODY,
    "cl-signed": b"content-length: +%d\r\n\r\n" % len(BODY) + BODY,
    "cl-hex": b"content-length: 0x4b\r\n\r\n" + BODY,
    "cl-underscore": b"content-length: 7_5\r\n\r\n" + BODY,
    "cl-huge": b"content-length: 99999999999999999999999\r\n\r\n" + BODY,
    "te-twice": b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
    "te-list": b"transfer-encoding: identity, chunked, identity\r\n\r\n0\r\n\r\n",
    "te-tab": b"transfer-encoding:\tchunked\t;\r\n\r\n0\r\n\r\n",
    "te-vertical-tab": b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "name-with-blank": b"content-length : %d\r\n\r\n" % len(BODY) + BODY,
    "name-with-nul": b"content\x00-length: 5\r\n" + LENGTH + b"\r\n" + BODY,
    "value-with-nul": b"x: a\x00b\r\n" + LENGTH + b"\r\n" + BODY,
    "value-with-cr": b"x: a\rcontent-length: 0\r\n" + LENGTH + b"\r\n" + BODY,
    "obs-fold": b"x: a\r\n b\r\n" + LENGTH + b"\r\n" + BODY,
    "obs-fold-te": b"transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "bare-lf-head": b"x: a\n" + LENGTH + b"\r\n" + BODY,
    "bare-lf-end": LENGTH + b"\n" + BODY,
    "bare-lf-size": CHUNKED + SIZE + b"\n" + BODY + b"\r\n0\r\n\r\n",
    "bare-lf-chunk": CHUNKED + SIZE + b"\r\n" + BODY + b"\n0\r\n\r\n",
    "bare-lf-extension": CHUNKED + SIZE + b";a\nb\r\n" + BODY + b"\r\n0\r\n\r\n",
    "size-empty": CHUNKED + b"\r\n" + BODY + b"\r\n0\r\n\r\n",
    "size-signed": CHUNKED + b"-1\r\n" + BODY + b"\r\n0\r\n\r\n",
    "size-0x": CHUNKED + b"0x" + SIZE + b"\r\n" + BODY + b"\r\n0\r\n\r\n",
    "size-words": CHUNKED + b"zz\r\n" + BODY + b"\r\n0\r\n\r\n",
    "size-too-large": CHUNKED + b"1" + b"0" * 16 + SIZE + b"\r\n" + BODY + b"\r\n0\r\n\r\n",
    "size-too-small": CHUNKED + b"5\r\n" + BODY + b"\r\n0\r\n\r\n",
    "trailer-cl": CHUNKED + b"0\r\ncontent-length : 5\r\n\r\n",
    "two-hosts": b"host: y\r\n" + LENGTH + b"\r\n" + BODY,
}
MADE_PLAIN = {
    "chunks": CHUNKED + SIZE + b"\r\n" + BODY + b"\r\n0\r\n\r\n",
    "extensions": CHUNKED + SIZE + b';a=b;c="d"\r\n' + BODY + b"\r\n0;e\r\n\r\n",
    "zeros": CHUNKED + b"000" + SIZE.upper() + b"\r\n" + BODY + b"\r\n0000\r\n\r\n",
    "trailer": CHUNKED + SIZE + b"\r\n" + BODY + b"\r\n0\r\nx-trailer: content-length: 5\r\n\r\n",
    "te-case": b"Transfer-Encoding: Chunked\r\n\r\n" + SIZE + b"\r\n" + BODY + b"\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("name", REFUSED)
def test_from_clients_what_is_ambiguous_is_refused(
    proxy: Ferrule, backend: ScriptedBackend, name: str
) -> None:
    answer = proxy.client.raw(HEAD + REFUSED[name] + SMUGGLED)
    assert b"smuggled" not in b"".join(seen.body for seen in backend.requests), (
        "a second request is read out of the first"
    )
    assert answer == b"" or answer.split(b" ")[1][:1] == b"4", answer[:200]
    assert answer.count(b"HTTP/1.1 ") <= 1, "and nothing is answered after a refusal"
    assert backend.requests == []


@pytest.mark.parametrize("name", MADE_PLAIN)
def test_from_clients_what_is_legal_is_made_plain(
    proxy: Ferrule, backend: ScriptedBackend, name: str
) -> None:
    answer = proxy.client.raw(HEAD + b"connection: close\r\n" + MADE_PLAIN[name])
    assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
    (seen,) = backend.requests
    assert seen.header("transfer-encoding") is None
    assert seen.header("content-length") == str(len(seen.body))
    assert seen.json["messages"] == [{"role": "user", "content": "plain"}]
    assert seen.header("x-trailer") is None


# From backends

OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
EVENTS = D({"content": "good"}) + D({}, "stop") + DONE
CHUNK = b"%x\r\n%b\r\n" % (len(EVENTS), EVENTS)
END = b"0\r\n\r\n"
POISON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 8\r\n\r\npoisoned"

BROKEN_HEADS = {
    "cl-te": OK + b"content-length: 5\r\n" + CHUNKED + CHUNK + END,
    "two-cl": OK + b"content-length: 5\r\ncontent-length: %d\r\n\r\n" % len(EVENTS) + EVENTS,
    "cl-signed": OK + b"content-length: +%d\r\n\r\n" % len(EVENTS) + EVENTS,
    "te-twice": OK + b"transfer-encoding: gzip\r\n" + CHUNKED + CHUNK + END,
    "te-unknown": OK + b"transfer-encoding: xchunked\r\n\r\n" + CHUNK + END,
    "te-http-1.0": OK.replace(b"1.1", b"1.0") + CHUNKED + CHUNK + END,
    "bare-lf": OK.replace(b"\r\n", b"\n") + CHUNKED + CHUNK + END,
    "obs-fold": OK + b"x: a\r\n b\r\n" + CHUNKED + CHUNK + END,
    "name-with-blank": OK + b"transfer-encoding : chunked\r\n\r\n" + CHUNK + END,
    "value-with-nul": OK + b"x: a\x00b\r\n" + CHUNKED + CHUNK + END,
    "status": OK.replace(b"200", b"2000") + CHUNKED + CHUNK + END,
    "upgrade": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n" + EVENTS,
    "head-without-end": OK + b"x: y\r\n" * 20_000,
    "size-signed": OK + CHUNKED + b"-" + CHUNK + END,
    "size-0x": OK + CHUNKED + b"0x" + CHUNK + END,
    "size-too-large": OK + CHUNKED + b"1" + b"0" * 17 + CHUNK + END,
    "bare-lf-size": OK + CHUNKED + CHUNK.replace(b"\r\n", b"\n", 1) + END,
}
BROKEN_ENDS = {
    "chunk-too-small": OK + CHUNKED + b"%x\r\n%b" % (20 + len(EVENTS) // 3, EVENTS) + b"\r\n" + END,
    "cut": OK + CHUNKED + CHUNK[: len(CHUNK) // 2],
    "short-length": OK + b"content-length: 60\r\n\r\n" + EVENTS,
}
LEGAL = {
    "extensions": OK
    + CHUNKED
    + CHUNK.replace(b"\r\n", b';a="b"\r\n', 1)
    + b"0;c\r\nx-trailer: y\r\n\r\n",
    "interim": b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK + CHUNKED + CHUNK + END,
    "equal-lengths": OK
    + b"content-length: %d\r\ncontent-length: %d\r\n\r\n" % (len(EVENTS), len(EVENTS))
    + EVENTS,
}


def raw(data: bytes) -> Reply:
    return Reply([data], sends_head=False, framing="close")


def kept(data: bytes) -> Reply:
    """As `raw`, but the backend keeps the connection."""
    return Reply([data], sends_head=False, framing="length")


@pytest.fixture(scope="module")
def single(new_proxy: Callable[..., Ferrule], shared_backend: ScriptedBackend) -> Ferrule:
    """Without retries, so that what a backend sends is what is judged; and short of patience."""
    pool = {
        "retries": 0,
        "timeouts": {"first_event_s": 2, "idle_s": 2, "total_s": 4},
        "health": {"interval_s": 60},
    }
    return new_proxy(config_for(shared_backend.url, pool=pool))


@pytest.mark.parametrize("name", BROKEN_HEADS)
def test_from_backends_what_is_ambiguous_is_an_error(
    single: Ferrule, backend: ScriptedBackend, name: str
) -> None:
    for streamed in (True, False):
        backend.play(raw(BROKEN_HEADS[name]), Canned("next"))
        answer = single.ask(stream=streamed)
        assert answer.status in (502, 504), (answer.status, answer.text)
        assert answer.json()["error"]["type"] in ("api_error", "timeout_error")
        assert "good" not in answer.text
        assert single.message()["content"][0]["text"] == "next", (
            "nothing of it is left on a connection"
        )


@pytest.mark.parametrize("name", BROKEN_ENDS)
def test_from_backends_a_broken_end_is_an_error_event(
    single: Ferrule, backend: ScriptedBackend, name: str
) -> None:
    backend.play(raw(BROKEN_ENDS[name]), Canned("next"))
    answer = single.ask(stream=True)
    if answer.status == 200:
        assert read_events(answer.content)[-1].name == "error"
    else:
        assert answer.status == 502
    assert single.message()["content"][0]["text"] == "next"


@pytest.mark.parametrize("name", LEGAL)
def test_from_backends_what_is_legal_is_made_plain(
    single: Ferrule, backend: ScriptedBackend, name: str
) -> None:
    backend.play(raw(LEGAL[name]))
    answer = single.stream()
    assert answer.message["content"] == [{"type": "text", "text": "good"}]
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.headers["content-length"] is None
    assert {"link", "x-trailer"}.isdisjoint(name.lower() for name in answer.headers)


SPLIT = {
    "after-chunks": OK + CHUNKED + CHUNK + END + POISON,
    "after-length": OK + b"content-length: %d\r\n\r\n" % len(EVENTS) + EVENTS + POISON,
    "after-done": OK + CHUNKED + CHUNK + b"%x\r\n%b\r\n" % (len(POISON), POISON) + END,
    "after-204": b"HTTP/1.1 204 No Content\r\n\r\n" + POISON,
    "after-refusal": b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}" + POISON,
}


@pytest.mark.parametrize("name", SPLIT)
def test_a_second_answer_in_the_first_is_never_told(
    single: Ferrule, backend: ScriptedBackend, name: str
) -> None:
    for streamed in (True, False):
        backend.play(kept(SPLIT[name]), Canned("next"))
        assert b"poisoned" not in single.ask(stream=streamed).content
        for _ in range(3):
            assert single.message()["content"][0]["text"] == "next"
