"""A real llama.cpp server through ferrule. Its model rambles, so the tests look at form, counts and
ends, not at sense."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.doubles.backend import wait_until
from tests.doubles.proxy import Ferrule, assert_error
from tests.engines.servers import LlamaServer

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
NAME = "llama.cpp"
COLOUR = {
    "name": "set_colour",
    "description": "Sets a colour.",
    "input_schema": {
        "type": "object",
        "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}},
        "required": ["colour"],
    },
}


@pytest.fixture(scope="module")
def proxy(llama: LlamaServer, new_proxy: Callable[..., Ferrule]) -> Ferrule:
    pool = {"backends": [llama.url], "system_first": True}
    return new_proxy(
        {
            "dialect": "anthropic",
            "drain_grace_s": 5,
            "pools": {"p": pool},
            "models": [{"id": "gemma", "pool": "p"}],
        }
    )


def ask(text: str = "Once upon a time", **more: Any) -> dict[str, Any]:
    return {
        "model": "gemma",
        "max_tokens": 30,
        "messages": [{"role": "user", "content": text}],
        **more,
    }


@pytest.mark.cell(NAME, "text")
def test_text_streamed_and_whole(proxy: Ferrule) -> None:
    for message in (proxy.stream(**ask()).message, proxy.message(**ask())):
        assert message["stop_reason"] in ("max_tokens", "end_turn")
        assert 0 < message["usage"]["output_tokens"] <= 30
        assert message["content"]


@pytest.mark.cell(NAME, "structured output")
def test_structured_output(proxy: Ferrule) -> None:
    # no object: between its members a model this small writes blanks for ever
    form = {
        "format": {"type": "json_schema", "schema": {"type": "string", "enum": ["red", "blue"]}}
    }
    request = ask("A colour?", output_config=form, thinking={"type": "disabled"})
    for message in (proxy.stream(**request).message, proxy.message(**request)):
        received = "".join(block["text"] for block in message["content"] if block["type"] == "text")
        assert json.loads(received) in ("red", "blue")


@pytest.mark.cell(NAME, "exact counts")
@pytest.mark.parametrize(
    "more",
    [{}, {"system": "You are terse. 你好"}, {"tools": [COLOUR]}],
    ids=["plain", "system", "tools"],
)
def test_counts_are_what_is_billed(proxy: Ferrule, more: dict[str, Any]) -> None:
    request = ask(**more)
    usage = proxy.message(**request)["usage"]
    counted = proxy.ask("/v1/messages/count_tokens", **request).json()["input_tokens"]
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]


@pytest.mark.cell(NAME, "overflow")
@pytest.mark.parametrize("stream", [True, False])
def test_overflow_is_worded_as_clients_know_it(proxy: Ferrule, stream: bool) -> None:
    answer = proxy.ask(stream=stream, **ask("word " * 3 * LlamaServer.WINDOW_TOKENS))
    assert_error(
        answer,
        400,
        "invalid_request_error",
        "prompt is too long: ",
        f"> {LlamaServer.WINDOW_TOKENS} maximum",
    )


@pytest.mark.cell(NAME, "cache hits")
def test_returning_session_reads_the_cache(proxy: Ferrule) -> None:
    first = ask("A long story. " * 60)
    message = proxy.stream(**first).message
    history = [
        *first["messages"],
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": "And then?"},
    ]
    again = proxy.stream(**{**first, "messages": history}).message
    assert again["usage"]["cache_read_input_tokens"] > 100


@pytest.mark.cell(NAME, "client abort")
@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves_stops_the_engine(
    proxy: Ferrule, llama: LlamaServer, stream: bool
) -> None:
    schema = {
        "type": "object",
        "properties": {"text": {"type": "string", "minLength": 1500}},
        "required": ["text"],
    }
    endless = ask(
        max_tokens=1500,
        output_config={"format": {"type": "json_schema", "schema": schema}},
        thinking={"type": "disabled"},
    )
    if stream:
        with proxy.open_stream(**endless) as answer:
            answer.read_until(b"_delta")
            answer.reset()
    else:
        leave_before_the_answer(proxy, llama, endless)
    wait_until(lambda: seldom(llama) == 0, 12, "the engine to stop for a client that left")


def seldom(llama: LlamaServer) -> float:
    """The engine looks for a client that left when it had nothing to report for a second, and being
    asked for metrics is a report."""
    time.sleep(1.5)
    return llama.running


def leave_before_the_answer(proxy: Ferrule, llama: LlamaServer, request: dict[str, Any]) -> None:
    connection = http.client.HTTPConnection(proxy.listen, timeout=20)
    connection.request(
        "POST", "/v1/messages", json.dumps(request), {"content-type": "application/json"}
    )
    wait_until(lambda: llama.running > 0, 10, "the engine to begin")
    connection.close()
