"""The chat-completions request as engines read it. Field order is fixed, so that equal requests
give equal bytes."""

from __future__ import annotations

from typing import Literal

import msgspec

from ferrule.messages.json_text import NOTHING


class ImageUrl(msgspec.Struct, gc=False):
    url: msgspec.Raw


class TextPart(msgspec.Struct, tag_field="type", tag="text", gc=False):
    text: msgspec.Raw


class ImagePart(msgspec.Struct, tag_field="type", tag="image_url", gc=False):
    image_url: ImageUrl


Part = TextPart | ImagePart


class CalledFunction(msgspec.Struct, gc=False):
    name: str
    arguments: str
    """JSON text, byte for byte as the client sent it."""


class ToolCall(msgspec.Struct, tag_field="type", tag="function", gc=False):
    id: str
    function: CalledFunction


class ChatMessage(msgspec.Struct, omit_defaults=True, gc=False):
    """One message; texts are JSON literals. `reasoning` and `reasoning_content` are two engines'
    names for one thing, never both."""

    role: Literal["system", "user", "assistant", "tool"]
    content: msgspec.Raw
    """A string literal or a list of parts."""
    reasoning: msgspec.Raw = NOTHING
    reasoning_content: msgspec.Raw = NOTHING
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class Function(msgspec.Struct, omit_defaults=True, gc=False):
    name: str
    description: msgspec.Raw = NOTHING
    parameters: msgspec.Raw = NOTHING
    strict: bool | None = None


class FunctionTool(msgspec.Struct, tag_field="type", tag="function", gc=False):
    function: Function


class FunctionName(msgspec.Struct, gc=False):
    name: str


class NamedTool(msgspec.Struct, tag_field="type", tag="function", gc=False):
    function: FunctionName


class JsonSchema(msgspec.Struct, gc=False):
    name: str
    schema: msgspec.Raw
    strict: bool


class ResponseFormat(msgspec.Struct, tag_field="type", tag="json_schema", gc=False):
    json_schema: JsonSchema


class StreamOptions(msgspec.Struct, gc=False):
    include_usage: bool


class TemplateKwargs(msgspec.Struct, omit_defaults=True, gc=False):
    """Arguments of the chat template. DeepSeek's templates read `thinking`, the others
    `enable_thinking`; what a template does not know it ignores, so both are sent."""

    enable_thinking: bool | None = None
    thinking: bool | None = None
    reasoning_effort: str | None = None


class ChatBody(msgspec.Struct, omit_defaults=True, gc=False):
    """The whole request; absent members are left out, since some engines refuse null and empty
    ones."""

    model: str
    messages: list[ChatMessage]
    tools: list[FunctionTool] | None = None
    tool_choice: str | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: list[str] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    thinking_token_budget: int | None = None
    thinking_budget_tokens: int | None = None
    response_format: ResponseFormat | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None


encode = msgspec.json.Encoder().encode
