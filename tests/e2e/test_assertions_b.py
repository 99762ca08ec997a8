"""Conformance, tier B: what gives wrong results without any error."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.doubles.backend import ScriptedBackend
from tests.doubles.events import story_of
from tests.doubles.frames import DONE, TC, Canned, D, U, chunk
from tests.doubles.proxy import Ferrule, assert_error, config_for
from tests.e2e.conftest import Received, Sent
from tests.e2e.test_cases_messages import BILLING, flat, result
from tests.e2e.test_cases_models import COUNT, PIXEL
from tests.e2e.test_cases_tools import F_TOOL, SEARCH_TOOL, history

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}


def both(proxy: Ferrule, **overrides: Any) -> list[dict[str, Any]]:
    return [proxy.stream(**overrides).message, proxy.message(**overrides)]


def test_assertion_21_the_stop_sequence_is_reported(
    proxy: Ferrule, backend: ScriptedBackend
) -> None:
    backend.play(Canned("one two ", stop_reason="END"))
    for message in both(proxy, stop_sequences=["END"]):
        assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")
        assert story_of(message) == [("text", "one two ")]


@pytest.mark.parametrize(
    ("answer", "stop_reason"),
    [
        (Canned("x", finish="length"), "max_tokens"),
        (Canned(calls=[("c1", "F", "{}")]), "tool_use"),
        (Canned(calls=[("c1", "F", "{}")], finish="stop"), "tool_use"),
        (Canned("x", finish="content_filter"), "refusal"),
        (Canned("x"), "end_turn"),
        (Canned("x", finish="novel"), "end_turn"),
    ],
    ids=["length", "tool_calls", "stop-with-calls", "content_filter", "stop", "unknown"],
)
def test_assertion_22_stop_reasons(
    proxy: Ferrule, backend: ScriptedBackend, answer: Canned, stop_reason: str
) -> None:
    backend.play(answer)
    assert [message["stop_reason"] for message in both(proxy)] == [stop_reason] * 2


def test_assertion_23_usage_without_what_was_cached(
    proxy: Ferrule, backend: ScriptedBackend
) -> None:
    backend.play(Canned("x", prompt_tokens=1000, cached_tokens=600, completion_tokens=50))
    for message in both(proxy):
        usage = message["usage"]
        assert (
            usage["input_tokens"],
            usage["cache_read_input_tokens"],
            usage["output_tokens"],
        ) == (400, 600, 50)


def test_assertion_24_usage_is_waited_for(received: Received) -> None:
    assert (
        received(D({"content": "x"}), D({}, "stop"), U(9, 2), DONE)["usage"]["output_tokens"] == 2
    )


def test_assertion_25_the_attribution_is_not_counted(
    proxy: Ferrule, backend: ScriptedBackend
) -> None:
    bodies = []
    for mark in ("0a1b2", "ffff1"):
        system = [{"type": "text", "text": BILLING % mark}, {"type": "text", "text": "S"}]
        proxy.message(system=system)
        proxy.ask(COUNT, system=system)
        bodies.append(
            (
                backend.last.body,
                [seen for seen in backend.others if seen.target == "/tokenize"][-1].body,
            )
        )
    assert bodies[0] == bodies[1]
    assert b"billing" not in bodies[0][0] + bodies[0][1]


def test_assertion_27_results_in_another_order(sent: Sent) -> None:
    calls = [
        {"type": "tool_use", "id": id_, "name": "F", "input": {}} for id_ in ("c1", "c2", "c3")
    ]
    results = [
        result("c3"),
        result("c1", content="r1", is_error=True),
        result("c2", content="r2"),
        {"type": "text", "text": "go on"},
    ]
    turns = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": results},
    ]
    upstream = sent(messages=turns)["messages"]
    ids = [call["id"] for call in upstream[1]["tool_calls"]]
    by_id = {
        message["tool_call_id"]: message["content"]
        for message in upstream
        if message["role"] == "tool"
    }
    assert set(by_id) == set(ids)
    assert "r1" in by_id[ids[0]]
    assert by_id[ids[0]] != "r1", "the error must be visible"
    assert (by_id[ids[1]], by_id[ids[2]]) == ("r2", "")
    assert flat(upstream[-1]["content"]) == "go on"


@pytest.fixture(scope="module")
def seeing(new_proxy: Callable[..., Ferrule], shared_backend: ScriptedBackend) -> Ferrule:
    return new_proxy(config_for(shared_backend.url, model={"images": True}))


def test_assertion_28_images_within_results(
    seeing: Ferrule, proxy: Ferrule, backend: ScriptedBackend
) -> None:
    turns = [
        *history({})[:2],
        {
            "role": "user",
            "content": [result("toolu_1", content=[{"type": "text", "text": "shot"}, IMAGE])],
        },
    ]
    seeing.message(messages=turns)
    upstream = backend.last.json["messages"]
    assert "shot" in flat(upstream[2]["content"])
    (part,) = [part for part in upstream[3]["content"] if part["type"] == "image_url"]
    assert part["image_url"]["url"] == f"data:image/png;base64,{PIXEL}"
    proxy.message(messages=turns)
    blind = json.dumps(backend.last.json["messages"])
    assert PIXEL not in blind
    assert "image omitted" in blind


THOUGHTS: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "secret", "signature": ""},
    {"type": "thinking", "thinking": "secret", "signature": "Eq" * 2000},
    {"type": "thinking", "thinking": "", "signature": "x"},
    {"type": "redacted_thinking", "data": "c2VjcmV0"},
]


@pytest.mark.parametrize(
    "block", THOUGHTS, ids=["empty-signature", "long-signature", "empty-text", "redacted"]
)
def test_assertion_29_thinking_in_the_history(sent: Sent, block: dict[str, Any]) -> None:
    turns = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": [block, {"type": "text", "text": "a"}]},
    ]
    upstream = sent(messages=[*turns, {"role": "user", "content": "v"}])["messages"]
    assert upstream[1]["content"] == "a"
    assert "c2VjcmV0" not in json.dumps(upstream)


THINKING_FORMS: list[Any] = [
    {"type": "enabled", "budget_tokens": 1024},
    {"type": "enabled"},
    {"type": "adaptive"},
    {"type": "adaptive", "budget_tokens": 0},
    {"type": "adaptive", "display": "summarized"},
    {"type": "adaptive", "display": "omitted"},
    {"type": "adaptive", "display": "updates"},
    {"type": "between_tools"},
    None,
]


@pytest.mark.parametrize("form", THINKING_FORMS, ids=str)
def test_assertion_30_every_form_of_thinking(
    proxy: Ferrule, backend: ScriptedBackend, form: Any
) -> None:
    backend.play(Canned("x", reasoning="r"))
    for message in both(proxy, thinking=form, max_tokens=2048):
        assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    upstream = backend.last.json
    switched_off = (
        upstream.get("chat_template_kwargs", {}).get("enable_thinking") is False
        or upstream.get("reasoning_effort") == "none"
    )
    assert not switched_off


def test_assertion_30_thinking_switched_off(proxy: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(Canned("x", reasoning="r"))
    for message in both(proxy, thinking={"type": "disabled"}):
        assert [block["type"] for block in message["content"]] == ["text"]
    upstream = backend.last.json
    assert (
        upstream.get("chat_template_kwargs", {}).get("enable_thinking") is False
        or upstream.get("reasoning_effort") == "none"
    )


def test_assertion_31_thinking_comes_first_and_signed(
    proxy: Ferrule, backend: ScriptedBackend
) -> None:
    backend.play(Canned("x", reasoning="r"))
    for message in both(proxy, thinking={"type": "adaptive"}):
        assert message["content"][0]["type"] == "thinking"
        assert isinstance(message["content"][0]["signature"], str)


@pytest.mark.parametrize("effort", ["low", "medium", "high", "xhigh", "max", None])
def test_assertion_32_effort(sent: Sent, effort: str | None) -> None:
    assert sent(output_config={"effort": effort}).get("reasoning_effort") == effort


def test_assertion_32_the_last_effort_wins(sent: Sent) -> None:
    turns = [
        {"role": "user", "content": "u"},
        {"role": "system", "content": "R", "output_config": {"effort": "low"}},
    ]
    assert sent(output_config={"effort": "high"}, messages=turns)["reasoning_effort"] == "low"


def test_assertion_33_structured_output(sent: Sent) -> None:
    schema = {
        "type": "object",
        "properties": {"title": {"type": "string"}},
        "required": ["title"],
        "additionalProperties": False,
    }
    body = sent(output_config={"format": {"type": "json_schema", "schema": schema}}, tools=[])
    assert body["response_format"]["type"] == "json_schema"
    assert body["response_format"]["json_schema"]["schema"] == schema
    assert "tools" not in body


@pytest.mark.parametrize(
    ("choice", "upstream"),
    [
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "F"}, {"type": "function", "function": {"name": "F"}}),
    ],
)
def test_assertion_34_tool_choice(sent: Sent, choice: dict[str, Any], upstream: Any) -> None:
    body = sent(tools=[F_TOOL], tool_choice={**choice, "disable_parallel_tool_use": True})
    assert body["tool_choice"] == upstream
    assert body["parallel_tool_calls"] is False


def test_assertion_35_tools_of_the_server(proxy: Ferrule, backend: ScriptedBackend) -> None:
    alone = proxy.ask(tools=[SEARCH_TOOL])
    if alone.status == 200:
        assert alone.headers["x-ferrule-dropped"]
        assert "tools" not in backend.last.json
    else:
        assert_error(alone, 400, "invalid_request_error", "web_search_20250305")
    beside = proxy.ask(tools=[SEARCH_TOOL, F_TOOL])
    assert beside.status == 200
    assert beside.headers["x-ferrule-dropped"]
    assert proxy.ask(tools=[{"type": "bash_20250124", "name": "bash"}]).status == 200
    (bash,) = backend.last.json["tools"]
    assert bash["function"]["name"] == "bash"
    assert "command" in bash["function"]["parameters"]["properties"]


@pytest.mark.parametrize("blank", ["\n\n", " ", ""])
def test_assertion_36_no_empty_text_block(
    proxy: Ferrule, backend: ScriptedBackend, received: Received, blank: str
) -> None:
    message = received(
        D({"content": ""}),
        D({"reasoning": "r"}),
        D({"content": blank}),
        TC(0, "c1", "F", "{}"),
        D({}, "tool_calls"),
        DONE,
    )
    assert [block["type"] for block in message["content"]] == ["thinking", "tool_use"]
    backend.play(Canned(blank, reasoning="r", calls=[("c1", "F", "{}")]))
    assert [block["type"] for block in proxy.message()["content"]] == ["thinking", "tool_use"]


def test_assertion_37_interleaved_calls(received: Received) -> None:
    frames = [
        TC(0, "c1", "F", '{"a"'),
        TC(1, "c2", "G", '{"b"'),
        TC(0, arguments=":1}"),
        TC(1, arguments=":2}"),
    ]
    message = received(*frames, chunk({}, "tool_calls"), DONE)
    assert story_of(message) == [("tool_use", "F", {"a": 1}), ("tool_use", "G", {"b": 2})]
