"""`/v1/chat/completions`: an allow-list of members and the upstream model name. The response is
passed through.

Members are kept as raw bytes in the client's order; only the top level is touched. The allow-list
holds OpenAI's members and those extras of the engines that concern the one request. What steers the
engine or other requests is dropped: `priority`, `cache_salt`, `request_id`/`rid`, `session_id`,
`kv_transfer_params`, data-parallel ranks, slots, LoRA paths, beam search, custom logit processors,
`n_predict` (it beats every other limit), and `chat_template`, a program that would run in the
engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from ferrule.errors import Failure, InvalidRequest, invalid_json
from ferrule.messages.diagnostics import Diagnostics
from ferrule.messages.json_text import EMPTY, join, quote
from ferrule.messages.policy import Policy
from ferrule.messages.session import HEADER, digest, opening_key, session_in

_ALLOWED = frozenset(
    """
    messages model modalities audio prediction documents reasoning_effort verbosity
    web_search_options tools tool_choice parallel_tool_calls functions function_call
    response_format max_tokens max_completion_tokens min_tokens n stop stop_token_ids stop_regex
    ignore_eos temperature top_p frequency_penalty presence_penalty logit_bias seed logprobs
    top_logprobs stream stream_options user metadata store service_tier safety_identifier
    prompt_cache_key

    top_k min_p repetition_penalty repeat_penalty length_penalty bad_words allowed_token_ids
    chat_template_kwargs add_generation_prompt continue_final_message add_special_tokens
    truncate_prompt_tokens
    thinking reasoning thinking_token_budget thinking_budget_tokens reasoning_budget_tokens
    structured_outputs json_schema grammar regex ebnf
    include_reasoning separate_reasoning stream_reasoning reasoning_format return_token_ids
    stream_interval
    include_stop_str_in_output no_stop_trim skip_special_tokens spaces_between_special_tokens
    """.split()  # noqa: SIM905  # OpenAI's own first, then the engines'
)
_NULL = b"null"
_INCLUDE_USAGE = msgspec.Raw(b"true")


_T = TypeVar("_T")


class ChatRequest(msgspec.Struct, frozen=True):
    """One request. `members` are those that may go upstream."""

    model: str
    stream: bool
    members: dict[str, msgspec.Raw]
    dropped: tuple[str, ...]
    """Names for the `x-ferrule-dropped` header."""
    wants_usage: bool
    """Whether the client asked for the usage chunk of a stream."""
    max_tokens: int | None
    user: str | None


class ChatTranslation(msgspec.Struct, frozen=True):
    """The body for the backend, and what the response side needs to know."""

    body: bytes
    stream: bool
    dropped: tuple[str, ...]
    hide_usage: bool
    """The stream's usage chunk was asked for by the gateway alone."""


class Completion(msgspec.Struct, frozen=True):
    """A whole completion under the name the client knows; `usage` in tokens: input without what was
    cached, cached, output."""

    body: bytes
    usage: tuple[int, int, int]


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None


class _Part(msgspec.Struct):
    text: msgspec.Raw = msgspec.Raw(_NULL)


class _Message(msgspec.Struct):
    role: str = ""
    content: str | list[_Part] | None = None


_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_as_string = msgspec.json.Decoder(str).decode
_as_integer = msgspec.json.Decoder(int).decode
_as_boolean = msgspec.json.Decoder(bool).decode
_encode = msgspec.json.Encoder().encode


def decode(body: bytes) -> ChatRequest:
    """Raises InvalidRequest with the path of what is wrong."""
    try:
        given = _members(body)
        if not body.isascii():
            body.decode()  # members are copied unread, so broken UTF-8 in them must be found here
    except RecursionError:
        raise InvalidRequest("", "The request body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid_json(body, error) from None
    diagnostics = Diagnostics()
    for name in given:
        if name not in _ALLOWED:
            diagnostics.drop(name)
    members = {name: raw for name, raw in given.items() if name in _ALLOWED}
    model = _string(members, "model")
    if not model:
        raise InvalidRequest("model", "must be a non-empty string")
    messages = bytes(members.get("messages", b""))
    if not messages.startswith(b"[") or not messages[1:-1].strip():
        raise InvalidRequest("messages", "must be an array of at least one message")
    limit = _integer(members, "max_completion_tokens")
    return ChatRequest(
        model=model,
        stream=_is_true(members, "stream"),
        members=members,
        dropped=diagnostics.dropped,
        wants_usage=bytes(_options(members).get("include_usage", b"")) == b"true",
        max_tokens=limit if limit is not None else _integer(members, "max_tokens"),
        user=_string(members, "user"),
    )


def translate(request: ChatRequest, policy: Policy) -> ChatTranslation:
    """The body for the backend. Raises InvalidRequest for an effort outside the model's tiers."""
    effort = _string(request.members, "reasoning_effort")
    if effort is not None and policy.effort is not None and effort not in policy.effort:
        tiers = ", ".join(policy.effort) or "none"
        raise InvalidRequest(
            "reasoning_effort",
            f"effort {effort!r} is not supported by {request.model}; it takes: {tiers}",
        )
    members = dict(request.members)
    members["model"] = msgspec.Raw(_encode(policy.upstream))
    # engines refuse an empty list of tools, and stream_options without a stream
    if not bytes(members.get("tools", b"[x]"))[1:-1].strip():
        members.pop("tools")
        members.pop("tool_choice", None)
    if request.stream:
        members["stream_options"] = msgspec.Raw(
            _encode({**_options(members), "include_usage": _INCLUDE_USAGE})
        )
    else:
        members.pop("stream_options", None)
    return ChatTranslation(
        _encode(members),
        request.stream,
        request.dropped,
        request.stream and not request.wants_usage,
    )


def rename_model(body: bytes, model: str) -> Completion:
    """A backend's whole reply with the client's name for the model. Raises Failure when it is
    none."""
    try:
        members = _members(body)
        usage = (
            msgspec.json.decode(members.get("usage", msgspec.Raw(_NULL)), type=_Usage | None)
            or _Usage()
        )
    except (msgspec.DecodeError, RecursionError):
        raise Failure(
            502, "The backend answered with something that is no chat completion."
        ) from None
    members["model"] = msgspec.Raw(_encode(model))
    prompt, cached = (
        usage.prompt_tokens or 0,
        (usage.prompt_tokens_details or _Cached()).cached_tokens or 0,
    )
    return Completion(
        _encode(members), (max(0, prompt - cached), cached, usage.completion_tokens or 0)
    )


def session_key(headers: Mapping[str, str], request: ChatRequest, tenant: str) -> bytes | None:
    """As for the Messages API, with `user` in the place of `metadata.user_id`: one session has one
    key on both surfaces."""
    rename_model = (headers.get(HEADER) or "").strip() or (
        session_in(request.user) if request.user else ""
    )
    if rename_model:
        return digest(tenant, "session", rename_model.encode("utf-8", "surrogateescape"))
    return _opening_key(request, tenant)


def _opening_key(request: ChatRequest, tenant: str) -> bytes | None:
    """As for the Messages API: system text and first user message, which stay the same while the
    conversation grows."""
    try:
        messages = msgspec.json.decode(request.members["messages"], type=list[_Message])
    except (msgspec.MsgspecError, RecursionError):
        return None
    system: list[bytes] = []
    user = b""
    for message in messages:
        if message.role == "user":
            user = _text_of(message.content)
            break
        if message.role in ("system", "developer"):
            system.append(_text_of(message.content))
    system = [text for text in system if text]
    return opening_key(tenant, join(system) if system else b"", user)


def _text_of(content: str | list[_Part] | None) -> bytes:
    if isinstance(content, list):
        texts = [
            literal
            for literal in (bytes(part.text) for part in content)
            if literal not in (_NULL, EMPTY)
        ]
        return join(texts) if texts else b""
    return quote(content) if content else b""


def _string(members: Mapping[str, msgspec.Raw], name: str) -> str | None:
    return _read(members, name, _as_string, "a string")


def _integer(members: Mapping[str, msgspec.Raw], name: str) -> int | None:
    return _read(members, name, _as_integer, "an integer")


def _is_true(members: Mapping[str, msgspec.Raw], name: str) -> bool:
    return bool(_read(members, name, _as_boolean, "a boolean"))


def _options(members: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    return _read(members, "stream_options", _members, "an object") or {}


def _read(
    members: Mapping[str, msgspec.Raw], name: str, read: Callable[[msgspec.Raw], _T], expected: str
) -> _T | None:
    """Decodes one member; absent and null are None."""
    raw = members.get(name)
    if raw is None or bytes(raw) == _NULL:
        return None
    try:
        return read(raw)
    except msgspec.DecodeError:
        raise InvalidRequest(name, f"must be {expected}") from None
