"""Images and documents: what is passed on, what becomes text, what becomes a note and what is refused, by one knob and the policy."""

from __future__ import annotations

from urllib.parse import urlsplit

from ferrule.errors import InvalidRequest
from ferrule.messages.policy import Policy
from ferrule.messages.schema import Block, Source
from ferrule.messages.system import BLANK_LINE

_IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")


def note(kind: str) -> str:
    """What stands in the place of something the model cannot read."""
    return f"[{kind} omitted: this model reads text only]"


def image_url(block: Block, policy: Policy, path: str) -> str | None:
    """The URL under which the backend gets an image; None: a note takes its place. Raises InvalidRequest naming the block."""
    if policy.knobs.media == "note":
        return None
    if not policy.images and policy.knobs.media == "forward_or_refuse":
        raise InvalidRequest(path, "this model reads text only; leave the image block out (capability_rejected: image_block)")
    if not policy.images and policy.knobs.media == "forward_or_note":
        return None
    source = _source(block, path)
    if source.type == "base64":
        if not source.data:
            raise InvalidRequest(f"{path}.source.data", "must be the image in base64")
        return f"data:{source.media_type or _IMAGE_TYPES[1]};base64,{source.data}"
    if source.type == "url":
        return _allowed_url(source, policy, path)
    raise InvalidRequest(f"{path}.source.type", f"must be 'base64' or 'url', not '{source.type}'")


def document_text(block: Block, policy: Policy, path: str) -> str:
    """A document as text with its title and context, or the note. Raises InvalidRequest naming the block."""
    source = _source(block, path)
    if source.type in ("text", "content"):
        text = source.data if source.type == "text" else source.content
        return BLANK_LINE.join([*document_head(block), *([text] if isinstance(text, str) and text else [])])
    if policy.knobs.media == "forward_or_refuse" and not policy.images:
        raise InvalidRequest(path, "this model reads text only; leave the document block out (capability_rejected: document_block)")
    if source.type == "file":
        raise InvalidRequest(f"{path}.source.type", "must be 'base64', 'text' or 'content': there are no stored files here")
    if source.type == "url" and policy.knobs.media != "note":
        _allowed_url(source, policy, path)
    return note("document")


def wants_document_text(policy: Policy) -> bool:
    """Whether the text of a PDF would be used at all."""
    return policy.knobs.media != "note" and (policy.images or policy.knobs.media != "forward_or_refuse")


def _source(block: Block, path: str) -> Source:
    if not isinstance(block.source, Source):
        raise InvalidRequest(f"{path}.source", "must be an object with a type")
    return block.source


def _allowed_url(source: Source, policy: Policy, path: str) -> str:
    url = source.url or ""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidRequest(f"{path}.source.url", "must be a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.hostname not in policy.media_hosts:
        raise InvalidRequest(f"{path}.source.url", "must be on a host this gateway passes on; send the content as base64 instead")
    return url


def document_head(block: Block) -> list[str]:
    """The lines that say what a document is."""
    head = [f"Document: {block.title}"] if block.title else []
    if block.context:
        head.append(f"Context: {block.context}")
    return head
