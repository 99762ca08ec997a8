"""Images and documents: forwarded, turned into text, replaced by a note, or refused, by the `media`
setting and the policy."""

from __future__ import annotations

from urllib.parse import urlsplit

from ferrule.errors import InvalidRequest
from ferrule.messages.json_text import quote, string_in
from ferrule.messages.policy import Policy
from ferrule.messages.schema import Block, MediaSource

_IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})


def note(kind: str) -> bytes:
    """The placeholder for something the model cannot read."""
    return quote(f"[{kind} omitted: this model reads text only]")


def image_url(block: Block, policy: Policy, path: str) -> bytes | None:
    """The URL (a literal) under which the backend gets an image; None: a note takes its place.
    Raises InvalidRequest naming the block."""
    mode = policy.dialect.media
    if mode == "forward_or_refuse" and not policy.images:
        raise InvalidRequest(
            path,
            "this model reads text only; leave the image block out (capability_rejected: "
            "image_block)",
        )
    if mode == "note" or (mode == "forward_or_note" and not policy.images):
        return None
    source = source_of(block, path)
    if source.type == "base64":
        data = string_in(source.data, f"{path}.source", "data")
        if data is None:
            raise InvalidRequest(f"{path}.source.data", "must be the image in base64")
        if source.media_type not in _IMAGE_TYPES:
            raise InvalidRequest(
                f"{path}.source.media_type", f"must be one of {', '.join(sorted(_IMAGE_TYPES))}"
            )
        return b'"data:' + source.media_type.encode() + b";base64," + data[1:]
    if source.type == "url":
        return quote(_allowed_url(source, policy, path))
    raise InvalidRequest(
        f"{path}.source.type", "must be 'base64' or 'url': there are no stored files here"
    )


def check_document(source: MediaSource, policy: Policy, path: str) -> None:
    """A document that is neither text nor content. Raises InvalidRequest naming the block where the
    policy refuses it."""
    if policy.dialect.media == "forward_or_refuse" and not policy.images:
        raise InvalidRequest(
            path,
            "this model reads text only; leave the document block out (capability_rejected: "
            "document_block)",
        )
    if policy.dialect.media == "note":
        return
    if source.type == "url":
        _allowed_url(source, policy, path)
    elif source.type != "base64":
        raise InvalidRequest(
            f"{path}.source.type",
            "must be 'base64', 'text', 'content' or 'url': there are no stored files here",
        )


def wants_document_text(policy: Policy) -> bool:
    """Whether the text of a PDF would be used at all."""
    return policy.dialect.media != "note" and (
        policy.images or policy.dialect.media != "forward_or_refuse"
    )


def source_of(block: Block, path: str) -> MediaSource:
    if not isinstance(block.source, MediaSource):
        raise InvalidRequest(f"{path}.source", "must be an object with a type")
    return block.source


def _allowed_url(source: MediaSource, policy: Policy, path: str) -> str:
    url = source.url or ""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        raise InvalidRequest(f"{path}.source.url", "must be a URL") from None
    if parts.scheme not in ("http", "https") or host not in policy.media_hosts:
        raise InvalidRequest(
            f"{path}.source.url",
            "must be on a host this gateway passes on; send the content as base64 instead",
        )
    return url
