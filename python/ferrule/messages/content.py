"""Content blocks → what a chat message can hold: texts and images, in order. Every block type has its treatment here or in `turns`.

An item is a text (str) or the URL of an image (`ImagePart`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from ferrule.errors import InvalidRequest
from ferrule.messages import media
from ferrule.messages.chat_shape import ImagePart, ImageUrl, Part, TextPart
from ferrule.messages.losses import Losses
from ferrule.messages.policy import Policy
from ferrule.messages.schema import Block, Source
from ferrule.messages.system import BLANK_LINE

Item = str | ImagePart

# a `content` inside a `content` inside a … is cut here; real ones are three deep
_DEPTH_MAX = 8

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


class Reader(msgspec.Struct, frozen=True):
    """What reading a block depends on."""

    policy: Policy
    losses: Losses


def items_of(block: Block, reader: Reader, path: str) -> list[Item]:
    """Any block but those that `turns` takes itself. Raises InvalidRequest naming the block where the policy refuses it."""
    treat = _TREATMENTS.get(block.type)
    if treat is not None:
        return treat(block, reader, path)
    if block.type in SERVER_HISTORY:
        return _server_history(block, reader)
    if block.type in _INERT:
        return []
    if block.text:
        return [block.text]
    reader.losses.drop(block.type)
    return []


def result_items(content: str | list[Block] | Block | None, reader: Reader, path: str) -> list[Item]:
    """What a tool answered."""
    if not content:
        return []
    if isinstance(content, str):
        return [content]
    blocks = content if isinstance(content, list) else [content]
    if len(blocks) == 1 and blocks[0].type == "text":
        return [blocks[0].text] if blocks[0].text else []
    return [item for index, block in enumerate(blocks) for item in items_of(block, reader, f"{path}.content.{index}")]


def joined(items: list[Item]) -> str | list[Part]:
    """One string where there are texts only, so that string and list form give the same bytes; else parts."""
    if len(items) == 1 and isinstance(items[0], str):
        return items[0]
    texts = [item for item in items if isinstance(item, str)]
    if len(texts) == len(items):
        return BLANK_LINE.join(texts)
    return [TextPart(item) if isinstance(item, str) else item for item in items]


def available(tool_name: str | None) -> str:
    return f"Tool {tool_name} is now available."


def _text(block: Block, reader: Reader, path: str) -> list[Item]:
    return [block.text] if block.text else []


def _image(block: Block, reader: Reader, path: str) -> list[Item]:
    url = media.image_url(block, reader.policy, path)
    return [media.note("image") if url is None else ImagePart(ImageUrl(url))]


def _document(block: Block, reader: Reader, path: str) -> list[Item]:
    source = block.source
    if isinstance(source, Source) and source.type == "content" and isinstance(source.content, list):
        return _document_parts(block, source.content, reader, path)
    text = media.document_text(block, reader.policy, path)
    return [text] if text else []


def _document_parts(block: Block, parts: list[Block], reader: Reader, path: str) -> list[Item]:
    items: list[Item] = list(media.document_head(block))
    for index, part in enumerate(parts):
        if part.type in ("text", "image"):
            items += items_of(part, reader, f"{path}.source.content.{index}")
    return items


def _search_result(block: Block, reader: Reader, path: str) -> list[Item]:
    if reader.policy.knobs.search_results == "refuse":
        raise InvalidRequest(path, "search_result blocks are not supported; send their text in text blocks")
    head = [f"Search result: {block.title}"] if block.title else []
    if isinstance(block.source, str):
        head.append(f"Source: {block.source}")
    return [BLANK_LINE.join(["\n".join(head), *texts_in(block.content)])]


def _tool_reference(block: Block, reader: Reader, path: str) -> list[Item]:
    return [available(block.tool_name)]


def _upload(block: Block, reader: Reader, path: str) -> list[Item]:
    reader.losses.drop(block.type)
    return ["[uploaded file omitted: there are no stored files here]"]


def _compaction(block: Block, reader: Reader, path: str) -> list[Item]:
    return list(texts_in(block.content))


_TREATMENTS: Mapping[str, Callable[[Block, Reader, str], list[Item]]] = {
    "text": _text,
    "image": _image,
    "document": _document,
    "search_result": _search_result,
    "tool_reference": _tool_reference,
    "container_upload": _upload,
    "compaction": _compaction,
}


def _server_history(block: Block, reader: Reader) -> list[Item]:
    """What Anthropic's servers once did in this conversation, told as text where the knob says that nothing is lost in silence."""
    reader.losses.drop(block.type)
    if reader.policy.knobs.server_tools == "drop":
        return []
    reader.losses.warn(block.type, "part of a server tool's history")
    if reader.policy.knobs.server_tools == "warn":
        return []
    if block.type == "server_tool_use":
        return [f"[{block.name}: {bytes(block.input).decode()}]"]
    text = "\n".join(texts_in(block.content))
    return [f"[{block.type.removesuffix('_tool_result')} result]\n{text}"]


def texts_in(content: str | list[Block] | Block | None, depth: int = 0) -> list[str]:
    """All text a nested result holds, one line for a hit, in order; encrypted and binary parts stay out."""
    if content is None or depth > _DEPTH_MAX:
        return []
    if isinstance(content, str):
        return [content] if content else []
    if isinstance(content, list):
        return [text for block in content for text in texts_in(block, depth + 1)]
    parts = [": ".join(part for part in (content.title, content.url) if part), content.text, content.stdout, content.stderr]
    if content.return_code:
        parts.append(f"exit status {content.return_code}")
    if content.error_code:
        parts.append(f"error: {content.error_code}")
    parts += [available(reference.tool_name) for reference in content.tool_references or ()]
    if isinstance(content.source, Source) and content.source.type == "text":
        parts.append(content.source.data)
    return [part for part in parts if part] + texts_in(content.content, depth + 1)
