"""Tools on offer, deferred and typed ones, and tool_choice in all its forms."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.messages.requests import (
    TOOL_F,
    ask,
    assistant,
    call,
    policy,
    raw,
    refusal,
    result,
    system,
    text,
    upstream,
    user,
)

from ferrule.messages import decode, translate

DEFERRED = {**TOOL_F, "name": "D", "defer_loading": True}
PLACEHOLDER = {
    "name": "DeferredToolPlaceholder",
    "description": "x",
    "input_schema": {"type": "object"},
    "defer_loading": True,
}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
COMPUTER = {
    "type": "computer_20250124",
    "name": "computer",
    "display_width_px": 1,
    "display_height_px": 1,
}
TOOL_SEARCH = {"type": "tool_search_tool_regex_20251119", "name": "tool_search"}
LOADED = [
    user("go"),
    assistant(call("c1", "ToolSearch")),
    user(result("c1", [{"type": "tool_reference", "tool_name": "D"}]), text("Tool loaded.")),
]


def names(**changes: Any) -> list[str] | None:
    sent = upstream(**changes)
    return [tool["function"]["name"] for tool in sent["tools"]] if "tools" in sent else None


def test_a_custom_tool_goes_up_as_a_function() -> None:
    tool = {
        **TOOL_F,
        "strict": True,
        "eager_input_streaming": True,
        "cache_control": {"type": "ephemeral"},
        "input_examples": [{"a": 1}],
    }
    function = {
        "name": "F",
        "description": "does F",
        "parameters": TOOL_F["input_schema"],
        "strict": True,
    }
    assert upstream(tools=[tool])["tools"] == [{"type": "function", "function": function}]
    assert "strict" not in upstream(tools=[{**TOOL_F, "strict": False}])["tools"][0]["function"]


@pytest.mark.parametrize("type_", [..., None, "custom"])
def test_three_ways_to_be_custom(type_: Any) -> None:
    tool = TOOL_F if type_ is ... else {**TOOL_F, "type": type_}
    assert names(tools=[tool]) == ["F"]


@pytest.mark.parametrize("schema", [..., None])
def test_a_tool_without_a_schema_takes_nothing(schema: Any) -> None:
    tool = {"name": "F"} if schema is ... else {"name": "F", "input_schema": schema}
    assert upstream(tools=[tool])["tools"][0]["function"] == {
        "name": "F",
        "parameters": {"type": "object", "properties": {}},
    }


def test_assertion_20_schemas_go_up_unchanged() -> None:
    schema = (
        '{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object", "properties":{'
        '"z":{"type":"integer","exclusiveMinimum":0,'
        '"maximum":9007199254740991,"multipleOf":0.10},"a":{"anyOf":[{"const":1.0},{"format":"uri","pattern":"^\\\\d+$"}]}},'
        '"propertyNames":{"type":"string"},"additionalProperties":{}}'
    )
    whole = raw(tools=[{"name": "F", "input_schema": {}}]).replace(
        b'"input_schema":{}', b'"input_schema":' + schema.encode()
    )
    sent = translate(decode(whole), policy(), "m").body
    assert schema.encode() in sent
    assert json.loads(sent)["tools"][0]["function"]["parameters"] == json.loads(schema)


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ([TOOL_F, {"input_schema": {}}], "tools.1.name: must be a non-empty string"),
        ([{"name": "", "input_schema": {}}], "tools.0.name: must be a non-empty string"),
        (
            [{"name": "F", "input_schema": "x"}],
            "tools: the tool 'F': input_schema must be an object",
        ),
        ([{"name": "F", "description": 5}], "tools: the tool 'F': description must be a string"),
    ],
)
def test_tools_that_are_none(tools: list[Any], says: str) -> None:
    assert refusal(tools=tools) == says


@pytest.mark.parametrize("tools", [[], None, ..., [PLACEHOLDER]])
def test_assertion_33_an_empty_list_is_never_sent(tools: Any) -> None:
    sent = upstream(tools=tools, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert {"tools", "tool_choice", "parallel_tool_calls"} & set(sent) == set()


# Deferred tools


def test_assertion_18_hidden_until_a_reference_names_it() -> None:
    tools = [DEFERRED, TOOL_F, PLACEHOLDER]
    assert names(tools=tools) == ["F"]
    assert names(tools=tools, messages=LOADED) == ["F", "D"]
    assert (
        upstream(tools=tools, messages=LOADED)["messages"][2]["content"]
        == "Tool D is now available."
    )


def test_k05_tool_search_of_a_server() -> None:
    tools = [TOOL_SEARCH, DEFERRED]
    assert names(tools=tools) is None
    assert names(tools=tools, messages=LOADED) == ["D"]
    assert b"defer_loading" not in ask(tools=tools, messages=LOADED).body
    found = {
        "type": "tool_search_tool_search_result",
        "tool_references": [{"type": "tool_reference", "tool_name": "D"}],
    }
    by_server = [
        user("go"),
        assistant({"type": "tool_search_tool_result", "tool_use_id": "s", "content": found}),
        user("on"),
    ]
    assert names(tools=tools, messages=by_server) == ["D"]


def test_loaded_tools_stand_behind_the_others_in_the_order_of_loading() -> None:
    second = {**DEFERRED, "name": "B"}
    loaded = [
        *LOADED,
        assistant(call("c2", "ToolSearch")),
        user(result("c2", [{"type": "tool_reference", "tool_name": "B"}])),
    ]
    assert names(tools=[second, DEFERRED, TOOL_F], messages=LOADED) == ["F", "D"]
    assert names(tools=[second, DEFERRED, TOOL_F], messages=loaded) == ["F", "D", "B"]


def test_tools_come_and_go_by_system_messages() -> None:
    add = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "D"}}
    remove = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "D"}}
    define = {
        "type": "tool_addition",
        "tool": {"type": "tool_definition", "definition": {**TOOL_F, "name": "N"}},
    }
    tools = [TOOL_F, DEFERRED]
    assert names(tools=tools, messages=[user("a"), system(add)]) == ["F", "D"]
    assert names(tools=tools, messages=[user("a"), system(add), system(remove)]) == ["F"]
    assert names(tools=tools, messages=[user("a"), system(add), system(remove), system(add)]) == [
        "F",
        "D",
    ]
    assert names(tools=tools, messages=[user("a"), system(define)]) == ["F", "N"]
    for broken in (5, {"input_schema": {}}):
        block = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": broken}}
        assert names(tools=tools, messages=[user("a"), system(block)]) == ["F"]
    gone = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "F"}}
    assert names(tools=tools, messages=[user("a"), system(gone)]) is None


def test_a_deferred_tool_that_is_insisted_on_is_shown() -> None:
    sent = upstream(tools=[TOOL_F, DEFERRED], tool_choice={"type": "tool", "name": "D"})
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "D"}}
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["F", "D"]


def test_a_tool_that_only_code_may_call_is_not_offered() -> None:
    assert names(
        tools=[TOOL_F, {**TOOL_F, "name": "X", "allowed_callers": ["code_execution_20250825"]}]
    ) == ["F"]
    assert names(tools=[{**TOOL_F, "allowed_callers": ["direct", "code_execution_20250825"]}]) == [
        "F"
    ]


# Server tools


def test_c15_a_server_tool_insisted_on() -> None:
    insisted = {"tools": [SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}}
    assert "web_search" in refusal(**insisted)
    for dialect in ("token-factory", "pooled", "tokenify"):
        assert {"tools", "tool_choice"} & set(upstream(policy(dialect), **insisted)) == set()


def test_c17_an_unknown_typed_tool_is_never_dropped_in_silence() -> None:
    for dialect in ("token-factory", "pooled", "tokenify", "anthropic"):
        translation = ask(policy(dialect), tools=[COMPUTER, TOOL_F])
        assert translation.dropped == ("computer_20250124",)
        assert bool(translation.warnings) is (dialect != "token-factory")
        assert names(under=policy(dialect), tools=[COMPUTER, TOOL_F]) == ["F"]


def test_assertion_35_server_tools_alone_beside_others_and_typed_ones() -> None:
    assert (
        refusal(tools=[SEARCH])
        == "tools: web_search_20250305 cannot be run here; offer at least one tool of your own"
    )
    assert names(tools=[SEARCH, TOOL_F]) == ["F"]
    assert names(tools=[{"type": "bash_20250124", "name": "bash"}]) == ["bash"]


# tool_choice

CHOICES: list[tuple[dict[str, Any], Any]] = [
    ({"type": "auto"}, "auto"),
    ({"type": "any"}, "required"),
    ({"type": "none"}, "none"),
    ({"type": "tool", "name": "F"}, {"type": "function", "function": {"name": "F"}}),
]


@pytest.mark.parametrize(("choice", "sent"), CHOICES)
def test_c19_every_form_of_tool_choice(choice: dict[str, Any], sent: Any) -> None:
    plain = upstream(tools=[TOOL_F], tool_choice=choice)
    assert (plain["tool_choice"], plain.get("parallel_tool_calls")) == (sent, None)
    one_only = ask(tools=[TOOL_F], tool_choice={**choice, "disable_parallel_tool_use": True})
    assert one_only.single_tool_call
    assert (
        upstream(tools=[TOOL_F], tool_choice={**choice, "disable_parallel_tool_use": True})[
            "parallel_tool_calls"
        ]
        is False
    )
    dropped = ask(
        policy("token-factory"),
        tools=[TOOL_F],
        tool_choice={**choice, "disable_parallel_tool_use": True},
    )
    assert (dropped.dropped, dropped.single_tool_call) == (("tool_choice",), False)
    assert b"tool_choice" not in dropped.body


@pytest.mark.parametrize(("choice", "sent"), CHOICES)
def test_assertion_34_tool_choice_for_an_engine_that_takes_strings(
    choice: dict[str, Any], sent: Any
) -> None:
    both = upstream(
        policy(engine="llamacpp"), tools=[TOOL_F, {**TOOL_F, "name": "G"}], tool_choice=choice
    )
    forced = choice["type"] == "tool"
    assert both["tool_choice"] == ("required" if forced else sent)
    assert [tool["function"]["name"] for tool in both["tools"]] == (["F"] if forced else ["F", "G"])


def test_tool_choice_that_makes_no_sense() -> None:
    assert (
        refusal(tools=[TOOL_F], tool_choice={"type": "tool", "name": "G"})
        == "tool_choice.name: must be one of the tools offered, not 'G'"
    )
    assert (
        refusal(tools=[TOOL_F], tool_choice={"type": "some"})
        == "tool_choice.type: must be 'auto', 'any', 'tool' or 'none'"
    )
    assert "tool_choice" not in upstream(tool_choice={"type": "any"})
    assert "tool_choice" not in upstream(tools=[TOOL_F], tool_choice=None)


def test_auto_is_no_loss_where_tool_choice_is_not_taken() -> None:
    assert ask(policy("token-factory"), tools=[TOOL_F], tool_choice={"type": "auto"}).dropped == ()
