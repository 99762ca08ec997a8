"""Asks the request side in one line: a body given as Python values, translated under a dialect, and
what went upstream read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from ferrule.dialects import DIALECTS
from ferrule.engines import PROFILES
from ferrule.errors import Failure
from ferrule.messages import Policy, Translation, decode, translate

TOOL_F = {
    "name": "F",
    "description": "does F",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
USER = {"role": "user", "content": "hi"}
PNG = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
}
PNG_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
PDF = {
    "type": "document",
    "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
}
EVERY_DIALECT = tuple(DIALECTS)


def body(**changes: Any) -> dict[str, Any]:
    """The smallest request, with `changes`; a change to `...` takes the member out."""
    whole = {"model": "m", "max_tokens": 64, "messages": [USER], **changes}
    return {name: value for name, value in whole.items() if value is not ...}


def raw(**changes: Any) -> bytes:
    return json.dumps(body(**changes), ensure_ascii=False, separators=(",", ":")).encode()


def policy(
    dialect: str = "anthropic",
    engine: str = "vllm",
    settings: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Policy:
    chosen = msgspec.structs.replace(DIALECTS[dialect], **(settings or {}))
    return Policy(dialect=chosen, engine=PROFILES[engine], upstream="org/model", **changes)


def ask(
    under: Policy | None = None, *, prompt_tokens: int | None = None, **changes: Any
) -> Translation:
    return translate(decode(raw(**changes)), under or policy(), "m", prompt_tokens)


def upstream(under: Policy | None = None, **changes: Any) -> dict[str, Any]:
    """The body that the backend gets."""
    sent: dict[str, Any] = json.loads(ask(under, **changes).body)
    return sent


def translated(
    messages: list[Any], under: Policy | None = None, **changes: Any
) -> list[dict[str, Any]]:
    """The messages that the backend gets."""
    conversation: list[dict[str, Any]] = upstream(under, messages=messages, **changes)["messages"]
    return conversation


def refusal(under: Policy | None = None, **changes: Any) -> str:
    """The message of the 400 that a body gets."""
    with pytest.raises(Failure) as caught:
        ask(under, **changes)
    assert (caught.value.status, caught.value.kind) == (400, "invalid_request_error")
    return caught.value.message


def user(*content: Any) -> dict[str, Any]:
    return {
        "role": "user",
        "content": content[0]
        if len(content) == 1 and isinstance(content[0], str)
        else list(content),
    }


def assistant(*content: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": content[0]
        if len(content) == 1 and isinstance(content[0], str)
        else list(content),
    }


def system(*content: Any, **more: Any) -> dict[str, Any]:
    return {
        "role": "system",
        "content": content[0]
        if len(content) == 1 and isinstance(content[0], str)
        else list(content),
        **more,
    }


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def call(id_: str, name: str = "F", **input_: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": input_}


def result(id_: str, content: Any = ..., **more: Any) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": id_, "content": content, **more}
    return {name: value for name, value in block.items() if value is not ...}


def called(id_: str, name: str = "F", arguments: str = "{}") -> dict[str, Any]:
    """A tool call as the backend gets it."""
    return {"type": "function", "id": id_, "function": {"name": name, "arguments": arguments}}


def answered(id_: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": content}
