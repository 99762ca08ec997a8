"""The request side of the table of dialects: one row a promise, one column a dialect, each cell
what goes upstream or the refusal.

A cell is a dict of members that must go upstream (`...`: must be absent), a text that the 400 must
contain, or a callable for the rest. `dropped` in a cell is what `x-ferrule-dropped` names.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.messages.requests import (
    PDF,
    PNG,
    PNG_PART,
    TOOL_F,
    ask,
    assistant,
    body,
    policy,
    refusal,
    result,
    user,
)

from ferrule.dialects import NOT_ENFORCED, NOT_SUPPORTED

DIALECTS = ("token-factory", "pooled", "tokenify", "anthropic")
ON = {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}}
OFF = {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}
DEFAULT = {"chat_template_kwargs": ...}
TIERS = {"effort": ("low", "medium")}
SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}}
FORMAT = {
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "output", "schema": SCHEMA, "strict": True},
    }
}
FUNCTION_F = {
    "type": "function",
    "function": {"name": "F", "description": "does F", "parameters": TOOL_F["input_schema"]},
}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
HIT = {
    "type": "search_result",
    "source": "https://e.org",
    "title": "T",
    "content": [{"type": "text", "text": "found"}],
}
SERVER_HISTORY = [
    user("q"),
    assistant(
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "s1",
            "content": [{"type": "web_search_result", "url": "https://e.org", "title": "T"}],
        },
        {"type": "text", "text": "a"},
    ),
    user("go"),
]
IMAGE_NOTE = "[image omitted: this model reads text only]"
DOCUMENT_NOTE = "[document omitted: this model reads text only]"


def says(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def dropped(*names: str, **members: Any) -> dict[str, Any]:
    return {"dropped": names, **members}


EFFORT_HIGH = {"output_config": {"effort": "high"}}
NO_SUCH_TIER = "output_config.effort: effort 'high'"
BUDGET = {"thinking": {"type": "enabled", "budget_tokens": 500}, "max_tokens": 800}
STOPS = {"stop_sequences": ["A", "B", "C", "D", "E"]}
UNKNOWN_FORMAT = {"output_config": {"format": {"type": "grammar", "schema": {}}}}
JSON_FORMAT = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
CHOICE = {"tools": [TOOL_F], "tool_choice": {"type": "any"}}

# fmt: off
ROWS: list[tuple[str, dict[str, Any], dict[str, Any], Any, Any, Any, Any]] = [
    # promise, the body, the policy, token-factory, pooled, tokenify, anthropic
    ("max_tokens is required", {"max_tokens": ...}, {}, *["max_tokens: is required"] * 4),
    ("max_tokens above 65,536", {"max_tokens": 70_000}, {},
     {"max_tokens": 70_000}, {"max_tokens": 65_536}, {"max_tokens": 70_000}, {"max_tokens": 70_000}),
    ("max_tokens and the context left", {"max_tokens": 128_000}, {"context_window": 32_768}, *[{"max_tokens": 32_768}] * 4),
    ("temperature above 1", {"temperature": 1.5}, {}, *["temperature: must be from 0 to 1"] * 4),
    ("temperature below 0", {"temperature": -0.1}, {}, *["temperature: must be from 0 to 1"] * 4),
    ("temperature alone", {"temperature": 0.5}, {},
     {"temperature": 0.5, "top_k": ...}, {"temperature": 0.5, "top_k": 40}, *[{"temperature": 0.5, "top_k": ...}] * 2),
    ("temperature of 0", {"temperature": 0}, {}, *[{"temperature": 0.0}] * 4),
    ("no temperature", {}, {}, *[{"temperature": ..., "top_k": ...}] * 4),
    ("top_p", {"top_p": 0.9}, {}, dropped("top_p", top_p=...), dropped("top_p", top_p=...), {"top_p": 0.9}, {"top_p": 0.9}),
    ("top_k alone", {"top_k": 10}, {},
     dropped("top_k", top_k=...), {"top_k": 10, "temperature": 0.8}, {"top_k": 10, "temperature": ...}, {"top_k": 10, "temperature": ...}),
    ("top_k above 64", {"top_k": 100}, {}, dropped("top_k", top_k=...), {"top_k": 64}, {"top_k": 100}, {"top_k": 100}),
    ("top_k of 0", {"top_k": 0}, {},
     dropped("top_k", top_k=...), "top_k: must be an integer of at least 1", {"top_k": ...}, {"top_k": ...}),
    ("stop_sequences", {"stop_sequences": ["END"]}, {},
     dropped("stop_sequences", stop=...), {"stop": ["END"]}, {"stop": ["END"]}, {"stop": ["END"]}),
    ("five stop_sequences", STOPS, {},
     dropped("stop_sequences", stop=...), "stop_sequences: must hold at most 4", {"stop": [*"ABCDE"]}, {"stop": [*"ABCDE"]}),
    ("a stop_sequence of 65 characters", {"stop_sequences": ["x" * 65]}, {},
     dropped("stop_sequences", stop=...), "stop_sequences.0: must be at most 64 characters", {"stop": ["x" * 65]}, {"stop": ["x" * 65]}),
    ("thinking enabled with a budget", BUDGET, {},
     NOT_SUPPORTED, {**ON, "thinking_token_budget": 500}, NOT_ENFORCED, {**ON, "thinking_token_budget": 500}),
    ("a model's own budget setting: engine", BUDGET, {"budget": "engine"}, *[{**ON, "thinking_token_budget": 500}] * 4),
    ("a model's own budget setting: refuse", BUDGET, {"budget": "refuse"}, NOT_SUPPORTED, NOT_SUPPORTED, NOT_ENFORCED, NOT_SUPPORTED),
    ("thinking enabled without a budget", {"thinking": {"type": "enabled"}}, {}, ON, ON, ON, ON),
    ("thinking adaptive", {"thinking": {"type": "adaptive"}}, {}, ON, ON, DEFAULT, ON),
    ("thinking disabled", {"thinking": {"type": "disabled"}}, {}, OFF, OFF, OFF, OFF),
    ("thinking absent", {}, {}, DEFAULT, OFF, DEFAULT, DEFAULT),
    ("effort within the tiers", {"output_config": {"effort": "low"}, "thinking": {"type": "enabled"}}, TIERS,
     *[{"reasoning_effort": "low"}] * 4),
    ("effort outside the tiers", {**EFFORT_HIGH, "thinking": {"type": "enabled"}}, TIERS,
     NO_SUCH_TIER, {"reasoning_effort": ...}, {"reasoning_effort": "high"}, NO_SUCH_TIER),
    ("effort with no verified tiers", {"output_config": {"effort": "xhigh"}, "thinking": {"type": "enabled"}}, {},
     *[{"reasoning_effort": "xhigh"}] * 4),
    ("effort alone", EFFORT_HIGH, {},
     {**ON, "reasoning_effort": "high"}, {**OFF, "reasoning_effort": ...}, *[{**DEFAULT, "reasoning_effort": "high"}] * 2),
    ("structured output", JSON_FORMAT, {}, dropped("output_config.format", response_format=...), FORMAT, FORMAT, FORMAT),
    ("structured output, old spelling", {"output_format": {"type": "json_schema", "schema": SCHEMA}}, {},
     dropped("output_format", response_format=...), FORMAT, FORMAT, FORMAT),
    ("an unknown format type", UNKNOWN_FORMAT, {},
     dropped("output_config.format", response_format=...), *["output_config.format.type: must be 'json_schema'"] * 3),
    ("tool_choice", CHOICE, {}, dropped("tool_choice", tool_choice=...), *[{"tool_choice": "required"}] * 3),
    ("an image, for a model that takes images", {"messages": [user(PNG)]}, {"images": True},
     says([PNG_PART]), says(IMAGE_NOTE), says([PNG_PART]), says([PNG_PART])),
    ("an image, for a model that reads text", {"messages": [user(PNG)]}, {},
     "messages.0.content.0: this model reads text only", says(IMAGE_NOTE), says([PNG_PART]), says(IMAGE_NOTE)),
    ("an image in a tool result without call", {"messages": [user(result("c1", [PNG]))]}, {},
     "messages.0.content.0.content.0: this model reads text only", says(f"[Result of tool call c1]\n\n{IMAGE_NOTE}"),
     says([{"type": "text", "text": "[Result of tool call c1]"}, PNG_PART]), says(f"[Result of tool call c1]\n\n{IMAGE_NOTE}")),
    ("a document that nobody could read", {"messages": [user(PDF)]}, {},
     "messages.0.content.0: this model reads text only", says(DOCUMENT_NOTE), says(DOCUMENT_NOTE), says(DOCUMENT_NOTE)),
    ("a server tool beside a custom one", {"tools": [SEARCH, TOOL_F]}, {},
     *[dropped("web_search_20250305", tools=[FUNCTION_F])] * 4),
    ("server tools only", {"tools": [SEARCH]}, {},
     *[dropped("web_search_20250305", tools=...)] * 3, "tools: web_search_20250305 cannot be run here"),
    ("a server tool insisted on", {"tools": [SEARCH, TOOL_F], "tool_choice": {"type": "tool", "name": "web_search"}}, {},
     dropped("tool_choice", "web_search_20250305", tool_choice=...), dropped("web_search_20250305", "tool_choice", tool_choice=...),
     dropped("web_search_20250305", "tool_choice", tool_choice=...), "tool_choice.name: 'web_search' is web_search_20250305"),
    ("search_result blocks", {"messages": [user(HIT)]}, {},
     says("Search result: T\nSource: https://e.org\n\nfound"), "messages.0.content.0: search_result blocks are not supported",
     says("Search result: T\nSource: https://e.org\n\nfound"), says("Search result: T\nSource: https://e.org\n\nfound")),
    ("mcp_servers", {"mcp_servers": [{"type": "url", "name": "x", "url": "https://e.org"}]}, {},
     dropped("mcp_servers"), *["mcp_servers: must be empty: connect MCP servers in your client instead"] * 3),
    ("empty mcp_servers", {"mcp_servers": []}, {}, *[dropped()] * 4),
]
# fmt: on

CELLS = [
    pytest.param(dialect, changes, settings, cell, id=f"{promise} / {dialect}")
    for promise, changes, settings, *cells in ROWS
    for dialect, cell in zip(DIALECTS, cells, strict=True)
]


@pytest.mark.parametrize(("dialect", "changes", "settings", "cell"), CELLS)
def test_a_cell_of_the_table(
    dialect: str, changes: dict[str, Any], settings: dict[str, Any], cell: str | dict[str, Any]
) -> None:
    under = policy(dialect, **settings)
    if isinstance(cell, str):
        assert cell in refusal(under, **changes)
        return
    translation = ask(under, **changes)
    sent = json.loads(translation.body)
    expected = dict(cell)
    names = expected.pop("dropped", ())
    assert set(translation.dropped) == set(names)
    assert {name: sent.get(name, ...) for name in expected} == expected


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_every_dialect_accepts_changes_nothing_it_does_not_name(dialect: str) -> None:
    changes = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "cache_control": {"type": "ephemeral"},
        "inference_geo": None,
    }
    assert json.loads(ask(policy(dialect), **changes).body) == json.loads(ask(policy(dialect)).body)
    assert ask(policy(dialect), **changes).dropped == ()


@pytest.mark.parametrize(
    ("dialect", "warned", "told_as_text"),
    [
        ("token-factory", False, False),
        ("pooled", True, False),
        ("tokenify", True, False),
        ("anthropic", True, True),
    ],
)
def test_server_tool_history(dialect: str, warned: bool, told_as_text: bool) -> None:
    translation = ask(policy(dialect), messages=SERVER_HISTORY)
    assert translation.dropped == ("server_tool_use", "web_search_tool_result")
    assert bool(translation.warnings) is warned
    said = json.loads(translation.body)["messages"][1]["content"]
    assert said.endswith("a")
    assert ("https://e.org" in said) is told_as_text


@pytest.mark.parametrize(
    ("dialect", "warned"),
    [("token-factory", False), ("pooled", True), ("tokenify", True), ("anthropic", True)],
)
def test_a_server_tool_left_out_is_logged(dialect: str, warned: bool) -> None:
    assert bool(ask(policy(dialect), tools=[SEARCH, TOOL_F]).warnings) is warned


@pytest.mark.parametrize(
    ("dialect", "offered"),
    [("token-factory", True), ("pooled", False), ("tokenify", True), ("anthropic", True)],
)
def test_typed_tools_of_the_client(dialect: str, offered: bool) -> None:
    translation = ask(policy(dialect), tools=[{"type": "bash_20250124", "name": "bash"}, TOOL_F])
    names = [tool["function"]["name"] for tool in json.loads(translation.body)["tools"]]
    assert names == (["bash", "F"] if offered else ["F"])
    assert ("bash_20250124" in translation.dropped) is not offered


@pytest.mark.parametrize(("dialect", "reasoning", "omitted"), [("token-factory", "thinking", True), ("pooled", "thinking", True),
                                                              ("tokenify", "text", False), ("anthropic", "thinking", True)])  # fmt: skip
def test_how_the_reasoning_is_to_be_told(dialect: str, reasoning: str, omitted: bool) -> None:
    translation = ask(policy(dialect), thinking={"type": "enabled", "display": "omitted"})
    assert (translation.reasoning, translation.display_omitted) == (reasoning, omitted)
    assert ask(policy(dialect), thinking={"type": "disabled"}).reasoning == "drop"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_d15_nothing_of_an_earlier_request_is_in_a_later_one(dialect: str) -> None:
    under = policy(dialect)
    first = ask(under)
    secret = [*body(messages=[user("SECRET")])["messages"]]
    ask(
        under,
        messages=secret,
        system="SECRET",
        tools=[{**TOOL_F, "name": "SECRET.tool"}],
        stop_sequences=["SECRET"],
        temperature=1,
    )
    assert ask(under) == first
    assert under == policy(dialect)
