"""Names that backends take stay; others get one name of their own, everywhere and in every turn."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.messages.requests import ask, assistant, call, policy, result, upstream, user

from ferrule.messages.tool_names import ToolNames

LONG = "mcp__srv.tool/" + "long" * 20


def test_good_names_stay() -> None:
    names = ToolNames(["Bash", "mcp__server__tool", "a-b_C9", "x" * 64])
    assert [names.upstream(name) for name in ("Bash", "mcp__server__tool", "a-b_C9", "x" * 64)] == [
        "Bash",
        "mcp__server__tool",
        "a-b_C9",
        "x" * 64,
    ]
    assert names.changed == ()


def test_the_same_name_in_every_turn() -> None:
    assert (
        ToolNames([LONG]).upstream(LONG)
        == ToolNames(["other", LONG, "Bash"]).upstream(LONG)
        == ToolNames([]).upstream(LONG)
    )


@given(st.lists(st.text(min_size=1, max_size=80), unique=True, max_size=20))
def test_names_are_taken_by_backends_and_never_meet(names: list[str]) -> None:
    mapped = ToolNames(names)
    made = [mapped.upstream(name) for name in names]
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in made)
    assert len(set(made)) == len(names)
    assert {client: upstream for upstream, client in mapped.changed} == {
        n: m for n, m in zip(names, made, strict=True) if n != m
    }


def test_c13_one_name_in_tools_history_and_choice() -> None:
    shortened = ToolNames([LONG]).upstream(LONG)
    tools: list[dict[str, Any]] = [
        {"name": LONG, "input_schema": {}},
        {"name": shortened, "input_schema": {}},
    ]
    messages = [
        user("go"),
        assistant(call("c1", LONG), call("c2", shortened)),
        user(result("c1", "r"), result("c2", "r")),
    ]
    sent = upstream(
        policy(), tools=tools, messages=messages, tool_choice={"type": "tool", "name": LONG}
    )
    offered = [tool["function"]["name"] for tool in sent["tools"]]
    assert offered[1] == shortened != offered[0]
    assert sent["tool_choice"]["function"]["name"] == offered[0]
    assert [one["function"]["name"] for one in sent["messages"][1]["tool_calls"]] == offered


def test_c13_the_client_sees_its_own_name() -> None:
    translation = ask(tools=[{"name": LONG, "input_schema": {}}])
    assert [client for _, client in translation.tool_names] == [LONG]
