"""The input of a token count: texts for the gateway's own tokenizer, or a body for the engine's
counting route."""

from __future__ import annotations

import msgspec

from ferrule.messages.chat_schema import ChatBody, ChatMessage, FunctionTool, TemplateKwargs, encode
from ferrule.messages.content import Reader, strings, texts_in
from ferrule.messages.diagnostics import Diagnostics
from ferrule.messages.json_text import quote, string_in, unquote
from ferrule.messages.opaque_values import reasoning_of
from ferrule.messages.policy import Policy
from ferrule.messages.schema import Block, MediaSource, Message, MessagesRequest, blocks_in
from ferrule.messages.system import system_text
from ferrule.messages.tools import visible_tools
from ferrule.messages.translate import Prompt, build_prompt

# An image counts as some 1,500 tokens in an estimate, whatever its size. Engines differ, but none
# counts the base64
_IMAGE_STAND_IN = "image " * 1_500
_CALLS = frozenset({"tool_use", "mcp_tool_use", "server_tool_use"})


class _TokenizeBody(msgspec.Struct, omit_defaults=True):
    model: str
    messages: list[ChatMessage]
    tools: list[FunctionTool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None


def text_of(request: MessagesRequest) -> list[str]:
    """All text of a request: system, visible tools, messages. An image counts as a fixed
    length of text, its base64 never."""
    literals: list[bytes] = []
    if (system := system_text(request.system, "system")) is not None:
        literals.append(system)
    for index, message in enumerate(request.messages):
        literals += _message_texts(message, f"messages.{index}.content")
    texts = [*map(unquote, literals), *request.documents.values()]
    for tool in visible_tools(request):
        texts += [
            tool.name or "",
            *map(unquote, strings(tool.description)),
            str(tool.input_schema, "utf-8"),
        ]
    return [text for text in texts if text]


def tokenize_body(request: MessagesRequest, policy: Policy) -> bytes:
    """The body that the engine's own counting route takes, with the prompt exactly as a request
    would have it."""
    prompt = build_prompt(request, Reader(policy, Diagnostics(), request.documents), request.model)
    if policy.engine.tokenize_route == "llamacpp":
        return encode(
            ChatBody(
                model=policy.upstream,
                messages=prompt.messages,
                tools=prompt.tool_set.tools,
                reasoning_effort=prompt.plan.effort,
                chat_template_kwargs=prompt.plan.kwargs,
            )
        )
    continues = prompt.prefilled and policy.engine.can_continue_final
    return encode(
        _TokenizeBody(
            model=policy.upstream,
            messages=prompt.messages,
            tools=prompt.tool_set.tools,
            add_generation_prompt=not continues,
            continue_final_message=continues or None,
            chat_template_kwargs=_kwargs(prompt),
        )
    )


def _kwargs(prompt: Prompt) -> TemplateKwargs | None:
    """The counting routes ignore a top-level effort; the chat route puts it into the template's
    arguments like this."""
    kwargs, effort = prompt.plan.kwargs, prompt.plan.effort
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
        return [quote(message.content)]
    return [
        text
        for index, block in enumerate(message.content)
        for text in _block_texts(block, f"{path}.{index}")
    ]


def _block_texts(block: Block, path: str) -> list[bytes]:
    if block.type == "image":
        return [quote(_IMAGE_STAND_IN)]
    if block.type in _CALLS:
        return [quote(block.name or ""), quote(str(block.input, "utf-8"))]
    if block.type == "thinking":
        restored = reasoning_of(block.signature)
        literal = quote(restored) if restored else string_in(block.thinking, path, "thinking")
        return [] if literal is None else [literal]
    if block.type == "document" and isinstance(block.source, MediaSource):
        return _document_texts(block, block.source, path)
    literal = string_in(block.text, path, "text")
    return ([] if literal is None else [literal]) + _nested(block.content, f"{path}.content")


def _document_texts(block: Block, source: MediaSource, path: str) -> list[bytes]:
    head = strings(block.title, block.context)
    if source.type == "text":
        return head + texts_in(source.data, f"{path}.source.data")
    return head + (
        _nested(source.content, f"{path}.source.content") if source.type == "content" else []
    )


def _nested(content: msgspec.Raw, path: str) -> list[bytes]:
    blocks = blocks_in(content, path)
    if isinstance(blocks, bytes):
        return [blocks]
    texts: list[bytes] = []
    for index, block in enumerate(blocks):
        at = f"{path}.{index}"
        if block.type == "image":
            texts.append(quote(_IMAGE_STAND_IN))
        elif block.type == "document" and isinstance(block.source, MediaSource):
            texts += _document_texts(block, block.source, at)
        else:
            literal = string_in(block.text, at, "text")
            texts += ([] if literal is None else [literal]) + texts_in(
                block.content, f"{at}.content"
            )
    return texts
