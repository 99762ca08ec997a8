"""The simulated model's answers: deterministic, cut where they must be, cached when a session
returns."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from ferrule.sim.completion import (
    NATURAL_LENGTH_TOKENS,
    ChatRequest,
    Completion,
    PrefixCache,
    SimSettings,
    compose,
    sample,
)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "wait"}},
]


def answer(
    content: str = "hi", max_tokens: int = 1000, settings: SimSettings | None = None, **members: Any
) -> Completion:
    body = {"model": "sim", "messages": [{"role": "user", "content": content}], **members}
    return compose(
        msgspec.json.decode(json.dumps(body), type=ChatRequest),
        settings or SimSettings(),
        max_tokens,
    )


def text_of(given: Completion, kind: str) -> str:
    return "".join(delta.text for delta in given.deltas if delta.kind == kind)


def test_the_same_question_gets_the_same_answer() -> None:
    assert answer("why?") == answer("why?")
    assert "why?" in text_of(answer("why?"), "content")
    assert answer("why?") != answer("how?")


def test_reasoning_comes_first_where_the_model_reasons() -> None:
    reasons = SimSettings(reasoning=True)
    given = answer(settings=reasons)
    assert given.deltas[0].kind == "reasoning"
    assert text_of(given, "content").startswith("\n\n")
    assert text_of(answer(), "reasoning") == ""


@pytest.mark.parametrize(
    ("members", "tokens"),
    [
        ({"thinking_token_budget": 3}, 3),
        ({"chat_template_kwargs": {"enable_thinking": False}}, 0),
        ({"reasoning_effort": "none"}, 0),
        ({"reasoning_effort": "low"}, 8),
        ({"continue_final_message": True}, 0),
    ],
)
def test_reasoning_is_steered(members: dict[str, Any], tokens: int) -> None:
    assert answer(settings=SimSettings(reasoning=True), **members).reasoning_tokens == tokens


@pytest.mark.parametrize("content", ["hi", "what now?", "a longer question " * 9])
def test_an_answer_ends_with_its_sentence(content: str) -> None:
    given = answer(content)
    assert text_of(given, "content").endswith(".")
    assert len(given.deltas) >= NATURAL_LENGTH_TOKENS


def test_a_length_cuts() -> None:
    given = answer(max_tokens=5)
    assert (len(given.deltas), given.finish_reason) == (5, "length")


def test_a_stop_string_cuts_and_is_named() -> None:
    given = answer(stop=["model", "simulated"])
    assert (given.finish_reason, given.stop_reason) == ("stop", "simulated")
    assert text_of(given, "content") == "I am sim, a "


@pytest.mark.parametrize(
    ("members", "calls", "finish"),
    [
        ({"content": "look there"}, ["look"], "tool_calls"),
        ({"content": "look and wait"}, ["look", "wait"], "tool_calls"),
        ({"content": "look and wait", "parallel_tool_calls": False}, ["look"], "tool_calls"),
        ({"content": "use a tool"}, ["look"], "tool_calls"),
        ({"content": "hi"}, [], "stop"),
        ({"tool_choice": "required"}, ["look"], "tool_calls"),
        ({"tool_choice": "none", "content": "look"}, [], "stop"),
        ({"tool_choice": {"type": "function", "function": {"name": "wait"}}}, ["wait"], "stop"),
    ],
)
def test_tools_are_called_when_asked_for(
    members: dict[str, Any], calls: list[str], finish: str
) -> None:
    given = answer(tools=TOOLS, **members)
    assert [delta.text for delta in given.deltas if delta.kind == "call"] == calls
    assert given.finish_reason == finish


def test_marks_are_obeyed_only_when_scripted() -> None:
    assert len(answer("[[tokens:200]]", settings=SimSettings(scripted=True)).deltas) == 200
    assert len(answer("[[tokens:200]]").deltas) < 200


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "count": {"type": "integer", "minimum": 3},
        "kind": {"enum": ["b", "c"]},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
        "maybe": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "left": {"type": "string"},
    },
    "required": ["name", "count", "kind", "tags", "maybe"],
    "$defs": {"tag": {"const": "t"}},
}


def test_a_sample_conforms_to_its_schema() -> None:
    assert sample(SCHEMA, SCHEMA) == {
        "name": "sample",
        "count": 3,
        "kind": "b",
        "tags": ["t"],
        "maybe": True,
    }
    given = answer(
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    )
    assert json.loads(text_of(given, "content")) == sample(SCHEMA, SCHEMA)


def test_the_cache_holds_unbroken_prefixes_in_whole_blocks() -> None:
    cache = PrefixCache(10_000)
    assert cache.admit(b"a" * 640) == 0
    assert cache.admit(b"a" * 640) == 144, "all blocks but the last, which is always computed"
    assert cache.admit(b"a" * 320 + b"b" * 320) == 80
    assert cache.admit(b"b" * 640) == 0


def test_the_cache_forgets_what_was_used_least_lately() -> None:
    cache = PrefixCache(32)
    cache.admit(b"a" * 192)
    cache.admit(b"b" * 192)
    assert cache.admit(b"a" * 192) == 0
