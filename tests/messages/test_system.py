"""System text in both forms, and the attribution line that changes from request to request."""

from __future__ import annotations

from typing import Any

import pytest
from tests.messages.requests import (
    EVERY_DIALECT,
    ask,
    policy,
    refusal,
    text,
    translated,
    upstream,
    user,
)

LINE = "x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch={};"


def lead(system: Any, **more: Any) -> Any:
    first = translated([user("hi")], system=system, **more)[0]
    return first["content"] if first["role"] == "system" else None


@pytest.mark.parametrize(
    ("system", "becomes"),
    [
        ("S", "S"),
        ([text("S")], "S"),
        ([{**text("S"), "cache_control": {"type": "ephemeral"}}], "S"),
        ([{**text("S"), "foo": {"bar": 1}}], "S"),
        ([text("a"), text(""), text("b")], "a\n\nb"),
        ([{"type": "text", "text": None}, text("b")], "b"),
        ("", None),
        ([], None),
        (None, None),
        ([text("")], None),
    ],
)
def test_d13_string_and_list_form(system: Any, becomes: str | None) -> None:
    assert lead(system) == becomes


@pytest.mark.parametrize("dialect", EVERY_DIALECT)
@pytest.mark.parametrize(
    "system",
    [
        [text(LINE), text("S")],
        [text(LINE + "\nS")],
        LINE + "\nS",
        LINE + "\n\nS",
    ],
)
def test_k01_the_attribution_line_is_gone_and_the_text_after_it_kept(
    dialect: str, system: Any
) -> None:
    bodies = {ask(policy(dialect), system=_with(system, cch)).body for cch in ("0a1b2", "3c4d5")}
    assert bodies == {ask(policy(dialect), system="S").body}


def test_assertion_25_a_prompt_of_the_line_alone_is_none() -> None:
    assert lead([text(LINE)]) is None
    assert lead(LINE) is None
    assert translated([user("hi"), {"role": "system", "content": LINE}]) == [
        {"role": "user", "content": "hi"}
    ]


def test_k01_a_user_who_writes_these_words_keeps_them() -> None:
    words = LINE + "\nwhat is this?"
    assert translated([user(words), user(text(words))])[0]["content"] == words
    assert (
        lead("About x-anthropic-billing-header: it changes")
        == "About x-anthropic-billing-header: it changes"
    )


def test_system_of_another_type() -> None:
    assert refusal(system=[{"type": "text", "text": ["x"]}]) == "system.0.text: must be a string"
    assert "system: " in _refused(5)


def _refused(system: Any) -> str:
    return refusal(system=system)


def _with(system: Any, cch: str) -> Any:
    if isinstance(system, str):
        return system.format(cch)
    return [text(block["text"].format(cch)) for block in system]


def test_system_stands_first() -> None:
    assert [message["role"] for message in upstream(system="S")["messages"]] == ["system", "user"]
