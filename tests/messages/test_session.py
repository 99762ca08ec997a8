"""One session, one key: in every form in which clients name it, and without a name by how the
conversation opened."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.messages.requests import PNG, assistant, raw, system, text, user

from ferrule.messages import decode, session_key
from ferrule.messages.session import session_in

ID = "0f6f1f1c-1a2b-4c3d-8e9f-a0b1c2d3e4f5"
OTHER = "11111111-1a2b-4c3d-8e9f-a0b1c2d3e4f5"
OLD_FORM = f"user_{'ab' * 32}_account__session_{ID}"
JSON_FORM = json.dumps({"device_id": "ab" * 32, "account_uuid": "", "session_id": ID})
EXTRA_FIRST = json.dumps(
    {"team": {"a": [1]}, "session_id": ID, "device_id": "x", "parent_session_id": OTHER}
)
LINE = "x-anthropic-billing-header: cc_version=2.1.0; cch={};"


def key(headers: dict[str, str] | None = None, tenant: str = "t", **changes: Any) -> bytes | None:
    return session_key(headers or {}, decode(raw(**changes)), tenant)


def named(user_id: Any, **changes: Any) -> bytes | None:
    return key(metadata={"user_id": user_id}, **changes)


def test_assertion_48_three_forms_and_the_header_are_one_session() -> None:
    by_header = key({"x-claude-code-session-id": ID})
    assert by_header is not None
    assert {named(OLD_FORM), named(JSON_FORM), named(EXTRA_FIRST), by_header} == {by_header}


@pytest.mark.parametrize(
    "user_id",
    [
        "junk",
        "{",
        "{}",
        "[1]",
        '{"session_id":5}',
        '{"session_id":null}',
        "_session_",
        "é北",
        "{" * 2000,
    ],
)
def test_assertion_48_junk_is_taken_whole(user_id: str) -> None:
    assert session_in(user_id) == user_id
    assert named(user_id) not in (None, named("other"), key())


@pytest.mark.parametrize(
    "metadata", [None, {}, {"user_id": None}, {"user_id": ""}, {"user_id": 5}, "x", [1], 5]
)
def test_assertion_48_no_user_id_is_never_an_error(metadata: Any) -> None:
    assert key(metadata=metadata) == key()


def test_the_header_wins() -> None:
    assert key({"x-claude-code-session-id": ID}, metadata={"user_id": OTHER}) == key(
        {"x-claude-code-session-id": f" {ID} "}
    )
    assert key({"x-claude-code-session-id": " "}, metadata={"user_id": JSON_FORM}) == named(
        JSON_FORM
    )


def test_sessions_tenants_and_users_are_told_apart() -> None:
    assert named(OLD_FORM) != named(OLD_FORM.replace(ID, OTHER))
    assert named(JSON_FORM) != key(tenant="u", metadata={"user_id": JSON_FORM})
    assert key(tenant="ab") != key(tenant="a", system="b")


def test_a_key_is_the_same_on_every_replica() -> None:
    assert named(JSON_FORM) == bytes.fromhex("7ee41e19c65e90a40bf11684d362a4f8")


# The opening


def test_k11_the_opening_stays_the_key_of_a_growing_conversation() -> None:
    opening: dict[str, Any] = {"system": "S", "messages": [user("u1")]}
    grown = [user("u1"), system("R"), assistant("a"), user("u2")]
    assert (
        key(**opening)
        == key(system="S", messages=grown)
        == key(system="S", messages=[*grown, assistant("b"), user("u3")])
    )
    assert key(**opening) not in (
        key(system="S2", messages=[user("u1")]),
        key(system="S", messages=[user("u2")]),
        None,
    )


def test_the_opening_is_the_same_in_string_and_list_form() -> None:
    listed = [user({**text("u1"), "cache_control": {"type": "ephemeral"}})]
    assert key(system=[text("S")], messages=listed) == key(system="S", messages=[user("u1")])


def test_the_attribution_line_is_no_part_of_the_opening() -> None:
    keys = {key(system=[text(LINE.format(cch)), text("S")]) for cch in ("0a1b2", "3c4d5")}
    assert keys == {key(system="S")}


def test_l07_nothing_to_hold_on_to_is_no_key() -> None:
    assert key(messages=[assistant("a")]) is None
    assert key(messages=[user(PNG)]) is None
    assert key(messages=[{"role": "user", "content": []}]) is None
    assert key(system="", messages=[user("")]) is None
