"""What a prompt is made of, for counting its tokens: the texts for the gateway's own tokenizer, the body for an engine's count."""

from __future__ import annotations

import msgspec

from ferrule.messages.chat_schema import ChatBody, ChatMessage, FunctionTool, TemplateKwargs, encode
from ferrule.messages.content import Reader, strings, texts_in
from ferrule.messages.diagnostics import Losses
from ferrule.messages.json_text import quoted, string_in, unquoted
from ferrule.messages.opaque_values import reasoning_of
from ferrule.messages.policy import Policy
from ferrule.messages.schema import Block, Message, Request, Source, blocks_in
from ferrule.messages.system import system_text
from ferrule.messages.tools import visible
from ferrule.messages.translate import Told, tell

# What an image counts for in an estimate: some 1,500 tokens, whatever its size. Engines differ, none counts the base64
_IMAGE_STAND_IN = "image " * 1_500
_CALLS = frozenset({"tool_use", "mcp_tool_use", "server_tool_use"})


class _TokenizeBody(msgspec.Struct, omit_defaults=True):
    model: str
    messages: list[ChatMessage]
    tools: list[FunctionTool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None


def text_of(request: Request) -> list[str]:
    """All text of a request: system, the tools on offer, messages. An image counts as a fixed length of text, its base64 never."""
    literals: list[bytes] = []
    if (system := system_text(request.system, "system")) is not None:
        literals.append(system)
    for index, message in enumerate(request.messages):
        literals += _message_texts(message, f"messages.{index}.content")
    texts = [*map(unquoted, literals), *request.documents.values()]
    for tool in visible(request):
        texts += [tool.name or "", *map(unquoted, strings(tool.description)), str(tool.input_schema, "utf-8")]
    return [text for text in texts if text]


def tokenize_body(request: Request, policy: Policy) -> bytes:
    """The body that the engine's own counting route takes, with the prompt exactly as a request would have it."""
    told = tell(request, Reader(policy, Losses(), request.documents), request.model)
    if policy.engine.tokenize_route == "llamacpp":
        return encode(
            ChatBody(
                model=policy.upstream,
                messages=told.messages,
                tools=told.offer.tools,
                reasoning_effort=told.plan.effort,
                chat_template_kwargs=told.plan.kwargs,
            )
        )
    continued = told.prefilled and policy.engine.can_continue_final
    return encode(
        _TokenizeBody(
            model=policy.upstream,
            messages=told.messages,
            tools=told.offer.tools,
            add_generation_prompt=not continued,
            continue_final_message=continued or None,
            chat_template_kwargs=_kwargs(told),
        )
    )


def _kwargs(told: Told) -> TemplateKwargs | None:
    """The counting routes ignore a top-level effort; the chat route puts it into the template's arguments like this."""
    kwargs, effort = told.plan.kwargs, told.plan.effort
    if effort is None:
        return kwargs
    return TemplateKwargs(
        enable_thinking=kwargs.enable_thinking if kwargs else effort != "none",
        thinking=kwargs.thinking if kwargs else None,
        reasoning_effort=effort,
    )


def _message_texts(message: Message, path: str) -> list[bytes]:
    if not message.content:
        return []
    if message.role == "system":
        text = system_text(message.content, path)
        return [] if text is None else [text]
    if isinstance(message.content, str):
        return [quoted(message.content)]
    return [text for index, block in enumerate(message.content) for text in _block_texts(block, f"{path}.{index}")]


def _block_texts(block: Block, path: str) -> list[bytes]:
    if block.type == "image":
        return [quoted(_IMAGE_STAND_IN)]
    if block.type in _CALLS:
        return [quoted(block.name or ""), quoted(str(block.input, "utf-8"))]
    if block.type == "thinking":
        restored = reasoning_of(block.signature)
        literal = quoted(restored) if restored else string_in(block.thinking, path, "thinking")
        return [] if literal is None else [literal]
    if block.type == "document" and isinstance(block.source, Source):
        return _document_texts(block, block.source, path)
    literal = string_in(block.text, path, "text")
    return ([] if literal is None else [literal]) + _nested(block.content, f"{path}.content")


def _document_texts(block: Block, source: Source, path: str) -> list[bytes]:
    head = strings(block.title, block.context)
    if source.type == "text":
        return head + texts_in(source.data, f"{path}.source.data")
    return head + (_nested(source.content, f"{path}.source.content") if source.type == "content" else [])


def _nested(content: msgspec.Raw, path: str) -> list[bytes]:
    blocks = blocks_in(content, path)
    if isinstance(blocks, bytes):
        return [blocks]
    texts: list[bytes] = []
    for index, block in enumerate(blocks):
        at = f"{path}.{index}"
        if block.type == "image":
            texts.append(quoted(_IMAGE_STAND_IN))
        elif block.type == "document" and isinstance(block.source, Source):
            texts += _document_texts(block, block.source, at)
        else:
            literal = string_in(block.text, at, "text")
            texts += ([] if literal is None else [literal]) + texts_in(block.content, f"{at}.content")
    return texts
