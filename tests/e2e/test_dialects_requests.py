"""The request side of the four dialects: one row per promise, one cell per dialect, each asserted
by what goes upstream.

Reads like the document: `Up` is what the backend gets, `Dropped` what it does not get (and the
client is told), `Refused` a 400.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.doubles.backend import ScriptedBackend
from tests.doubles.frames import ABSENT, Canned
from tests.doubles.proxy import REQ, Ferrule, assert_error
from tests.e2e.conftest import DIALECTS
from tests.e2e.test_cases_models import COUNT, PIXEL
from tests.e2e.test_cases_tools import F_TOOL, SEARCH_TOOL

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "schema": SCHEMA}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
LOOK = [{"role": "user", "content": [{"type": "text", "text": "look"}, IMAGE]}]
FOUND = {
    "type": "search_result",
    "source": "s",
    "title": "t",
    "content": [{"type": "text", "text": "found"}],
}
TF_BUDGET = (
    '"thinking" is not supported for this model. Remove the "thinking" parameter or use a model '
    "that supports extended thinking."
)


@dataclass(frozen=True)
class Up:
    """200, and upstream these members (a dotted path reaches inside; ABSENT: it must not be
    there)."""

    members: dict[str, Any]


@dataclass(frozen=True)
class Dropped:
    """200, the member does not go upstream, and the client is told its name."""

    upstream: str
    received: str = ""


@dataclass(frozen=True)
class Refused:
    parts: tuple[str, ...] = ()
    status: int = 400


@dataclass(frozen=True)
class Says:
    """200, and the conversation upstream contains (or does not contain) these texts."""

    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Thinking:
    """200, and the backend's switch for thinking: on, off or default (not touched)."""

    state: str


def up(**members: Any) -> Up:
    return Up({name.replace("__", "."): value for name, value in members.items()})


NOTE = Says(has=("[image omitted: this model reads text only]",), lacks=(PIXEL,))
FORWARDED = Says(has=(f"data:image/png;base64,{PIXEL}",))
SCHEMA_SENT = up(response_format__json_schema__schema=SCHEMA)
ONLY_F = up(
    tools=[
        {
            "type": "function",
            "function": {
                "name": "F",
                "description": "does F",
                "parameters": F_TOOL["input_schema"],
            },
        }
    ]
)

# row: what the client sends; token-factory, pooled, tokenify, anthropic
ROWS: dict[str, tuple[dict[str, Any], Any, Any, Any, Any]] = {
    "top_p": ({"top_p": 0.9}, Dropped("top_p"), Dropped("top_p"), up(top_p=0.9), up(top_p=0.9)),
    "top_k": ({"top_k": 20}, Dropped("top_k"), up(top_k=20), up(top_k=20), up(top_k=20)),
    "top_k above 64": (
        {"top_k": 100},
        Dropped("top_k"),
        up(top_k=64),
        up(top_k=100),
        up(top_k=100),
    ),
    "temperature alone": (
        {"temperature": 0.5},
        up(temperature=0.5),
        up(temperature=0.5, top_k=40),
        *[up(temperature=0.5, top_k=ABSENT)] * 2,
    ),
    "top_k alone": (
        {"top_k": 20},
        up(temperature=ABSENT),
        up(temperature=0.8),
        up(temperature=ABSENT),
        up(temperature=ABSENT),
    ),
    "temperature over 1": ({"temperature": 1.5}, *[Refused(("temperature",))] * 4),
    "temperature below 0": ({"temperature": -0.1}, *[Refused(("temperature",))] * 4),
    "max_tokens absent": ({"max_tokens": None}, *[Refused(("max_tokens",))] * 4),
    "max_tokens 100,000": (
        {"max_tokens": 100_000},
        up(max_tokens=100_000),
        up(max_tokens=65_536),
        *[up(max_tokens=100_000)] * 2,
    ),
    "stop_sequences": (
        {"stop_sequences": ["END"]},
        Dropped("stop", "stop_sequences"),
        *[up(stop=["END"])] * 3,
    ),
    "five stop_sequences": (
        {"stop_sequences": list("abcde")},
        Dropped("stop", "stop_sequences"),
        Refused(("stop_sequences",)),
        *[up(stop=list("abcde"))] * 2,
    ),
    "a stop sequence of 65": (
        {"stop_sequences": ["x" * 65]},
        Dropped("stop", "stop_sequences"),
        Refused(("stop_sequences",)),
        *[up(stop=["x" * 65])] * 2,
    ),
    "thinking with a budget": (
        {"thinking": {"type": "enabled", "budget_tokens": 1500}, "max_tokens": 2000},
        Refused((TF_BUDGET,)),
        up(thinking_token_budget=1500),
        Refused(("budget", '"disabled"')),
        up(thinking_token_budget=1500),
    ),
    "thinking without a budget": ({"thinking": {"type": "enabled"}}, *[Thinking("on")] * 4),
    "thinking adaptive": (
        {"thinking": {"type": "adaptive"}},
        Thinking("on"),
        Thinking("on"),
        Thinking("default"),
        Thinking("on"),
    ),
    "thinking disabled": ({"thinking": {"type": "disabled"}}, *[Thinking("off")] * 4),
    "thinking absent": (
        {},
        Thinking("default"),
        Thinking("off"),
        Thinking("default"),
        Thinking("default"),
    ),
    "effort": (
        {"output_config": {"effort": "low"}},
        up(reasoning_effort="low"),
        Says(),
        *[up(reasoning_effort="low")] * 2,
    ),
    "effort outside the tiers": (
        {"model": "tiers", "output_config": {"effort": "high"}},
        Refused(("effort", "low", "medium")),
        Says(),
        Says(),
        Refused(("effort", "low", "medium")),
    ),
    "structured output": (
        {"output_config": {"format": FORMAT}},
        Dropped("response_format", "output_config.format"),
        *[SCHEMA_SENT] * 3,
    ),
    "structured output, old name": (
        {"output_format": FORMAT},
        Dropped("response_format", "output_format"),
        SCHEMA_SENT,
        Says(),
        SCHEMA_SENT,
    ),
    "an unknown format": (
        {"output_config": {"format": {"type": "yaml"}}},
        Dropped("response_format", "output_config.format"),
        *[Refused(("output_config.format",))] * 3,
    ),
    "tool_choice": (
        {"tools": [F_TOOL], "tool_choice": {"type": "any"}},
        Dropped("tool_choice"),
        *[up(tool_choice="required")] * 3,
    ),
    "an image, text model": (
        {"messages": LOOK},
        Refused(("messages.0.content.1", "image")),
        NOTE,
        FORWARDED,
        NOTE,
    ),
    "an image, seeing model": (
        {"messages": LOOK, "model": "seeing"},
        FORWARDED,
        NOTE,
        FORWARDED,
        FORWARDED,
    ),
    "server tools": ({"tools": [SEARCH_TOOL, F_TOOL]}, *[ONLY_F] * 4),
    "a server tool forced": (
        {"tools": [SEARCH_TOOL, F_TOOL], "tool_choice": {"type": "tool", "name": "web_search"}},
        up(tool_choice=ABSENT),
        up(tool_choice=ABSENT),
        up(tool_choice=ABSENT),
        Refused(("web_search",)),
    ),
    "search results": (
        {"messages": [{"role": "user", "content": [FOUND]}]},
        Says(has=("found",)),
        Refused(("search_result",)),
        Says(has=("found",)),
        Says(has=("found",)),
    ),
    "mcp_servers": (
        {"mcp_servers": [{"type": "url", "name": "x", "url": "http://x"}]},
        Dropped("mcp_servers"),
        *[Refused(("mcp_servers",))] * 3,
    ),
    "no mcp_servers": ({"mcp_servers": []}, *[Says()] * 4),
    "an unknown model": (
        {"model": "claude-3-5-sonnet-20241022"},
        Refused(),
        *[Refused((), 404)] * 3,
    ),
    "the [1m] suffix": ({"model": "m[1m]"}, *[up(model="m")] * 4),
    "metadata": ({"metadata": {"user_id": "u"}}, *[up(metadata=ABSENT)] * 4),
}

CELLS = [
    (dialect, row, ROWS[row][0], cell)
    for row in ROWS
    for dialect, cell in zip(DIALECTS, ROWS[row][1:], strict=True)
]


@pytest.mark.parametrize(
    ("dialect", "row", "members", "cell"),
    CELLS,
    ids=[f"{row}-{dialect}" for dialect, row, *_ in CELLS],
)
def test_request_side(
    dialects: dict[str, Ferrule],
    wide_backend: ScriptedBackend,
    dialect: str,
    row: str,
    members: dict[str, Any],
    cell: Any,
) -> None:
    answer = dialects[dialect].ask(**members)
    if isinstance(cell, Refused):
        kind = "not_found_error" if cell.status == 404 else "invalid_request_error"
        assert_error(answer, cell.status, kind, *cell.parts)
        assert wide_backend.requests == []
        return
    assert answer.status == 200, answer.text
    check(cell, wide_backend.last.json, answer.headers["x-ferrule-dropped"] or "")


def check(cell: Any, upstream: dict[str, Any], dropped: str) -> None:
    match cell:
        case Up(members):
            for path, value in members.items():
                assert reach(upstream, path) == value, (path, upstream)
        case Dropped(name, received):
            assert name not in upstream
            assert (received or name) in dropped.split(","), dropped
        case Says(has, lacks):
            text = json.dumps(upstream["messages"], ensure_ascii=False)
            assert not [part for part in has if part not in text], text
            assert not [part for part in lacks if part in text], text
        case Thinking(state):
            assert thinking_state(upstream) == state, upstream


def reach(value: Any, path: str) -> Any:
    for key in path.split("."):
        value = value.get(key, ABSENT) if isinstance(value, dict) else ABSENT
    return value


def thinking_state(upstream: dict[str, Any]) -> str:
    switch = upstream.get("chat_template_kwargs", {}).get("enable_thinking")
    if switch is False or upstream.get("reasoning_effort") == "none":
        return "off"
    return "default" if switch is None else "on"


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [("token-factory", "estimate"), ("pooled", 404), ("tokenify", 77), ("anthropic", 77)],
    ids=DIALECTS,
)
def test_count_tokens(
    dialects: dict[str, Ferrule], wide_backend: ScriptedBackend, dialect: str, expected: Any
) -> None:
    answer = dialects[dialect].ask(COUNT, system="S", tools=[F_TOOL])
    if expected == 404:
        assert_error(answer, 404, "not_found_error")
        return
    count = answer.json()["input_tokens"]
    asked = [seen for seen in wide_backend.others if seen.target == "/tokenize"]
    if expected == "estimate":
        assert asked == []
        assert dialects[dialect].ask(COUNT).json()["input_tokens"] < count
    else:
        assert count == expected
        assert len(asked) == 1


@pytest.mark.parametrize("dialect", ["token-factory", "anthropic"])
def test_effort_within_the_tiers(
    dialects: dict[str, Ferrule], wide_backend: ScriptedBackend, dialect: str
) -> None:
    assert dialects[dialect].ask(model="tiers", output_config={"effort": "medium"}).status == 200
    assert wide_backend.last.json["reasoning_effort"] == "medium"


@pytest.mark.parametrize("dialect", ["pooled", "tokenify"])
def test_c17_skipped_tools_are_logged(
    dialects: dict[str, Ferrule], wide_backend: ScriptedBackend, dialect: str
) -> None:
    dialects[dialect].ask(tools=[{"type": "computer_20250124", "name": "computer"}, F_TOOL])
    assert "computer_20250124" in dialects[dialect].log()


def test_a_model_overrides_single_knobs(
    new_proxy: Callable[..., Ferrule],
    wide_backend: ScriptedBackend,
    dialect_config: Callable[[str], dict[str, Any]],
) -> None:
    config = dialect_config("anthropic")
    config["models"][0]["dialect"] = {
        "reasoning": "text",
        "stop_reasons": ["end_turn"],
        "media": "forward_or_refuse",
    }
    config["models"][0]["thinking_budget"] = "refuse"
    proxy = new_proxy(config)
    wide_backend.play(Canned("answer", reasoning="plan ", finish="content_filter"))
    message = proxy.message()
    assert [block["type"] for block in message["content"]] == ["text"]
    assert message["stop_reason"] == "end_turn"
    assert_error(proxy.ask(messages=LOOK), 400, "invalid_request_error", "messages.0.content.1")
    budget = REQ(thinking={"type": "enabled", "budget_tokens": 1500}, max_tokens=2000)
    assert_error(
        proxy.client.post("/v1/messages", budget), 400, "invalid_request_error", "thinking"
    )
