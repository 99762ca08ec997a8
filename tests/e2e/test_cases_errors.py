"""Errors: every failure in the client's envelope, with the right status, and nothing of the
backend's own words that should stay inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.doubles.backend import Close, Hold, Reply, Reset, ScriptedBackend, refusal, stream, whole
from tests.doubles.events import assert_ends_with_error, story_of
from tests.doubles.frames import DONE, ROLE_DELTA, Canned, D, chunk, error_frame
from tests.doubles.proxy import REQ, Ferrule, assert_error, config_for

SUM = (
    "This model's maximum context length is 262144 tokens. However, you requested 262462 tokens "
    "(230462 in the messages, "
    "32000 in the completion). Please reduce the length of the messages or completion."
)
SUM_TOLD = "input length and `max_tokens` exceed context limit: 230462 + 32000 > 262144"
SGLANG = "The input (345516 tokens) is longer than the model's context length (262144 tokens)."
VLLM = (
    "This model's maximum context length is 2048 tokens. However, your prompt contains at least "
    "2049 input tokens, which exceeds this "
    "limit even without any output tokens. Please reduce the length of the input prompt. "
    "(parameter=input_tokens, value=2049)"
)
LLAMACPP = (
    "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it"
)


@pytest.mark.parametrize(
    ("body", "received"),
    [
        (
            {
                "object": "error",
                "message": SUM,
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            },
            SUM_TOLD,
        ),
        (
            {"error": {"message": SUM, "type": "BadRequestError", "param": None, "code": 400}},
            SUM_TOLD,
        ),
        (
            {"object": "error", "message": SGLANG, "type": "BadRequest", "code": 400},
            "prompt is too long: 345516 tokens > 262144 maximum",
        ),
        (
            {"error": {"message": VLLM, "type": "BadRequestError", "code": 400}},
            "prompt is too long: 2049 tokens > 2048 maximum",
        ),
        (
            {
                "error": {
                    "code": 400,
                    "message": LLAMACPP,
                    "type": "exceed_context_size_error",
                    "n_prompt_tokens": 5000,
                    "n_ctx": 4096,
                }
            },
            "prompt is too long: 5000 tokens > 4096 maximum",
        ),
    ],
    ids=["flat", "nested", "sglang", "vllm", "llamacpp"],
)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_h01_context_overflow(
    proxy: Ferrule, backend: ScriptedBackend, body: dict[str, Any], received: str, streamed: bool
) -> None:
    backend.play(whole(body, 400))
    assert_error(proxy.ask(stream=streamed), 400, "invalid_request_error", received)


def test_h01_overflow_as_the_first_event(proxy: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(stream(error_frame(SGLANG, 400), DONE))
    assert_error(
        proxy.ask(stream=True),
        400,
        "invalid_request_error",
        "prompt is too long: 345516 tokens > 262144 maximum",
    )


def test_h03_reset_after_the_role_frame(proxy: Ferrule, backend: ScriptedBackend) -> None:
    before = proxy.metric("stream_end_total", reason="backend_error")
    backend.play(stream(D(ROLE_DELTA), Reset()))
    answer = proxy.ask(stream=True)
    assert_error(answer, answer.status, "api_error")
    assert answer.status in (500, 502)
    backend.play(stream(D({"content": "x"}), Reset()))
    assert story_of(assert_ends_with_error(proxy.stream().events, "api_error")) == [("text", "x")]
    assert proxy.metric("stream_end_total", reason="backend_error") > before


@pytest.mark.parametrize(
    "reply",
    [
        Reply(
            [b"<html>Bad Gateway</html>"], 502, [("content-type", "text/html")], framing="length"
        ),
        Reply([b"Internal Server Error"], 500, [("content-type", "text/plain")], framing="length"),
        Reply([], 503, [], framing="length"),
        Reply([b"\xff\xfe\x00broken"], 500, [("content-type", "text/plain")], framing="length"),
    ],
    ids=["html", "plain", "empty", "not-utf8"],
)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_h05_errors_that_are_not_json(
    proxy: Ferrule, backend: ScriptedBackend, reply: Reply, streamed: bool
) -> None:
    backend.play(reply)
    answer = proxy.ask(stream=streamed)
    assert answer.status in ((529,) if reply.status == 503 else (500, 502))
    message = assert_error(
        answer, answer.status, "overloaded_error" if reply.status == 503 else "api_error"
    )
    assert "<html" not in message
    assert len(message) < 300


@pytest.mark.parametrize(
    ("status", "received", "kind"),
    [
        (400, (400,), "invalid_request_error"),
        (422, (400,), "invalid_request_error"),
        (401, (500, 502), "api_error"),
        (403, (500, 502), "api_error"),
        (404, (404,), "not_found_error"),
        (408, (504,), "timeout_error"),
        (504, (504,), "timeout_error"),
        (413, (413,), "request_too_large"),
        (429, (429,), "rate_limit_error"),
        (503, (529,), "overloaded_error"),
        (529, (529,), "overloaded_error"),
        (500, (500, 502), "api_error"),
        (502, (500, 502), "api_error"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_h07_every_status(
    proxy: Ferrule,
    backend: ScriptedBackend,
    status: int,
    received: tuple[int, ...],
    kind: str,
    streamed: bool,
) -> None:
    words = "The model `m` does not exist." if status == 404 else "no"
    backend.play(refusal(status, words))
    answer = proxy.ask(stream=streamed)
    assert answer.status in received, answer.text
    assert_error(answer, answer.status, kind)
    if answer.status in (429, 529):
        assert 0 < int(answer.headers["retry-after"]) <= 60


def test_h07_a_backend_without_the_model_as_the_dialect_has_it(
    new_proxy: Callable[..., Ferrule], new_backend: Callable[..., ScriptedBackend]
) -> None:
    backend = new_backend()
    backend.play(refusal(404, "The model `m` does not exist."))
    assert_error(
        new_proxy(config_for(backend.url, dialect="token-factory")).ask(),
        400,
        "invalid_request_error",
    )


def test_h07_reset_before_the_head(proxy: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(Reply([Reset()], sends_head=False))
    for streamed in (False, True):
        answer = proxy.ask(stream=streamed)
        assert answer.status in (500, 502), answer.text
        assert_error(answer, answer.status, "api_error")


def test_a_backends_retry_after_is_passed_on(proxy: Ferrule, backend: ScriptedBackend) -> None:
    for said, received in (("7", "7"), ("3600", None)):
        backend.play(refusal(429, "slow down", [("retry-after", said)]))
        got = proxy.ask().headers["retry-after"]
        assert got == received if received else 0 < int(got) <= 60


BAD_BODIES: dict[str, bytes] = {
    "brace": b"{",
    "empty": b"",
    "list": b"[]",
    "string": b'"x"',
    "null": b"null",
    "deep": b'{"model":"m","max_tokens":1,"messages":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "nan": b'{"model":"m","max_tokens":NaN,"messages":[{"role":"user","content":"x"}]}',
    "lone-surrogate": b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"\\ud83d"}]}',
    "huge-number": b'{"model":"m","max_tokens":1e400,"messages":[{"role":"user","content":"x"}]}',
    "not-utf8": b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"\xff"}]}',
}


@pytest.mark.parametrize("name", BAD_BODIES)
@pytest.mark.parametrize(
    "path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions"]
)
def test_h09_bodies_that_are_no_request(proxy: Ferrule, name: str, path: str) -> None:
    answer = proxy.client.post(path, BAD_BODIES[name])
    if (
        path == "/v1/chat/completions"
        and name in ("nan", "huge-number", "lone-surrogate")
        and answer.status == 200
    ):
        pytest.skip("this route leaves such values to the engine")
    assert answer.status == 400, answer.text[:300]
    if path != "/v1/chat/completions":
        assert_error(answer, 400, "invalid_request_error")


def test_h09_duplicate_keys_do_no_harm(proxy: Ferrule) -> None:
    body = b'{"model":"x","model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}'
    assert proxy.client.post("/v1/messages", body).status in (200, 400)


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/nothing", 404, "not_found_error"),
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("DELETE", "/v1/models", 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("GET", "/v1/files", 404, "not_found_error"),
    ],
)
def test_h11_routes_that_are_not_there(
    proxy: Ferrule, method: str, path: str, status: int, kind: str
) -> None:
    assert_error(proxy.client.request(method, path), status, kind)


def test_h11_unknown_model(proxy: Ferrule) -> None:
    assert_error(proxy.ask(model="nope"), 404, "not_found_error", "nope")


def test_h15_one_answer_per_connection(proxy: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(stream(D({"content": "x"}), b"data: {not json\n\n"))
    with proxy.open_stream() as answer:
        raw = answer.read()
    assert raw.count(b"event: error") == 1
    assert b"HTTP/1.1" not in raw


@pytest.mark.parametrize(
    "reply",
    [
        Reply([], 204, [], framing="length"),
        Reply([], 200, [("content-type", "application/json")], framing="length"),
        stream(),
    ],
    ids=["204", "empty-200", "empty-stream"],
)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_h17_no_content_is_an_error(
    proxy: Ferrule, backend: ScriptedBackend, reply: Reply, streamed: bool
) -> None:
    backend.play(reply)
    answer = proxy.ask(stream=streamed)
    assert answer.status in (500, 502), answer.text
    assert_error(answer, answer.status, "api_error")


@pytest.mark.parametrize("finish", ["abort", "error"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_an_aborted_answer_is_a_failure(
    proxy: Ferrule, backend: ScriptedBackend, finish: str, streamed: bool
) -> None:
    backend.play(Canned("x", finish=finish))
    if streamed:
        assert_ends_with_error(proxy.stream().events)
    else:
        assert proxy.ask().status in (500, 502)


@pytest.mark.parametrize(
    "end",
    [Close(), Reset(), b"data: {nonsense\n\n", error_frame(), DONE],
    ids=["close", "reset", "garbage", "error", "done"],
)
def test_a_stream_that_breaks_ends_with_an_error_event(
    proxy: Ferrule, backend: ScriptedBackend, end: Any
) -> None:
    backend.play(stream(D({"content": "x"}), end))
    answer = proxy.stream()
    assert answer.status == 200
    assert story_of(assert_ends_with_error(answer.events)) == [("text", "x")]
    stops = [event for event in answer.events if event.name == "content_block_stop"]
    assert len(stops) == 1, "this dialect closes the open block first"


def test_what_comes_after_the_end_is_not_told(proxy: Ferrule, backend: ScriptedBackend) -> None:
    hold = Hold()
    backend.play(
        stream(
            D({"content": "x"}),
            chunk({}, "stop"),
            DONE,
            D({"content": "late"}),
            error_frame(),
            hold,
        )
    )
    assert story_of(proxy.stream().message) == [("text", "x")]
    hold.release()


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        ({"messages": None}, "messages"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"messages": [{"role": "user2", "content": "x"}]}, "messages.0.role"),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": 7}]},
            "messages.1.content",
        ),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages.0.content.0"),
        ({"tools": [{"name": 7}]}, "tools.0"),
        (
            {
                "tool_choice": {"type": "tool", "name": "absent"},
                "tools": [{"name": "F", "input_schema": {}}],
            },
            "tool_choice",
        ),
        ({"output_config": {"format": {"type": "yaml"}}}, "output_config.format"),
        ({"mcp_servers": [{"type": "url", "name": "x", "url": "http://x"}]}, "mcp_servers"),
    ],
)
def test_a_refusal_names_the_place(
    proxy: Ferrule, backend: ScriptedBackend, overrides: dict[str, Any], path: str
) -> None:
    answer = proxy.client.post(
        "/v1/messages", {key: value for key, value in REQ(**overrides).items() if value is not None}
    )
    assert_error(answer, 400, "invalid_request_error", path)
    assert backend.requests == []
