"""Conversations in every order that clients send, and what the backend then gets."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from tests.messages.requests import (
    PNG,
    PNG_PART,
    answered,
    ask,
    assistant,
    call,
    called,
    policy,
    raw,
    refusal,
    result,
    system,
    text,
    translated,
    upstream,
    user,
)

from ferrule.engines import PROFILES
from ferrule.messages import decode, translate
from ferrule.messages.conversation import ERROR, INTERRUPTED

NO_RESULT = INTERRUPTED.decode().strip('"')
FAILED = ERROR.decode().strip('"')
GO, OK = user("go"), {"role": "user", "content": "go"}


def says(content: Any, *calls: Any, **more: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": content,
        **more,
        **({"tool_calls": list(calls)} if calls else {}),
    }


def test_d01_results_first_then_the_text_in_order() -> None:
    turn = user(text("fyi"), result("c1", "r1"), result("c2", "r2"), text("go"))
    assert translated([GO, assistant(call("c1"), call("c2")), turn]) == [
        OK,
        says("", called("c1"), called("c2")),
        answered("c1", "r1"),
        answered("c2", "r2"),
        {"role": "user", "content": "fyi\n\ngo"},
    ]


@pytest.mark.parametrize("content", [..., None, [], "", [text("")]])
def test_d03_a_result_without_content(content: Any) -> None:
    assert translated([GO, assistant(call("c1")), user(result("c1", content))])[2] == answered(
        "c1", ""
    )


def test_d07_thinking_is_never_plain_text() -> None:
    history = [
        GO,
        assistant({"type": "thinking", "thinking": "t", "signature": "s"}, text("a")),
        GO,
    ]
    for engine, field in (
        ("vllm", "reasoning"),
        ("vllm_old", "reasoning_content"),
        ("sglang", "reasoning_content"),
        ("llamacpp", "reasoning_content"),
    ):
        assert translated(history, policy(engine=engine))[1] == says("a", **{field: "t"})
    assert {profile.reasoning_history_field for profile in PROFILES.values()} == {
        "reasoning",
        "reasoning_content",
    }


def test_d09_calls_alone_have_empty_content() -> None:
    assert translated([GO, assistant(call("c1")), user(result("c1", "r"))])[1] == says(
        "", called("c1")
    )


def test_c11_arguments_keep_bytes_and_key_order() -> None:
    spelled = '{"z": 1.50, "a":{"y":2,"b":3e2}, "n":12345678901234567890, "u":"\\u00e9é"}'
    whole = (
        raw(messages=[GO, assistant(call("c1")), user(result("c1", "r"))])
        .decode()
        .replace('"input":{}', f'"input":{spelled}')
        .encode()
    )
    first = translate(decode(whole), policy(), "m").body
    assert spelled.replace("\\", "\\\\").replace('"', '\\"').encode() in first
    assert translate(decode(whole), policy(), "m").body == first


@pytest.mark.parametrize(
    ("signature", "thinking", "reasoning"),
    [
        (None, "t", "t"),
        ("", "t", "t"),
        (..., "t", "t"),
        ("foreign" * 100, "t", "t"),
        ("ferrule1.***", "t", "t"),
        (
            "ferrule1." + base64.urlsafe_b64encode("the exact 北".encode()).decode().rstrip("="),
            "",
            "the exact 北",
        ),
        ("pooled1." + base64.urlsafe_b64encode(b"exact").decode().rstrip("="), "shown", "exact"),
    ],
)
def test_e05_a_block_sent_back_restores_its_reasoning(
    signature: Any, thinking: str, reasoning: str
) -> None:
    block = {"type": "thinking", "thinking": thinking, "signature": signature}
    block = {name: value for name, value in block.items() if value is not ...}
    assert translated([GO, assistant(block, text("a")), GO])[1] == says("a", reasoning=reasoning)


def test_assertion_29_history_with_every_kind_of_thinking() -> None:
    blocks = [
        {"type": "thinking", "thinking": "one", "signature": ""},
        {"type": "redacted_thinking", "data": "SECRET"},
        {"type": "thinking", "thinking": "", "signature": "ErUB" * 500},
        {"type": "thinking", "thinking": "two", "signature": "ErUB"},
    ]
    for dialect in ("token-factory", "pooled", "tokenify", "anthropic"):
        assert translated([GO, assistant(*blocks, text("a")), GO], policy(dialect))[1] == says(
            "a", reasoning="one\n\ntwo"
        )


def test_assertion_27_swapped_results_error_and_missing_content() -> None:
    turn = user(
        result("c3"),
        result("c2", "boom", is_error=True),
        result("c1", "r1", is_error=False),
        text("then"),
    )
    assert translated([GO, assistant(call("c1"), call("c2"), call("c3")), turn])[2:] == [
        answered("c3", ""),
        answered("c2", f"{FAILED}\nboom"),
        answered("c1", "r1"),
        {"role": "user", "content": "then"},
    ]


def test_assertion_50_one_id_twice_pairs_by_position() -> None:
    history = [
        GO,
        assistant(call("c1", a=1)),
        user(result("c1", "first")),
        assistant(call("c1", a=2)),
        user(result("c1", "second")),
    ]
    assert translated(history)[1:] == [
        says("", called("c1", arguments='{"a":1}')),
        answered("c1", "first"),
        says("", called("c1", arguments='{"a":2}')),
        answered("c1", "second"),
    ]


def test_assertion_50_one_id_twice_in_one_turn() -> None:
    conversation = translated(
        [
            GO,
            assistant(call("c1", a=1), call("c1", a=2)),
            user(result("c1", "x"), result("c1", "y")),
        ]
    )
    assert conversation[2:] == [answered("c1", "x"), answered("c1", "y")]


def test_a_call_without_result_gets_a_short_one() -> None:
    history = [
        GO,
        assistant(text("a"), call("c1"), call("c2")),
        user(result("c2", "r2"), text("stop")),
    ]
    assert translated(history)[2:] == [
        answered("c2", "r2"),
        answered("c1", NO_RESULT),
        {"role": "user", "content": "stop"},
    ]
    assert translated([GO, assistant(call("c1"))])[2:] == [answered("c1", NO_RESULT)]


def test_a_result_without_call_becomes_user_text() -> None:
    assert translated([user(result("c9", [text("r")]), text("go"))]) == [
        {"role": "user", "content": "[Result of tool call c9]\n\nr\n\ngo"}
    ]
    again = [GO, assistant(call("c1")), user(result("c1", "r")), user(result("c1", "late"))]
    assert translated(again)[3] == {"role": "user", "content": "[Result of tool call c1]\n\nlate"}


def test_a_result_further_down_still_follows_its_call() -> None:
    history = [
        GO,
        assistant(call("c1"), call("c2")),
        system("note"),
        user(result("c1", "r1")),
        user(result("c2", "r2")),
    ]
    assert translated(history)[1:] == [
        says("", called("c1"), called("c2")),
        answered("c1", "r1"),
        answered("c2", "r2"),
        {"role": "system", "content": "note"},
    ]


def test_assistant_turns_stay_apart_across_results() -> None:
    history = [GO, assistant(call("c1")), user(result("c1", "r")), assistant("done"), user("more")]
    assert [message["role"] for message in translated(history)] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


def test_two_assistant_messages_in_a_row_are_one() -> None:
    thought = {"type": "thinking", "thinking": "t", "signature": ""}
    history = [
        GO,
        assistant(thought, text("a"), call("c1")),
        assistant(thought, text("b"), call("c2")),
        user(result("c2", "r2"), result("c1", "r1")),
    ]
    assert translated(history)[1:] == [
        says("a\n\nb", called("c1"), called("c2"), reasoning="t\n\nt"),
        answered("c2", "r2"),
        answered("c1", "r1"),
    ]


def test_text_after_a_call_is_moved_before_it() -> None:
    assert translated([GO, assistant(text("a"), call("c1"), text("b")), user(result("c1", "r"))])[
        1
    ] == says("a\n\nb", called("c1"))


@pytest.mark.parametrize("empty", ["", [], [text("")], None])
def test_assertion_51_empty_messages_are_left_out(empty: Any) -> None:
    nothing = {"role": "user", "content": empty}
    assert translated([GO, {"role": "assistant", "content": empty}, nothing, GO]) == [OK, OK]
    assert translated([nothing]) == [{"role": "user", "content": ""}]


def test_assertion_51_any_order_of_roles() -> None:
    assert translated([assistant("a"), GO]) == [says("a"), OK]
    assert translated([GO, GO]) == [OK, OK]
    assert translated([system("S"), GO]) == [{"role": "system", "content": "S"}, OK]
    assert translated([system("S")]) == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": ""},
    ]


def test_assertion_51_a_prefill_is_gone_on_from() -> None:
    prefill = [GO, assistant("The answer is")]
    sent = upstream(messages=prefill)
    assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)
    assert sent["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False}
    assert "continue_final_message" not in upstream(
        policy(engine="llamacpp"), messages=prefill
    )  # it does so unasked
    assert "continue_final_message" not in upstream(policy(can_continue=False), messages=prefill)
    assert "continue_final_message" not in upstream(messages=prefill, thinking={"type": "enabled"})
    assert "continue_final_message" not in upstream(messages=[GO])
    assert "continue_final_message" not in upstream(messages=[GO, assistant(text("a"), call("c1"))])


# System messages in the middle

LATER = [GO, system("R1"), user("u2")]


def test_assertion_01_string_and_list_form_are_the_same() -> None:
    listed = [
        GO,
        system(
            {**text("R1"), "cache_control": {"type": "ephemeral"}},
            output_config={"effort": "medium"},
        ),
        user("u2"),
    ]
    for under in (policy(), policy(system_first=True)):
        assert translated(listed, under, system="S") == translated(LATER, under, system="S")


def test_assertion_01_system_messages_stay_in_their_place() -> None:
    assert translated(LATER, system="S") == [
        {"role": "system", "content": "S"},
        OK,
        {"role": "system", "content": "R1"},
        {"role": "user", "content": "u2"},
    ]


def test_assertion_01_rendered_for_a_template_that_wants_system_first() -> None:
    history = [GO, system('say "R1"\n'), assistant(call("c1")), user(result("c1", "r"))]
    assert translated(history, policy(system_first=True), system="S") == [
        {"role": "system", "content": "S"},
        OK,
        {"role": "user", "content": '<system-reminder>\nsay "R1"\n\n</system-reminder>'},
        says("", called("c1")),
        answered("c1", "r"),
    ]
    assert translated([system("S"), GO], policy(system_first=True))[0] == {
        "role": "system",
        "content": "S",
    }


@pytest.mark.parametrize("system_first", [False, True])
def test_k03_reminders_stay_and_earlier_messages_are_a_prefix(system_first: bool) -> None:
    under = policy(system_first=system_first)
    first = translated(LATER, under, system="S")
    second = translated([*LATER, assistant("a"), user("u3"), system("R2")], under, system="S")
    assert second[: len(first)] == first
    assert second[0] == {"role": "system", "content": "S"}
    assert "R2" in second[-1]["content"]


# Media


def test_assertion_28_images_of_results_follow_in_a_user_message() -> None:
    history = [
        GO,
        assistant(call("c1", "Read"), call("c2")),
        user(result("c1", [text("shot:"), PNG]), result("c2", "r2"), text("see?")),
    ]
    assert translated(history, policy(images=True))[2:] == [
        answered("c1", "shot:\n[image: see the next message]"),
        answered("c2", "r2"),
        {
            "role": "user",
            "content": [text("[Image from the result of Read, call c1]"), PNG_PART, text("see?")],
        },
    ]


def test_assertion_28_a_model_that_reads_text_gets_notes() -> None:
    pdf = {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
    }
    history = [GO, assistant(call("c1")), user(result("c1", [text("a"), PNG, pdf]))]
    note, document = (
        "[image omitted: this model reads text only]",
        "[document omitted: this model reads text only]",
    )
    assert translated(history)[2:] == [answered("c1", f"a\n{note}\n{document}")]


# Ids, names, arguments


def test_wrapped_ids_are_restored_on_both_sides() -> None:
    wrapped = "toolu_0123456789abcdef01_" + base64.urlsafe_b64encode(
        b"functions.F:0"
    ).decode().rstrip("=")
    assert translated([GO, assistant(call(wrapped)), user(result(wrapped, "r"))])[1:] == [
        says("", called("functions.F:0")),
        answered("functions.F:0", "r"),
    ]


@pytest.mark.parametrize(
    ("given", "arguments"),
    [(None, "{}"), ("", "{}"), ('{"a":1}', '{"a":1}'), ({"a": 1}, '{"a":1}'), ({}, "{}")],
)
def test_inputs_that_are_objects_in_some_way(given: Any, arguments: str) -> None:
    block = {"type": "tool_use", "id": "c1", "name": "F", "input": given}
    assert translated([GO, assistant(block), user(result("c1", "r"))])[1] == says(
        "", called("c1", arguments=arguments)
    )


@pytest.mark.parametrize("given", [5, [], "text", True])
def test_inputs_that_are_no_objects(given: Any) -> None:
    block = {"type": "tool_use", "id": "c1", "name": "F", "input": given}
    assert (
        refusal(messages=[GO, assistant(text("a"), block)])
        == "messages.1.content.1.input: must be an object"
    )


def test_a_call_without_a_name() -> None:
    assert (
        refusal(messages=[GO, assistant({"type": "tool_use", "id": "c1", "input": {}})])
        == "messages.1.content.0.name: must be a non-empty string"
    )


def test_calls_of_mcp_servers_are_calls() -> None:
    use = {
        "type": "mcp_tool_use",
        "id": "m1",
        "name": "find",
        "server_name": "db",
        "input": {"q": 1},
    }
    answer = {
        "type": "mcp_tool_result",
        "tool_use_id": "m1",
        "content": [text("rows")],
        "is_error": False,
    }
    assert translated([GO, assistant(use, answer, text("so")), GO])[1:] == [
        says("so", called("m1", "mcp__db__find", '{"q":1}')),
        answered("m1", "rows"),
        OK,
    ]


def test_blocks_on_the_wrong_side_are_reported() -> None:
    assert ask(
        messages=[user({"type": "thinking", "thinking": "t"}, call("c1"), text("go"))]
    ).dropped == ("thinking", "tool_use")
