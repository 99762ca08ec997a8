"""Framing and encoding: bytes cut anywhere, line ends of every kind, headers that must not pass."""

from __future__ import annotations

import gzip
import json

import pytest
from tests.doubles.backend import Reply, ScriptedBackend, stream
from tests.doubles.events import (
    assert_ends_with_error,
    assert_stream_invariant,
    read_events,
    story_of,
)
from tests.doubles.frames import DONE, TC, Canned, D, U, error_frame
from tests.doubles.proxy import Ferrule, assert_error
from tests.e2e.conftest import Received

WIDE = "北🌍é"
ARGUMENTS = json.dumps({"a": WIDE}, ensure_ascii=False)
WIDE_STORY = [("thinking", WIDE), ("text", WIDE), ("tool_use", "F", {"a": WIDE})]
WIDE_FRAMES = b"".join(
    [
        D({"reasoning": WIDE}),
        D({"content": WIDE}),
        TC(0, "c1", "F", ARGUMENTS),
        D({}, "tool_calls"),
        U(7, 3),
        DONE,
    ]
)


def test_b01_one_byte_at_a_time(received: Received) -> None:
    assert story_of(received(*(bytes((byte,)) for byte in WIDE_FRAMES))) == WIDE_STORY


@pytest.mark.parametrize("offset", range(1, 8))
def test_b01_cut_within_characters(received: Received, offset: int) -> None:
    at = WIDE_FRAMES.index(WIDE.encode()) + offset
    assert story_of(received(WIDE_FRAMES[:at], WIDE_FRAMES[at:])) == WIDE_STORY


@pytest.mark.parametrize(
    "halves", [["\\ud83d\\ude00"], ["\\ud83d", "\\ude00"]], ids=["whole", "halves"]
)
def test_b03_escaped_surrogates(received: Received, halves: list[str]) -> None:
    frames = [D({"content": "@"}).replace(b'"@"', f'"{half}"'.encode()) for half in halves]
    (block,) = received(*frames, D({}, "stop"), DONE)["content"]
    assert block["text"].encode("utf-16", "surrogatepass").decode("utf-16") == "😀"


@pytest.mark.parametrize(
    "mark", [b"\n\ndata: [DONE]", b'"usage"'], ids=["between-line-ends", "in-the-usage-frame"]
)
def test_b05_cut_where_frames_end(received: Received, mark: bytes) -> None:
    whole = D({"content": "x"}) + D({}, "stop") + U(7, 1) + DONE
    at = whole.index(mark) + 1
    message = received(whole[:at], whole[at:])
    assert story_of(message) == [("text", "x")]
    assert message["usage"]["input_tokens"] == 7


@pytest.mark.parametrize(
    "steps",
    [
        [WIDE_FRAMES.replace(b"\n", b"\r\n")],
        [WIDE_FRAMES.replace(b"\n", b"\r")],
        [part for piece in WIDE_FRAMES.split(b"\n") for part in (piece + b"\r", b"\n")],
        [WIDE_FRAMES.replace(b"\n", b"\r\n", 3).replace(b"}\n\n", b"}\r\r", 1)],
    ],
    ids=["crlf", "cr", "crlf-in-two-writes", "mixed"],
)
def test_b07_line_ends(received: Received, steps: list[bytes]) -> None:
    assert story_of(received(*[step for step in steps if step])) == WIDE_STORY


def test_b09_comments_are_no_data(
    proxy: Ferrule, backend: ScriptedBackend, received: Received
) -> None:
    frames = [b": PROCESSING\n\n", D({"content": "x"}), b": PROCESSING\n\n", D({}, "stop"), DONE]
    assert story_of(received(*frames)) == [("text", "x")]
    raw = proxy.stream("/v1/chat/completions").raw
    assert b"data: :" not in raw
    assert b'"x"' in raw


def test_b11_data_over_several_lines(received: Received) -> None:
    broken = D({"content": "x"}).replace(b',"choices"', b',\ndata: "choices"')
    assert story_of(received(broken, D({}, "stop"), DONE)) == [("text", "x")]


def test_b13_compressed_although_asked_not_to(proxy: Ferrule, backend: ScriptedBackend) -> None:
    packed = gzip.compress(b"".join(Canned("Hi").frames()))
    backend.play(
        stream(
            packed, headers=[("content-type", "text/event-stream"), ("content-encoding", "gzip")]
        )
    )
    answer = proxy.ask(stream=True)
    assert backend.last.header("accept-encoding") == "identity"
    if answer.status == 200:
        assert story_of(assert_stream_invariant(read_events(answer.content))) == [("text", "Hi")]
    else:
        assert_error(answer, answer.status, "api_error")


def test_b15_content_length_too_short(proxy: Ferrule, backend: ScriptedBackend) -> None:
    frames = [D({"content": "x"}), D({"content": "y"}), D({}, "stop"), DONE]
    backend.play(Reply(frames, framing="length", content_length=len(frames[0])))
    answer = proxy.stream()
    assert answer.headers["content-length"] is None
    assert story_of(assert_ends_with_error(answer.events, "api_error")) == [("text", "x")]


def test_b15_content_length_too_long(proxy: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(Reply(Canned("Hi").frames(), framing="length", content_length=1_000_000))
    answer = proxy.stream()
    assert answer.headers["content-length"] is None
    assert story_of(answer.message) == [("text", "Hi")]


@pytest.mark.parametrize("streams", [True, False], ids=["streamed", "whole"])
def test_b17_backend_headers_stay_behind(
    proxy: Ferrule, backend: ScriptedBackend, streams: bool
) -> None:
    leaks = [
        ("connection", "close, x-foo"),
        ("x-foo", "1"),
        ("keep-alive", "5"),
        ("server", "uvicorn"),
    ]
    body = b"".join(Canned("Hi").frames()) if streams else json.dumps(Canned("Hi").whole()).encode()
    kind = "text/event-stream" if streams else "application/json"
    backend.play(Reply([body], headers=[("content-type", kind), *leaks], framing="length"))
    answer = proxy.ask(stream=streams)
    assert answer.status == 200, answer.text
    assert answer.headers["x-foo"] is None
    assert answer.headers["keep-alive"] != "5"
    assert "uvicorn" not in (answer.headers["server"] or "")
    assert len(answer.headers.get_all("server", [])) <= 1


def test_b19_error_messages_are_one_line_of_json(proxy: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(stream(D({"content": "x"}), error_frame('bad "quote"\nline2'), DONE))
    events = proxy.stream().events
    assert_ends_with_error(events, "api_error")


def test_b23_only_the_top_level_model_is_renamed(proxy: Ferrule, backend: ScriptedBackend) -> None:
    text = 'say "model": "claude-haiku-4-5" twice'
    for path in ("/v1/messages", "/v1/chat/completions"):
        answer = proxy.ask(
            path, model="claude-haiku-4-5", messages=[{"role": "user", "content": text}]
        )
        assert answer.status == 200, answer.text
        assert answer.json()["model"] == "claude-haiku-4-5"
        assert backend.last.json["model"] == "m"
        assert text.replace('"', '\\"').encode() in backend.last.body
