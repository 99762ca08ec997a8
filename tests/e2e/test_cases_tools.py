"""Tools: what goes upstream for them, and what becomes of the calls that come back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.doubles.backend import ScriptedBackend, Seen, stream, whole
from tests.doubles.events import story_of
from tests.doubles.frames import ABSENT, DONE, TC, Canned, D
from tests.doubles.proxy import Ferrule, assert_error
from tests.e2e.conftest import Received, Sent

F_TOOL = {
    "name": "F",
    "description": "does F",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
SEARCH_TOOL = {"type": "web_search_20250305", "name": "web_search"}
COMPUTER_TOOL = {
    "type": "computer_20250124",
    "name": "computer",
    "display_width_px": 1,
    "display_height_px": 1,
}


def history(tool_input: Any, *, name: str = "F", id_: str = "toolu_1") -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": id_, "name": name, "input": tool_input}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_, "content": "ok"}]},
    ]


def test_c01_the_name_repeated_on_every_piece(received: Received) -> None:
    frames = [
        TC(0, "c1", "read_file", ""),
        TC(0, "c1", "read_file", '{"p"'),
        TC(0, "c1", "read_file", ":1}"),
    ]
    assert story_of(received(*frames, D({}, "tool_calls"), DONE)) == [
        ("tool_use", "read_file", {"p": 1})
    ]


def test_c03_null_means_unchanged(received: Received) -> None:
    frames = [TC(0, "c1", "F", '{"a":'), TC(0, None, None, "1}")]
    assert story_of(received(*frames, D({}, "tool_calls"), DONE)) == [("tool_use", "F", {"a": 1})]


@pytest.mark.parametrize(
    "id_",
    [ABSENT, "", None, "call_0", "functions.F:0"],
    ids=["absent", "empty", "null", "numbered", "kimi"],
)
def test_c05_ids_are_unique_and_safe(received: Received, id_: Any) -> None:
    seen = {
        received(TC(0, id_, "F", "{}"), D({}, "tool_calls"), DONE)["content"][0]["id"]
        for _ in range(2)
    }
    assert len(seen) == 2
    for one in seen:
        assert one.startswith("toolu_")
        assert one.replace("_", "").replace("-", "").isalnum()


@pytest.mark.parametrize(
    ("finish", "stop_reason"), [("length", "max_tokens"), ("tool_calls", "tool_use")]
)
def test_c07_arguments_that_are_not_json(
    proxy: Ferrule, backend: ScriptedBackend, finish: str, stop_reason: str
) -> None:
    backend.play(Canned(calls=[("c1", "F", '{"command": "ls')], finish=finish))
    message = proxy.message()
    assert isinstance(message["content"][0]["input"], dict)
    if finish == "length":
        assert message["stop_reason"] == stop_reason


def test_c09_arguments_as_an_object(
    proxy: Ferrule, backend: ScriptedBackend, received: Received
) -> None:
    assert story_of(received(TC(0, "c1", "F", {"a": 1}), D({}, "tool_calls"), DONE)) == [
        ("tool_use", "F", {"a": 1})
    ]
    answer = Canned(calls=[("c1", "F", "")]).whole()
    answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = {"a": 1}
    backend.play(
        lambda seen: (
            stream(TC(0, "c1", "F", {"a": 1}), D({}, "tool_calls"), DONE)
            if seen.json.get("stream")
            else whole(answer)
        )
    )
    assert story_of(proxy.message()) == [("tool_use", "F", {"a": 1})]


def test_c11_tool_inputs_keep_their_order_and_bytes(sent: Sent) -> None:
    raw = {"z": 1, "a": {"y": 2, "b": 3}, "n": 1.0, "s": "é"}
    bodies = [
        sent(messages=[*history(raw), *more])
        for more in ([], [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}])
    ]
    arguments = {body["messages"][1]["tool_calls"][0]["function"]["arguments"] for body in bodies}
    (text,) = arguments
    assert list(json.loads(text)) == ["z", "a", "n", "s"]
    assert list(json.loads(text)["a"]) == ["y", "b"]
    assert "1.0" in text


LONG_NAME = "mcp__srv.tool/" + "x" * 70


def test_c13_odd_tool_names_go_there_and_back(proxy: Ferrule, backend: ScriptedBackend) -> None:
    def play(seen: Seen) -> Canned:
        return Canned(calls=[("call_9f", seen.json["tools"][0]["function"]["name"], "{}")])

    backend.play(play)
    tools = [
        {**F_TOOL, "name": LONG_NAME},
        {**F_TOOL, "name": LONG_NAME[:64]},
        {**F_TOOL, "name": LONG_NAME.replace(".", "_").replace("/", "_")[:64]},
    ]
    asked: dict[str, Any] = {
        "tools": tools,
        "tool_choice": {"type": "tool", "name": LONG_NAME},
        "messages": history({}, name=LONG_NAME),
    }
    for message in (proxy.message(**asked), proxy.stream(**asked).message):
        assert message["content"][0]["name"] == LONG_NAME
    body = backend.last.json
    names = [tool["function"]["name"] for tool in body["tools"]]
    assert len(set(names)) == 3
    assert body["tool_choice"]["function"]["name"] == names[0]
    assert body["messages"][1]["tool_calls"][0]["function"]["name"] == names[0]


def test_c15_a_server_tool_is_forced(proxy: Ferrule, backend: ScriptedBackend) -> None:
    answer = proxy.ask(tools=[SEARCH_TOOL], tool_choice={"type": "tool", "name": "web_search"})
    assert_error(answer, 400, "invalid_request_error", "web_search")
    assert backend.requests == []


def test_c17_a_tool_nobody_can_run_is_reported(proxy: Ferrule, backend: ScriptedBackend) -> None:
    before = proxy.metric("dropped_params_total")
    answer = proxy.ask(tools=[F_TOOL, COMPUTER_TOOL])
    assert answer.status == 200, answer.text
    assert (
        "computer" in answer.headers["x-ferrule-dropped"]
        or "tools" in answer.headers["x-ferrule-dropped"]
    )
    assert proxy.metric("dropped_params_total") > before
    assert [tool["function"]["name"] for tool in backend.last.json["tools"]] == ["F"]


@pytest.mark.parametrize(
    ("choice", "upstream"),
    [
        ({"type": "auto"}, ["auto", None]),
        ({"type": "any"}, ["required"]),
        ({"type": "none"}, ["none", None]),
        ({"type": "tool", "name": "F"}, [{"type": "function", "function": {"name": "F"}}]),
    ],
    ids=["auto", "any", "none", "tool"],
)
@pytest.mark.parametrize("single", [False, True], ids=["parallel", "single"])
def test_c19_tool_choice(
    sent: Sent, choice: dict[str, Any], upstream: list[Any], single: bool
) -> None:
    body = sent(
        tools=[F_TOOL],
        tool_choice={**choice, **({"disable_parallel_tool_use": True} if single else {})},
    )
    assert body.get("tool_choice") in upstream
    if choice["type"] == "none":
        assert body.get("tool_choice") == "none" or "tools" not in body
    elif single:
        assert body["parallel_tool_calls"] is False


def test_c19_one_call_is_told_where_one_was_asked_for(
    proxy: Ferrule, backend: ScriptedBackend
) -> None:
    backend.play(Canned(calls=[("c1", "F", "{}"), ("c2", "F", "{}")]))
    asked: dict[str, Any] = {
        "tools": [F_TOOL],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    }
    for message in (proxy.stream(**asked).message, proxy.message(**asked)):
        assert story_of(message) == [("tool_use", "F", {})]


# Deferred tools


def test_k05_deferred_tools_are_hidden_until_referenced(sent: Sent) -> None:
    tools = [
        {"type": "tool_search_tool_regex_20251119", "name": "tool_search"},
        {**F_TOOL, "defer_loading": True},
        {**F_TOOL, "name": "G"},
    ]
    body = sent(tools=tools)
    assert [tool["function"]["name"] for tool in body["tools"]] == ["G"]
    reference = [{"type": "tool_reference", "tool_name": "F"}]
    found = [
        *history({}, name="G")[:2],
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": reference}],
        },
    ]
    body = sent(tools=tools, messages=found)
    assert sorted(tool["function"]["name"] for tool in body["tools"]) == ["F", "G"]
    assert "defer_loading" not in json.dumps(body)
    (result,) = [message for message in body["messages"] if message["role"] == "tool"]
    assert "F" in result["content"]


def test_k13_thinking_text_and_a_call(received: Received) -> None:
    frames = Canned("Short.", reasoning="Plan.", calls=[("c1", "F", "{}")]).frames()
    message = received(*frames)
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]
    assert message["stop_reason"] == "tool_use"
