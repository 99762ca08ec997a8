"""A real vLLM through ferrule: what each kind of answer becomes, streamed and whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.doubles.backend import wait_until
from tests.doubles.events import assert_ends_with_error
from tests.doubles.proxy import Ferrule, assert_error
from tests.engines.servers import Vllm

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
NAME = "vLLM"
WINDOW_TOKENS = Vllm.WINDOW_TOKENS
WEATHER = {
    "name": "get_weather",
    "description": "The weather of the next days.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
WRITE = {
    "name": "write_file",
    "description": "Writes a file.",
    "input_schema": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
    },
}


def ask(script: str, **more: Any) -> dict[str, Any]:
    """Members of a request that makes the model play `script`."""
    return {
        "model": "tiny",
        "max_tokens": 400,
        "messages": [{"role": "user", "content": f"Go. [[script:{script}]]"}],
        **more,
    }


def blocks(message: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [block for block in message["content"] if block["type"] == kind]


def text(message: dict[str, Any]) -> str:
    return "".join(block["text"] for block in blocks(message, "text"))


def both(proxy: Ferrule, request: dict[str, Any]) -> dict[str, Any]:
    """The answer, which is the same streamed and whole but for ids and for what the cache had."""
    streamed, whole = proxy.stream(**request).message, proxy.message(**request)
    assert _essence(streamed) == _essence(whole)
    return streamed


def _essence(message: dict[str, Any]) -> dict[str, Any]:
    usage = message["usage"]
    prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    content = [
        {name: value for name, value in block.items() if name != "id"}
        for block in message["content"]
    ]
    return {
        "content": content,
        "stop": message["stop_reason"],
        "prompt": prompt,
        "output": usage["output_tokens"],
    }


@pytest.mark.cell(NAME, "reasoning")
def test_reasoning_and_text(proxy: Ferrule) -> None:
    message = both(proxy, ask("greeting"))
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    assert message["content"][0]["thinking"].startswith("The user greets me")
    assert message["content"][0]["signature"]
    assert text(message).strip() == "Good day! Bonjour 👋🏽 你好, and welcome."
    assert message["stop_reason"] == "end_turn"


@pytest.mark.cell(NAME, "reasoning")
def test_thinking_can_be_switched_off(proxy: Ferrule) -> None:
    message = both(proxy, ask("greeting", thinking={"type": "disabled"}))
    assert not blocks(message, "thinking")
    assert "Good day!" in text(message)


@pytest.mark.cell(NAME, "parallel tools")
def test_two_calls_and_their_results(proxy: Ferrule) -> None:
    request = ask("two_tools", tools=[WEATHER, WRITE])
    message = proxy.stream(**request).message
    calls = blocks(message, "tool_use")
    assert [call["input"] for call in calls] == [
        {"city": "Paris", "days": 3},
        {"city": 'Oslo "north"\\'},
    ]
    assert message["stop_reason"] == "tool_use"
    assert len({call["id"] for call in calls}) == 2
    results = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": "Sun. [[script:agent_done]]"}
        for call in reversed(calls)
    ]
    history = [
        *request["messages"],
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": results},
    ]
    answer = both(proxy, {**request, "messages": history})
    assert "The work is done." in text(answer)


@pytest.mark.cell(NAME, "cut calls")
def test_streamed_call_that_is_cut_ends_as_cut(proxy: Ferrule) -> None:
    message = proxy.stream(**ask("long_call", tools=[WRITE], max_tokens=60)).message
    assert message["stop_reason"] == "max_tokens"
    assert message["usage"]["output_tokens"] == 60


@pytest.mark.cell(NAME, "cut calls")
def test_whole_call_that_is_cut_ends_as_cut(proxy: Ferrule) -> None:
    """The engine says `tool_calls` here, with half of the arguments: a client that believed it
    would run half a command."""
    message = proxy.message(**ask("long_call", tools=[WRITE], max_tokens=60))
    assert message["stop_reason"] == "max_tokens"


@pytest.mark.cell(NAME, "stop strings")
def test_stop_string_is_named(proxy: Ferrule) -> None:
    message = both(proxy, ask("stop_word", stop_sequences=["STOP", "never"]))
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "STOP")
    assert text(message).strip() == "one two three"


@pytest.mark.cell(NAME, "budget (engine)")
@pytest.mark.parametrize("stream", [True, False])
def test_engine_holds_the_budget(proxy: Ferrule, stream: bool) -> None:
    check_budget(proxy, "tiny", stream)


@pytest.mark.cell(NAME, "budget (edge)")
@pytest.mark.parametrize("stream", [True, False])
def test_edge_holds_the_budget(proxy: Ferrule, stream: bool) -> None:
    check_budget(proxy, "tiny-edge", stream)


def check_budget(proxy: Ferrule, model: str, stream: bool) -> None:
    request = ask("long_thought", model=model, thinking={"type": "enabled", "budget_tokens": 20})
    message = proxy.stream(**request).message if stream else proxy.message(**request)
    thought = "".join(block["thinking"] for block in blocks(message, "thinking"))
    assert "Step one" in thought
    assert "Step six" not in thought
    assert text(message).strip() == "The answer is forty-two."
    assert message["stop_reason"] == "end_turn"


@pytest.mark.cell(NAME, "structured output")
def test_structured_output(proxy: Ferrule) -> None:
    properties = {"city": {"type": "string"}, "days": {"type": "integer"}}
    schema = {
        "type": "object",
        "properties": properties,
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    message = both(
        proxy, ask("object", output_config={"format": {"type": "json_schema", "schema": schema}})
    )
    assert json.loads(text(message)) == {"city": "Paris", "days": 3}


@pytest.mark.cell(NAME, "engine error")
def test_engine_that_fails_in_mid_stream_is_an_error_event(proxy: Ferrule) -> None:
    """What the script says breaks the grammar, and the engine gives the request up when the
    reasoning is already out."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    streamed = proxy.stream(
        **ask("not_an_object", output_config={"format": {"type": "json_schema", "schema": schema}})
    )
    assert streamed.status == 200
    received = assert_ends_with_error(streamed.events, "api_error")
    assert blocks(received, "thinking")


HISTORY = [
    {"role": "user", "content": "What is the weather? [[script:greeting]]"},
    {
        "role": "assistant",
        "content": [
            {
                "type": "tool_use",
                "id": "toolu_1",
                "name": "get_weather",
                "input": {"city": "Paris", "days": 2},
            }
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Sun."},
            {"type": "text", "text": "Go on."},
        ],
    },
]


@pytest.mark.cell(NAME, "exact counts")
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"system": "You are terse. 你好 🦀"},
        {"tools": [WEATHER, WRITE]},
        {"tools": [WEATHER], "messages": HISTORY},
        {"thinking": {"type": "disabled"}},
        {"output_config": {"effort": "low"}},
        {
            "messages": [
                *HISTORY[:1],
                {"role": "system", "content": "A reminder in mid-conversation."},
            ]
        },
    ],
    ids=["plain", "system", "tools", "history", "no thinking", "effort", "late system"],
)
def test_counts_are_what_is_billed(proxy: Ferrule, more: dict[str, Any]) -> None:
    request = (
        ask("greeting", max_tokens=5, **more)
        if "messages" not in more
        else {"model": "tiny", "max_tokens": 5, **more}
    )
    usage = proxy.message(**request)["usage"]
    counted = proxy.ask("/v1/messages/count_tokens", **request).json()["input_tokens"]
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]


@pytest.mark.cell(NAME, "overflow")
@pytest.mark.parametrize("stream", [True, False])
def test_overflow_is_worded_as_clients_know_it(proxy: Ferrule, stream: bool) -> None:
    request = ask("greeting", messages=[{"role": "user", "content": "word " * WINDOW_TOKENS}])
    message = assert_error(
        proxy.ask(stream=stream, **request),
        400,
        "invalid_request_error",
        "prompt is too long: ",
        f"> {WINDOW_TOKENS} maximum",
    )
    tokens = int(message.partition(": ")[2].split()[0])
    assert tokens > WINDOW_TOKENS


@pytest.mark.cell(NAME, "overflow")
def test_large_max_tokens_is_clamped(proxy: Ferrule) -> None:
    assert (
        proxy.message(**ask("greeting", max_tokens=10 * WINDOW_TOKENS))["stop_reason"] == "end_turn"
    )


@pytest.mark.cell(NAME, "client abort")
def test_client_that_leaves_stops_the_engine(proxy: Ferrule, vllm: Vllm) -> None:
    with proxy.open_stream(
        **ask("endless", messages=[{"role": "user", "content": "[[script:endless]] [[delay:100]]"}])
    ) as answer:
        answer.read_until(b"text_delta")
        assert vllm.running == 1
        answer.reset()
    wait_until(lambda: vllm.running == 0, 5, "the engine to stop for a client that left")
    assert vllm.metric("vllm:generation_tokens_total") > 0
