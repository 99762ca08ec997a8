"""The shape of a Messages request, read as permissively as clients need: unknown keys are skipped,
null stands for absent.

Decides what is a valid request; what a dialect or a model allows is decided elsewhere. One
permissive `Block` instead of a tagged union, because an unknown block type must not fail the
request. Tool inputs and schemas stay raw bytes: their key order and number spelling are part of the
prompt, and re-serialising them would cost the backend's prefix cache. Texts stay raw as well, for
speed (see `json_text`); nested content is read by `blocks_in` on demand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

import msgspec

from ferrule.errors import InvalidRequest, invalid_json
from ferrule.messages.json_text import EMPTY, NOTHING, first_char

ROLES = frozenset({"user", "assistant", "system"})


Count = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
"""What engines can take for a number of tokens."""


class MediaSource(msgspec.Struct, gc=False):
    """Where an image or a document comes from; `type` is base64, url, file, text or content."""

    type: str = ""
    media_type: str | None = None
    data: msgspec.Raw = NOTHING
    url: str | None = None
    content: msgspec.Raw = NOTHING


class Reference(msgspec.Struct, gc=False):
    """What a `tool_addition` or `tool_removal` names."""

    type: str = ""
    name: str | None = None
    tool_name: str | None = None
    server_name: str | None = None
    definition: msgspec.Raw = NOTHING


class Block(msgspec.Struct, gc=False):
    """Any content block: `type` says which of the other fields mean something."""

    type: str
    text: msgspec.Raw = NOTHING
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = NOTHING
    tool_use_id: str | None = None
    content: msgspec.Raw = NOTHING
    is_error: bool | None = None
    thinking: msgspec.Raw = NOTHING
    signature: str | None = None
    source: str | MediaSource | None = None
    title: msgspec.Raw = NOTHING
    context: msgspec.Raw = NOTHING
    url: msgspec.Raw = NOTHING
    tool_name: str | None = None
    tool_references: msgspec.Raw = NOTHING
    tool: Reference | None = None
    server_name: str | None = None
    error_code: msgspec.Raw = NOTHING
    stdout: msgspec.Raw = NOTHING
    stderr: msgspec.Raw = NOTHING
    return_code: msgspec.Raw = NOTHING


class OutputFormat(msgspec.Struct, gc=False):
    type: str = ""
    schema: msgspec.Raw = NOTHING


class OutputConfig(msgspec.Struct, gc=False):
    effort: str | None = None
    format: OutputFormat | None = None


class Message(msgspec.Struct, gc=False):
    role: str
    content: str | list[Block] | None = None
    output_config: OutputConfig | None = None


class Tool(msgspec.Struct, gc=False):
    """A tool definition; without a `type`, or with `custom`, it is the client's own."""

    name: str | None = None
    type: str | None = None
    description: msgspec.Raw = NOTHING
    input_schema: msgspec.Raw = NOTHING
    strict: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None

    @property
    def is_custom(self) -> bool:
        return self.type is None or self.type == "custom"


class ToolChoice(msgspec.Struct, gc=False):
    type: str = "auto"
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, gc=False):
    type: str = ""
    budget_tokens: Count | None = None
    display: str | None = None


class Edit(msgspec.Struct, gc=False):
    type: str = ""


class ContextManagement(msgspec.Struct, gc=False):
    edits: list[Edit] | None = None


class Body(msgspec.Struct, gc=False):
    """The members that are read. Hints without meaning for a chat-completions backend are not
    listed."""

    model: str
    messages: list[Message]
    max_tokens: Count | None = None
    system: str | list[Block] | None = None
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Count | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    metadata: msgspec.Raw = NOTHING
    mcp_servers: list[msgspec.Raw] | None = None
    context_management: ContextManagement | None = None
    compaction: msgspec.Raw = NOTHING
    thread: msgspec.Raw = NOTHING


class MessagesRequest(Body, gc=False):
    """A decoded request. `documents`: extracted texts of PDFs by the path of their block."""

    documents: Mapping[str, str] = MappingProxyType({})


_decoder = msgspec.json.Decoder(Body)
_blocks_decoder = msgspec.json.Decoder(list[Block])
_block_decoder = msgspec.json.Decoder(Block)


def blocks_in(content: msgspec.Raw, path: str) -> bytes | list[Block]:
    """Nested content: a string stays a literal; one block stands for a list of it; absent, null and
    empty are an empty list."""
    try:
        match first_char(content):
            case '"':
                literal = bytes(content)
                return literal if literal != EMPTY else []
            case "[":
                return _blocks_decoder.decode(content)
            case "{":
                return [_block_decoder.decode(content)]
            case "" | "n":
                return []
    except msgspec.ValidationError as error:
        raise _explained(str(error), path) from None
    except RecursionError:
        raise InvalidRequest(path, "is nested too deeply") from None
    raise InvalidRequest(path, "must be a string or an array of content blocks")


def decode(body: bytes) -> MessagesRequest:
    """The body of `/v1/messages` or `/v1/messages/count_tokens`. Raises InvalidRequest with the
    path of what is wrong."""
    try:
        request = MessagesRequest(*msgspec.structs.astuple(_decoder.decode(body)))
        if not body.isascii():
            # opaque parts are copied unread, so broken UTF-8 in them must be found here
            body.decode()
    except msgspec.ValidationError as error:
        raise _explained(str(error)) from None
    except RecursionError:
        raise InvalidRequest("", "The request body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid_json(body, error) from None
    if not request.model:
        raise InvalidRequest("model", "must be a non-empty string")
    if not request.messages:
        raise InvalidRequest("messages", "must hold at least one message")
    for index, message in enumerate(request.messages):
        if message.role not in ROLES:
            raise InvalidRequest(
                f"messages.{index}.role", "must be 'user', 'assistant' or 'system'"
            )
    return request


_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `([^`]+)`")
_EXPECTED = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_JSON_NAMES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


def _explained(error: str, below: str = "") -> InvalidRequest:
    """msgspec's words in the client's: `$.messages[3].role` becomes `messages.3.role`."""
    match = _AT.match(error)
    what, at = (match["what"], match["path"] or "$") if match else (error, "$")
    path = (below + at.removeprefix("$").replace("[", ".").replace("]", "")).lstrip(".")
    if missing := _MISSING.search(what):
        return InvalidRequest(f"{path}.{missing[1]}".lstrip("."), "is required")
    if expected := _EXPECTED.search(what):
        wanted = " or ".join(_JSON_NAMES.get(name, name) for name in expected[1].split(" | "))
        return InvalidRequest(
            path or "body", f"must be {wanted}, not {_JSON_NAMES.get(expected[2], expected[2])}"
        )
    return InvalidRequest(path or "body", what)
