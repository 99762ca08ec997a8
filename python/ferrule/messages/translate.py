"""Translates a Messages request into the body of a chat completion: the order of the steps.

Pure and idempotent. A request is translated once; a retry sends the same bytes to another backend.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ferrule.errors import InvalidRequest
from ferrule.messages.chat_schema import (
    ChatBody,
    ChatMessage,
    JsonSchema,
    ResponseFormat,
    StreamOptions,
    encode,
)
from ferrule.messages.content import Reader
from ferrule.messages.conversation import Conversation
from ferrule.messages.diagnostics import Diagnostics
from ferrule.messages.json_text import NOTHING, is_given
from ferrule.messages.policy import Policy
from ferrule.messages.sampling import check_max_tokens, check_sampling
from ferrule.messages.schema import MessagesRequest, OutputFormat
from ferrule.messages.system import system_text
from ferrule.messages.thinking import Plan, check_budget, plan
from ferrule.messages.tool_names import ToolNames
from ferrule.messages.tools import ToolSet, build_tool_set

# Code and prose in JSON run at 3 to 5 bytes a token; fewer would need a prompt of nothing but rare
# characters
_BYTES_PER_TOKEN_MIN = 2.5
_WITH_USAGE = StreamOptions(include_usage=True)


class Translation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The body for the backend, and what the response side needs to know."""

    body: bytes
    stream: bool
    dropped: tuple[str, ...]
    """Names for the `x-ferrule-dropped` header."""
    warnings: tuple[str, ...]
    """Lines for the log."""
    tool_names: tuple[tuple[str, str], ...]
    """(name upstream, name the client knows) where they differ."""
    single_tool_call: bool
    display_omitted: bool
    reasoning: Literal["thinking", "text", "drop"]
    max_tokens: int
    discard_output: bool
    """`max_tokens: 0`: the prompt is wanted in the cache, and nothing back."""
    edge_budget_tokens: int | None
    """A thinking budget that must be enforced here."""


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """The part of the body that makes up the prompt: what a count and a request have in common."""

    messages: list[ChatMessage]
    tool_set: ToolSet
    plan: Plan
    prefilled: bool
    """The backend is to continue the last assistant message."""
    names: ToolNames


def translate(
    request: MessagesRequest, policy: Policy, client_model: str, prompt_tokens: int | None = None
) -> Translation:
    """`client_model`: the name the client sent, for messages. `prompt_tokens`: the prompt's size if
    known, to fit max_tokens to the window.

    Raises InvalidRequest for what the dialect or the model refuses.
    """
    diagnostics = Diagnostics()
    dialect = policy.dialect
    room_tokens = (
        None if policy.context_window is None else policy.context_window - (prompt_tokens or 0)
    )
    max_tokens = check_max_tokens(request, dialect, room_tokens)
    sampling = check_sampling(request, dialect, diagnostics)
    budget = check_budget(request, policy) if request.thinking is not None else None
    _check_server_side(request, policy, diagnostics)
    prompt = build_prompt(request, Reader(policy, diagnostics, request.documents), client_model)
    keeper = None if budget is None else policy.budget_keeper
    # max_tokens enforces a larger budget by itself
    edge_budget = (
        budget if budget is not None and keeper == "edge" and budget < max_tokens else None
    )
    # to enforce a budget the reasoning must be seen as it comes
    upstream_streams = bool(request.stream) or edge_budget is not None
    body = ChatBody(
        policy.upstream,
        prompt.messages,
        tools=prompt.tool_set.tools,
        tool_choice=prompt.tool_set.choice,
        parallel_tool_calls=prompt.tool_set.parallel,
        max_tokens=max(1, max_tokens),
        stream=upstream_streams or None,
        stream_options=_WITH_USAGE if upstream_streams else None,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        stop=sampling.stop,
        reasoning_effort=prompt.plan.effort,
        chat_template_kwargs=prompt.plan.kwargs,
        response_format=_response_format(request, policy, diagnostics),
    )
    if budget is not None and keeper == "engine" and policy.engine.budget_field:
        setattr(body, policy.engine.budget_field, budget)
    if prompt.prefilled and policy.engine.can_continue_final:
        body.continue_final_message, body.add_generation_prompt = True, False
    return Translation(
        body=encode(body),
        stream=bool(request.stream),
        dropped=diagnostics.dropped,
        warnings=diagnostics.warnings,
        tool_names=prompt.names.changed,
        single_tool_call=prompt.tool_set.single_call,
        display_omitted=prompt.plan.display_omitted,
        reasoning=prompt.plan.reasoning,
        max_tokens=max(1, max_tokens),
        discard_output=request.max_tokens == 0,
        edge_budget_tokens=edge_budget,
    )


def build_prompt(request: MessagesRequest, reader: Reader, client_model: str) -> Prompt:
    """The prompt: messages, tools and the template's arguments."""
    policy = reader.policy
    names = ToolNames([tool.name for tool in request.tools if tool.name] if request.tools else ())
    offered = build_tool_set(request, policy, names, reader.diagnostics)
    conversation = Conversation(reader, names, system_text(request.system, "system"))
    for index, message in enumerate(request.messages):
        conversation.add(index, message)
    thinking = plan(request, policy, client_model)
    prefilled = conversation.ends_with_prefill and policy.continues and thinking.mode != "on"
    if prefilled and thinking.mode == "default":
        # a begun answer is past its reasoning; with thinking on, the parser would take it for
        # reasoning
        thinking = msgspec.structs.replace(thinking, mode="off")
    return Prompt(conversation.messages(), offered, thinking, prefilled, names)


def needs_prompt_count(
    request_body_bytes: int, max_tokens: int, context_window: int | None
) -> bool:
    """Whether max_tokens could overrun the window, so that the prompt must be counted before it can
    be fitted."""
    return (
        context_window is not None
        and max_tokens + request_body_bytes / _BYTES_PER_TOKEN_MIN > context_window
    )


def _check_server_side(request: MessagesRequest, policy: Policy, diagnostics: Diagnostics) -> None:
    """Parameters that only Anthropic's own servers can honour."""
    if request.mcp_servers:
        if policy.dialect.mcp_servers == "refuse":
            raise InvalidRequest(
                "mcp_servers", "must be empty: connect MCP servers in your client instead"
            )
        diagnostics.drop("mcp_servers")
    if request.thread is not NOTHING and is_given(request.thread):
        if policy.dialect.accepts("thread"):
            raise InvalidRequest(
                "thread", "must be absent: no conversation is stored here, send all messages"
            )
        diagnostics.drop("thread")
    if request.compaction is not NOTHING and is_given(request.compaction):
        diagnostics.drop("compaction")
    if request.context_management is not None:
        edits = request.context_management.edits or ()
        if any(edit.type.startswith(("clear_tool_uses", "compact")) for edit in edits):
            diagnostics.drop("context_management")


def _response_format(
    request: MessagesRequest, policy: Policy, diagnostics: Diagnostics
) -> ResponseFormat | None:
    if request.output_config is None and request.output_format is None:
        return None
    wanted: OutputFormat | None = request.output_config.format if request.output_config else None
    path, name = "output_config.format", "output_config.format"
    if wanted is None and request.output_format is not None:
        wanted, path, name = request.output_format, "output_format", "output_format"
    if wanted is None:
        return None
    if not policy.dialect.accepts("output_config.format"):
        diagnostics.drop(name)
        return None
    if wanted.type != "json_schema":
        raise InvalidRequest(f"{path}.type", f"must be 'json_schema', not {wanted.type!r}")
    if not is_given(wanted.schema):
        raise InvalidRequest(f"{path}.schema", "must be a JSON schema")
    return ResponseFormat(JsonSchema("output", wanted.schema, strict=True))
