"""What a conversation becomes upstream: tool results, documents, thinking, system text; and what
must never enter it."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from tests.doubles.backend import ScriptedBackend
from tests.doubles.frames import DONE, TC, Canned, D
from tests.doubles.proxy import Ferrule, assert_error
from tests.e2e.conftest import Received, Sent
from tests.e2e.test_cases_tools import F_TOOL, history

BILLING = "x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch=%s;"


def result(id_: str, **members: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id_, **members}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def flat(content: Any) -> str:
    return (
        content
        if isinstance(content, str)
        else "\n".join(part["text"] for part in content or [] if part["type"] == "text")
    )


def test_d01_results_come_directly_after_their_calls(sent: Sent) -> None:
    calls = [{"type": "tool_use", "id": id_, "name": "F", "input": {}} for id_ in ("c1", "c2")]
    turn = [text("fyi"), result("c1", content="r1"), result("c2", content="r2"), text("go")]
    body = sent(
        messages=[
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": calls},
            {"role": "user", "content": turn},
        ]
    )
    roles = [message["role"] for message in body["messages"]]
    assert roles[:4] == ["user", "assistant", "tool", "tool"]
    ids = [call["id"] for call in body["messages"][1]["tool_calls"]]
    assert [message["tool_call_id"] for message in body["messages"][2:4]] == ids
    assert [flat(message["content"]) for message in body["messages"][2:4]] == ["r1", "r2"]
    rest = "\n".join(flat(message["content"]) for message in body["messages"][4:])
    assert rest.index("fyi") < rest.index("go")


@pytest.mark.parametrize(
    "members",
    [{}, {"content": None}, {"content": []}, {"content": ""}],
    ids=["absent", "null", "list", "empty"],
)
def test_d03_empty_tool_results(sent: Sent, members: dict[str, Any]) -> None:
    body = sent(
        messages=[*history({})[:2], {"role": "user", "content": [result("toolu_1", **members)]}]
    )
    assert body["messages"][2]["role"] == "tool"
    assert flat(body["messages"][2]["content"]) == ""


PDF = base64.b64encode(b"%PDF-").decode()


@pytest.mark.parametrize(
    ("source", "becomes"),
    [
        ({"type": "base64", "media_type": "application/pdf", "data": PDF}, None),
        ({"type": "text", "media_type": "text/plain", "data": "plain words"}, "plain words"),
        ({"type": "content", "content": [{"type": "text", "text": "block words"}]}, "block words"),
    ],
    ids=["pdf", "text", "content"],
)
@pytest.mark.parametrize("within_result", [False, True], ids=["beside", "within"])
def test_d05_documents(
    sent: Sent, source: dict[str, Any], becomes: str | None, within_result: bool
) -> None:
    document = {"type": "document", "source": source}
    turn = (
        [result("toolu_1", content=[document])]
        if within_result
        else [result("toolu_1", content="r"), document]
    )
    body = sent(messages=[*history({})[:2], {"role": "user", "content": turn}])
    upstream = json.dumps(body["messages"], ensure_ascii=False)
    assert PDF not in upstream
    assert '"document"' not in upstream
    assert becomes is None or becomes in upstream


def test_d05_documents_by_url_are_not_fetched(proxy: Ferrule) -> None:
    document = {
        "type": "document",
        "source": {"type": "url", "url": "http://169.254.169.254/latest"},
    }
    answer = proxy.ask(messages=[{"role": "user", "content": [text("x"), document]}])
    assert_error(answer, 400, "invalid_request_error", "messages.0.content.1")


def test_d07_thinking_never_becomes_text(sent: Sent) -> None:
    blocks = [{"type": "thinking", "thinking": "secret plan", "signature": "s"}, text("a")]
    body = sent(
        messages=[
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": "v"},
        ]
    )
    assistant = body["messages"][1]
    assert flat(assistant["content"]) == "a"
    assert "secret plan" not in json.dumps(
        {key: value for key, value in assistant.items() if not key.startswith("reasoning")}
    )


def test_d09_a_turn_of_calls_only(sent: Sent) -> None:
    assistant = sent(messages=history({}))["messages"][1]
    assert assistant.get("content") in (None, "")
    assert assistant["tool_calls"][0]["function"] == {"name": "F", "arguments": "{}"}


def test_d11_blocks_have_their_own_keys(received: Received) -> None:
    message = received(*Canned("Hi", reasoning="hm", calls=[("c1", "F", "{}")]).frames())
    keys = [set(block) - {"partial_json", "citations"} for block in message["content"]]
    assert keys == [
        {"type", "thinking", "signature"},
        {"type", "text"},
        {"type", "id", "name", "input"},
    ]


def test_d13_system_forms_are_one(sent: Sent) -> None:
    forms: list[Any] = [
        "Be brief.",
        [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        [{"type": "text", "text": "Be brief.", "novelty": 1}],
    ]
    bodies = [sent(system=form)["messages"] for form in forms]
    assert bodies[0] == bodies[1] == bodies[2]
    assert bodies[0][0] == {"role": "system", "content": "Be brief."}


def test_d15_nothing_of_one_request_is_in_another(proxy: Ferrule, backend: ScriptedBackend) -> None:
    for word in ("first", "second", "third"):
        proxy.message(
            system=f"system {word}",
            messages=[{"role": "user", "content": f"user {word}"}],
            tools=[{**F_TOOL, "name": word}],
        )
    for word, seen in zip(("first", "second", "third"), backend.requests, strict=True):
        others = {"first", "second", "third"} - {word}
        assert word.encode() in seen.body
        assert not [other for other in others if other.encode() in seen.body]


# What Claude Code sends


@pytest.mark.parametrize("form", ["block", "line"])
def test_k01_the_attribution_line_is_removed(sent: Sent, form: str) -> None:
    def system(mark: str) -> Any:
        line = BILLING % mark
        return [text(line), text("S")] if form == "block" else f"{line}\nS"

    bodies = [sent(system=system(mark)) for mark in ("0a1b2", "ffff1")]
    assert bodies[0] == bodies[1]
    assert bodies[0]["messages"][0] == {"role": "system", "content": "S"}


def test_k01_a_user_who_writes_these_words_keeps_them(sent: Sent) -> None:
    words = BILLING % "0a1b2"
    assert (
        flat(sent(messages=[{"role": "user", "content": words}])["messages"][0]["content"]) == words
    )


def test_k03_system_messages_stay_where_they_are(sent: Sent) -> None:
    first = [
        {"role": "user", "content": "u1"},
        {"role": "system", "content": [text("R1")]},
        {"role": "user", "content": "u2"},
    ]
    second = [
        first[0],
        {"role": "system", "content": "R1"},
        first[2],
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "u3"},
        {"role": "system", "content": "R2"},
    ]
    short, long = (sent(system="S", messages=messages)["messages"] for messages in (first, second))
    assert long[: len(short)] == short
    assert short[0] == {"role": "system", "content": "S"}
    assert [
        word
        for message in long
        for word in ("u1", "R1", "u2", "u3", "R2")
        if word in flat(message["content"])
    ] == [
        "u1",
        "R1",
        "u2",
        "u3",
        "R2",
    ]


def test_l07_no_messages_at_all(proxy: Ferrule) -> None:
    assert_error(proxy.ask(messages=[]), 400, "invalid_request_error", "messages")


def test_frames_that_say_nothing_make_no_block(received: Received) -> None:
    message = received(
        D({"content": ""}),
        D({"reasoning": "r"}),
        D({"content": "\n\n"}),
        TC(0, "c1", "F", "{}"),
        D({}, "tool_calls"),
        DONE,
    )
    assert [block["type"] for block in message["content"]] == ["thinking", "tool_use"]
