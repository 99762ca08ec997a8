"""Values that clients send back unchanged: signatures that carry the reasoning, wrapped tool ids.

Nothing is stored; the value holds all that is needed. A foreign or broken value is never an error.
"""

from __future__ import annotations

import binascii
import re

from ferrule.dialects import DIALECTS

SIGNATURES = tuple(sorted({dialect.signature for dialect in DIALECTS.values()}))
_MARK_AT = len("toolu_") + 18
_WRAPPED_ID = re.compile(r"toolu_[0-9a-f]{18}_([A-Za-z0-9_-]+)")


def reasoning_of(signature: str | None) -> str | None:
    """The reasoning inside one of our signatures (`<prefix>` + base64url without padding); None for
    anything else."""
    if not signature or not signature.startswith(SIGNATURES):
        return None
    return _unpack(signature.partition(".")[2])


def engine_id(tool_id: str) -> str:
    """The id the engine itself gave a tool call, when this is our wrapping of it; else the id as it
    is."""
    if tool_id[_MARK_AT : _MARK_AT + 1] != "_" or not tool_id.startswith("toolu_"):
        return tool_id
    match = _WRAPPED_ID.fullmatch(tool_id)
    original = _unpack(match[1]) if match else None
    return original if original and original.isascii() and original.isprintable() else tool_id


def _unpack(text: str) -> str | None:
    try:
        packed = text.translate(_TO_STANDARD).encode("ascii")
        return binascii.a2b_base64(packed + b"=" * (-len(packed) % 4), strict_mode=True).decode()
    except ValueError:
        return None


_TO_STANDARD = {ord("-"): "+", ord("_"): "/", ord("+"): "*", ord("/"): "*"}
