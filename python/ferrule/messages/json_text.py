"""Texts as JSON string literals, quotes and escapes included, which go from the client's body to
the backend's without being decoded.

Decoding and re-encoding the texts of a large request takes three times as long as copying them.
Literals are valid here: msgspec checks escapes and surrogates of what it skips over.
Two spellings of one text stay two spellings; a client keeps to one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ferrule.errors import InvalidRequest

NOTHING = msgspec.Raw(b"")
"""An absent opaque member; encoders leave out this very object."""
EMPTY = b'""'
BLANK_LINE = rb"\n\n"
LINE = rb"\n"

quote = msgspec.json.Encoder().encode
"""str → literal"""
_decode_string = msgspec.json.Decoder(str).decode


def unquote(literal: bytes) -> str:
    return _decode_string(literal)


def first_char(raw: msgspec.Raw) -> str:
    """The first character of an opaque member, which determines its type; empty if absent. Copies
    nothing."""
    return chr(memoryview(raw)[0]) if raw is not NOTHING else ""


def is_given(raw: msgspec.Raw) -> bool:
    """Whether an opaque member is present and not null."""
    return first_char(raw) not in ("", "n")


def string_in(raw: msgspec.Raw, path: str, member: str) -> bytes | None:
    """The literal in an opaque member of what is at `path`; None for absent, null and empty. Raises
    InvalidRequest for no string."""
    if first_char(raw) == '"':
        literal = bytes(raw)
        return None if literal == EMPTY else literal
    if not is_given(raw):
        return None
    raise InvalidRequest(f"{path}.{member}", "must be a string")


def join(literals: Sequence[bytes], between: bytes = BLANK_LINE) -> bytes:
    """One literal; `between` is already escaped."""
    if len(literals) == 1:
        return literals[0]
    return b'"' + between.join([literal[1:-1] for literal in literals]) + b'"'


def wrap(before: bytes, literal: bytes, after: bytes) -> bytes:
    """`before` and `after` are already escaped."""
    return b'"' + before + literal[1:-1] + after + b'"'
