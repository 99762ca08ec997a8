"""PDF documents → their text. Reading one takes up to seconds, so the caller does it off the loop
and under its own time limit.

`pending` says what there is to read, `read` reads it, `resolve` puts the texts into the request. A
document that cannot be read gives no text, and a note takes its place: never an error for what a
client only attached.
"""

from __future__ import annotations

import binascii
import io
import logging
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping

import msgspec
import pypdf

from ferrule.messages.json_text import first_char
from ferrule.messages.media import wants_document_text
from ferrule.messages.policy import Policy
from ferrule.messages.schema import Block, MediaSource, MessagesRequest, blocks_in

PDF_BYTES_MAX = 32 << 20
PDF_PAGES_MAX = 200
TEXT_CHARS_MAX = 1 << 20
_DEPTH_MAX = 3

# what pypdf raises for broken files is not one class
_BROKEN_PDF = (
    pypdf.errors.PyPdfError,
    zlib.error,
    struct.error,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)

# pypdf reports every oddity of a file; whose file it was does not belong into a log
logging.getLogger("pypdf").setLevel(logging.CRITICAL)


class Pending(msgspec.Struct, frozen=True):
    """A PDF to read: `path` is the block's place in the request, `data` its base64 as a JSON
    literal."""

    path: str
    data: bytes


def pending(request: MessagesRequest, policy: Policy) -> list[Pending]:
    """The PDFs whose text would be used. Cheap for a request without documents."""
    if not wants_document_text(policy):
        return []
    found: list[Pending] = []
    for index, message in enumerate(request.messages):
        if isinstance(message.content, list):
            found += _pdfs(message.content, f"messages.{index}.content", 0)
    return found


def read(documents: Iterable[Pending]) -> Mapping[str, str]:
    """Texts by path; one that cannot be read is missing. Blocks for as long as the reading
    takes."""
    texts: dict[str, str] = {}
    for document in documents:
        try:
            text = text_of_pdf(binascii.a2b_base64(document.data))
        except binascii.Error:
            continue
        if text:
            texts[document.path] = text
    return texts


def resolve(request: MessagesRequest, texts: Mapping[str, str]) -> MessagesRequest:
    """The request with the texts that `read` gave, or with none where it was given up."""
    return msgspec.structs.replace(request, documents=texts)


def text_of_pdf(pdf: bytes) -> str | None:
    """The text of all pages, cut at `TEXT_CHARS_MAX`; None for what is no PDF, encrypted, too
    large, too long or without text."""
    if len(pdf) > PDF_BYTES_MAX or not pdf.startswith(b"%PDF"):
        return None
    try:
        reader = pypdf.PdfReader(io.BytesIO(pdf))
        if reader.is_encrypted or len(reader.pages) > PDF_PAGES_MAX:
            return None
        return "\n\n".join(_pages(reader)).strip() or None
    except _BROKEN_PDF:
        return None


def _pages(reader: pypdf.PdfReader) -> Iterator[str]:
    room = TEXT_CHARS_MAX
    for page in reader.pages:
        text = page.extract_text()[:room]
        room -= len(text)
        yield text
        if room <= 0:
            return


def _pdfs(blocks: list[Block], path: str, depth: int) -> Iterator[Pending]:
    for index, block in enumerate(blocks):
        at = f"{path}.{index}"
        source = block.source
        if block.type == "document" and isinstance(source, MediaSource):
            if source.type == "base64" and source.media_type in (None, "application/pdf"):
                yield Pending(at, bytes(source.data))
        elif (
            block.type in ("tool_result", "mcp_tool_result")
            and depth < _DEPTH_MAX
            and first_char(block.content) == "["
        ):
            inner = blocks_in(block.content, f"{at}.content")
            if isinstance(inner, list):
                yield from _pdfs(inner, f"{at}.content", depth + 1)
