"""What a prompt is made of, for counting its tokens: the texts for the gateway's own tokenizer, the body for an engine's count."""

from __future__ import annotations

import msgspec

from ferrule.messages.chat_shape import ChatBody, ChatMessage, FunctionTool, TemplateKwargs, encode
from ferrule.messages.content import texts_in
from ferrule.messages.handed_out import reasoning_of
from ferrule.messages.losses import Losses
from ferrule.messages.policy import Policy
from ferrule.messages.schema import Block, Request, Source
from ferrule.messages.system import system_text
from ferrule.messages.to_chat import tell
from ferrule.messages.tools import visible

# What an image costs, in characters' worth of text (about 1,500 tokens): engines differ, none counts its base64
_IMAGE_STAND_IN = "image " * 1_500


class _TokenizeBody(msgspec.Struct, omit_defaults=True):
    model: str
    messages: list[ChatMessage]
    tools: list[FunctionTool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None


def text_of(request: Request) -> list[str]:
    """All text of a request: system, tools, messages; an image counts as a fixed length of text, its base64 never."""
    texts = [system_text(request.system)]
    for tool in visible(request):
        texts += [tool.name or "", tool.description or "", bytes(tool.input_schema).decode()]
    for message in request.messages:
        if message.role == "system":
            texts.append(system_text(message.content))
        elif isinstance(message.content, str):
            texts.append(message.content)
        else:
            for block in message.content or ():
                texts += _block_texts(block)
    return [text for text in texts if text]


def tokenize_body(request: Request, policy: Policy) -> bytes:
    """The body that the engine's own counting route takes, with the prompt exactly as a request would have it."""
    told = tell(request, policy, request.model, Losses())
    kwargs = told.plan.kwargs
    if policy.engine.tokenize_route == "llamacpp":
        return encode(_as_chat(policy, told.messages, told.offer.tools, told.plan.effort, kwargs))
    if told.plan.effort is not None:
        # vLLM's route ignores a top-level effort; its chat route puts it into the template's arguments like this
        enabled = kwargs.enable_thinking if kwargs else told.plan.effort != "none"
        kwargs = TemplateKwargs(enable_thinking=enabled, thinking=kwargs.thinking if kwargs else None, reasoning_effort=told.plan.effort)
    continued = told.prefilled and policy.engine.can_continue_final
    return encode(
        _TokenizeBody(
            model=policy.upstream,
            messages=told.messages,
            tools=told.offer.tools,
            add_generation_prompt=not continued,
            continue_final_message=True if continued else None,
            chat_template_kwargs=kwargs,
        )
    )


def _as_chat(
    policy: Policy, messages: list[ChatMessage], tools: list[FunctionTool] | None, effort: str | None, kwargs: TemplateKwargs | None
) -> ChatBody:
    return ChatBody(model=policy.upstream, messages=messages, tools=tools, reasoning_effort=effort, chat_template_kwargs=kwargs)


def _block_texts(block: Block) -> list[str]:
    if block.type == "image":
        return [_IMAGE_STAND_IN]
    if block.type in ("tool_use", "mcp_tool_use", "server_tool_use"):
        return [block.name or "", bytes(block.input).decode()]
    if block.type == "thinking":
        return [reasoning_of(block.signature) or block.thinking or ""]
    if block.type == "document" and isinstance(block.source, Source):
        return [block.title or "", block.context or "", *_source_texts(block.source)]
    if isinstance(block.content, list):
        return [text for inner in block.content for text in _result_texts(inner)]
    return texts_in(block)


def _result_texts(block: Block) -> list[str]:
    if block.type == "image":
        return [_IMAGE_STAND_IN]
    if block.type == "document" and isinstance(block.source, Source):
        return _source_texts(block.source)
    return texts_in(block)


def _source_texts(source: Source) -> list[str]:
    return [source.data or ""] if source.type == "text" else texts_in(source.content)
