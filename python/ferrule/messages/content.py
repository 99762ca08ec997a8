"""Converts content blocks into what a chat message can hold: texts and images, in order. Every
block type is handled here or in `conversation`.

An item is a text (a JSON literal) or an image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from ferrule.errors import InvalidRequest
from ferrule.messages import media
from ferrule.messages.chat_schema import ImagePart, ImageUrl, TextPart, encode
from ferrule.messages.diagnostics import Diagnostics
from ferrule.messages.json_text import (
    BLANK_LINE,
    EMPTY,
    LINE,
    first_char,
    is_given,
    join,
    quote,
    string_in,
    wrap,
)
from ferrule.messages.policy import Policy
from ferrule.messages.schema import Block, MediaSource, blocks_in

Item = bytes | ImagePart

# a `content` inside a `content` inside a … is cut here; real ones are three deep
_DEPTH_MAX = 8
_COLON = b": "

SERVER_HISTORY = frozenset(
    {
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "advisor_tool_result",
    }
)
# nothing in them is for the model
_INERT = frozenset({"redacted_thinking", "mcp_tool_listing", "fallback"})


class Reader(msgspec.Struct, frozen=True, gc=False):
    """What converting a block depends on. `documents`: extracted texts by the path of their
    block."""

    policy: Policy
    diagnostics: Diagnostics
    documents: Mapping[str, str]


def items_of(block: Block, reader: Reader, path: str) -> list[Item]:
    """Converts any block but those that `conversation` handles. Raises InvalidRequest with the
    block's path where the policy refuses it."""
    if block.type == "text":
        return [*text_in(block, path)]
    treat = _CONVERTERS.get(block.type)
    if treat is not None:
        return treat(block, reader, path)
    if block.type in SERVER_HISTORY:
        return _server_history(block, reader, path)
    if block.type in _INERT:
        return []
    texts = text_in(block, path)
    if not texts:
        reader.diagnostics.drop(block.type)
    return [*texts]


def text_in(block: Block, path: str) -> tuple[bytes, ...]:
    """The text of a block, if it has any."""
    literal = string_in(block.text, path, "text")
    return () if literal is None else (literal,)


def result_items(content: msgspec.Raw, reader: Reader, path: str) -> list[Item]:
    """The content of a tool result; `path` is the content's."""
    blocks = blocks_in(content, path)
    if isinstance(blocks, bytes):
        return [blocks]
    return [
        item
        for index, block in enumerate(blocks)
        for item in items_of(block, reader, f"{path}.{index}")
    ]


def to_content(items: Sequence[Item]) -> msgspec.Raw:
    """One string where there are texts only, so that string and list form give the same bytes; else
    a list of parts."""
    texts = [item for item in items if isinstance(item, bytes)]
    if len(texts) == len(items):
        return msgspec.Raw(join(texts))
    return msgspec.Raw(
        encode([TextPart(msgspec.Raw(item)) if isinstance(item, bytes) else item for item in items])
    )


def announce_tool(tool_name: str | None) -> bytes:
    return quote(f"Tool {tool_name} is now available.")


def texts_in(content: msgspec.Raw, path: str, depth: int = 0) -> list[bytes]:
    """All text that nested content holds, one line for a hit, in order; encrypted and binary parts
    stay out."""
    blocks = blocks_in(content, path)
    if isinstance(blocks, bytes):
        return [blocks]
    if depth > _DEPTH_MAX:
        return []
    return [
        text
        for index, block in enumerate(blocks)
        for text in _texts_of(block, f"{path}.{index}", depth + 1)
    ]


def _texts_of(block: Block, path: str, depth: int) -> list[bytes]:
    head = strings(block.title, block.url)
    texts = [join(head, _COLON)] if head else []
    texts += text_in(block, path)
    texts += strings(block.stdout, block.stderr)
    texts += [wrap(b"error: ", code, b"") for code in strings(block.error_code)]
    if is_given(block.return_code) and bytes(block.return_code) != b"0":
        texts.append(quote(f"exit status {str(block.return_code, 'utf-8')}"))
    references = blocks_in(block.tool_references, f"{path}.tool_references")
    texts += [
        announce_tool(reference.tool_name)
        for reference in references
        if isinstance(reference, Block)
    ]
    if isinstance(block.source, MediaSource) and block.source.type == "text":
        texts += texts_in(block.source.data, f"{path}.source.data", depth)
    return texts + texts_in(block.content, f"{path}.content", depth)


def strings(*members: msgspec.Raw) -> list[bytes]:
    """Those that are non-empty strings; anything else in a hint counts as absent."""
    return [
        literal
        for literal in (bytes(member) for member in members if first_char(member) == '"')
        if literal != EMPTY
    ]


# Block by block


def _image(block: Block, reader: Reader, path: str) -> list[Item]:
    url = media.image_url(block, reader.policy, path)
    return [media.note("image") if url is None else ImagePart(ImageUrl(msgspec.Raw(url)))]


def _document(block: Block, reader: Reader, path: str) -> list[Item]:
    source = media.source_of(block, path)
    head = [wrap(b"Document: ", title, b"") for title in strings(block.title)]
    head += [wrap(b"Context: ", context, b"") for context in strings(block.context)]
    if source.type == "text":
        literal = string_in(source.data, path, "source.data")
        return _under(head, [] if literal is None else [literal])
    if source.type == "content":
        return _under(head, result_items(source.content, reader, f"{path}.source.content"))
    media.check_document(source, reader.policy, path)
    if path in reader.documents and media.wants_document_text(reader.policy):
        return _under(head, [quote(reader.documents[path])])
    return [media.note("document")]


def _under(head: list[bytes], items: list[Item]) -> list[Item]:
    """One text where there are texts only: a document is one thing."""
    texts = [item for item in items if isinstance(item, bytes)]
    if len(texts) < len(items):
        return [*head, *items]
    return [join([*head, *texts])] if head or texts else []


def _search_result(block: Block, reader: Reader, path: str) -> list[Item]:
    if reader.policy.dialect.search_results == "refuse":
        raise InvalidRequest(
            path, "search_result blocks are not supported; send their text in text blocks"
        )
    head = [wrap(b"Search result: ", title, b"") for title in strings(block.title)]
    if isinstance(block.source, str):
        head.append(quote(f"Source: {block.source}"))
    texts = [*([join(head, LINE)] if head else []), *texts_in(block.content, f"{path}.content")]
    return [join(texts, BLANK_LINE)] if texts else []


def _tool_reference(block: Block, reader: Reader, path: str) -> list[Item]:
    return [announce_tool(block.tool_name)]


def _upload(block: Block, reader: Reader, path: str) -> list[Item]:
    reader.diagnostics.drop(block.type)
    return [quote("[uploaded file omitted: there are no stored files here]")]


def _compaction(block: Block, reader: Reader, path: str) -> list[Item]:
    return list(texts_in(block.content, f"{path}.content"))


_CONVERTERS: Mapping[str, Callable[[Block, Reader, str], list[Item]]] = {
    "image": _image,
    "document": _document,
    "search_result": _search_result,
    "tool_reference": _tool_reference,
    "container_upload": _upload,
    "compaction": _compaction,
}


def _server_history(block: Block, reader: Reader, path: str) -> list[Item]:
    """A server tool's part of the history: as text where the setting says that nothing is lost
    silently, else left out."""
    reader.diagnostics.drop(block.type)
    if reader.policy.dialect.server_tools == "drop":
        return []
    reader.diagnostics.warn(block.type, "part of a server tool's history")
    if reader.policy.dialect.server_tools == "warn":
        return []
    if block.type == "server_tool_use":
        return [quote(f"[{block.name}: {bytes(block.input).decode()}]")]
    head = quote(f"[{block.type.removesuffix('_tool_result')} result]")
    return [join([head, *texts_in(block.content, f"{path}.content")], LINE)]
