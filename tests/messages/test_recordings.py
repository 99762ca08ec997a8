"""Requests that real clients sent: each is translated, and each conversation only ever grows at its
end."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.messages.requests import EVERY_DIALECT, policy

from ferrule.messages import Policy, decode, session_key, text_of, tokenize_body, translate

RECORDINGS = sorted((Path(__file__).parents[1] / "recordings" / "clients").glob("*.json"))
CONVERSATIONS = [
    path for path in RECORDINGS if path.stem.startswith("cc-") and path.stem.endswith("-tools")
]
ENGINES = ("vllm", "vllm_old", "sglang", "llamacpp")


def bodies(path: Path, *, counting: bool) -> list[dict[str, Any]]:
    """The bodies of one recording: of messages, or of counts."""
    return [
        request["body"]
        for request in json.loads(path.read_text())["requests"]
        if request["body"]
        and "messages" in request["body"]
        and ("count_tokens" in request["target"]) is counting
    ]


def wire(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def sent(body: dict[str, Any], under: Policy) -> dict[str, msgspec.Raw]:
    return msgspec.json.decode(
        translate(decode(wire(body)), under, body["model"]).body, type=dict[str, msgspec.Raw]
    )


def test_the_recordings_are_there() -> None:
    assert len(RECORDINGS) >= 12
    assert len(CONVERSATIONS) >= 3


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("dialect", EVERY_DIALECT)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_recorded_request_is_translated(path: Path, dialect: str, engine: str) -> None:
    under = policy(dialect, engine)
    for body in bodies(path, counting=False):
        upstream = sent(body, under)
        roles = [message["role"] for message in json.loads(bytes(upstream["messages"]))]
        assert set(roles) <= {"system", "user", "assistant", "tool"}
        assert b"x-anthropic-billing-header" not in bytes(upstream["messages"])
        assert bytes(upstream.get("tools", msgspec.Raw(b"[x]"))) != b"[]"


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_every_recorded_count_is_answered(path: Path) -> None:
    for body in bodies(path, counting=True):
        request = decode(wire(body))
        assert text_of(request)
        assert json.loads(tokenize_body(request, policy()))["messages"]


def conversation(path: Path) -> list[dict[str, Any]]:
    """The requests with tools of one model and one opening, in order: the conversation without its
    side calls."""
    main = [body for body in bodies(path, counting=False) if body.get("tools")]
    return [body for body in main if body["model"] == main[0]["model"]]


@pytest.mark.parametrize("path", CONVERSATIONS, ids=lambda path: path.stem)
@pytest.mark.parametrize("system_first", [False, True])
@pytest.mark.parametrize("dialect", EVERY_DIALECT)
def test_assertion_26_each_request_is_a_byte_prefix_of_the_next(
    path: Path, dialect: str, system_first: bool
) -> None:
    under = policy(dialect, system_first=system_first)
    lists = [bytes(sent(body, under)["messages"]) for body in conversation(path)]
    assert len(lists) >= 3
    for earlier, later in itertools.pairwise(lists):
        assert later.startswith(earlier[:-1] + b",")


@pytest.mark.parametrize("path", CONVERSATIONS, ids=lambda path: path.stem)
def test_the_tools_of_one_conversation_keep_their_beginning(path: Path) -> None:
    lists = [bytes(sent(body, policy())["tools"]) for body in conversation(path)]
    for earlier, later in itertools.pairwise(lists):
        assert later.startswith(earlier[:-1])


@pytest.mark.parametrize("path", CONVERSATIONS, ids=lambda path: path.stem)
def test_one_conversation_is_one_session(path: Path) -> None:
    keys = {session_key({}, decode(wire(body)), "t") for body in conversation(path)}
    assert len(keys) == 1
    assert None not in keys
