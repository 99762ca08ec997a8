"""The two shapes of a list of models: Anthropic's and OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ferrule.catalog import ServedModel
from ferrule.http.response import format_time


def wants_anthropic_shape(headers: Mapping[str, str]) -> bool:
    """Whether a client speaks Anthropic's API: it sends their version header, or their kind of key
    and no other."""
    return "anthropic-version" in headers or (
        "x-api-key" in headers and "authorization" not in headers
    )


def encode_model(model: ServedModel, *, anthropic: bool) -> bytes:
    return msgspec.json.encode(_anthropic(model) if anthropic else _openai(model))


def encode_list(models: list[ServedModel], *, anthropic: bool) -> bytes:
    """The whole list as one page: no client has to ask again."""
    if not anthropic:
        return msgspec.json.encode(_OpenAIList([_openai(model) for model in models]))
    entries = [_anthropic(model) for model in models]
    first, last = (entries[0].id, entries[-1].id) if entries else (None, None)
    return msgspec.json.encode(_AnthropicList(entries, first, last))


class _Anthropic(msgspec.Struct):
    id: str
    display_name: str
    created_at: str
    max_input_tokens: int | None
    type: str = "model"
    lifecycle: str = "active"


class _OpenAI(msgspec.Struct):
    id: str
    created: int
    max_model_len: int | None
    object: str = "model"
    owned_by: str = "ferrule"


class _AnthropicList(msgspec.Struct):
    data: list[_Anthropic]
    first_id: str | None
    last_id: str | None
    has_more: bool = False


class _OpenAIList(msgspec.Struct):
    data: list[_OpenAI]
    object: str = "list"


def _anthropic(model: ServedModel) -> _Anthropic:
    created_at = format_time(max(0, model.created))
    return _Anthropic(model.id, model.id, created_at, model.policy.context_window)


def _openai(model: ServedModel) -> _OpenAI:
    return _OpenAI(model.id, model.created, model.policy.context_window)
