"""System text: the leading prompt, and system messages in the middle of a conversation, which stay
where they are.

Hoisting a later system message to the front would change the prompt from its first byte and lose
the backend's prefix cache.
"""

from __future__ import annotations

from ferrule.messages.json_text import join, quote, string_in, unquote, wrap
from ferrule.messages.schema import Block

ATTRIBUTION = "x-anthropic-billing-header:"
_ATTRIBUTION_LITERAL = b'"' + ATTRIBUTION.encode()


def system_text(content: str | list[Block] | None, path: str) -> bytes | None:
    """A literal, the same for string and list form; None: no text. A client's attribution line,
    which changes from request to request, is removed: as a block of its own or as the first line of
    a longer text."""
    if not content:
        return None
    if isinstance(content, str):
        return _strip_attribution(quote(content))
    texts: list[bytes] = []
    for index, block in enumerate(content):
        literal = string_in(block.text, f"{path}.{index}", "text")
        if literal is not None and (text := _strip_attribution(literal)) is not None:
            texts.append(text)
    return join(texts) if texts else None


def reminder(literal: bytes) -> bytes:
    """System text for a template that takes no late system message: a user message, marked so
    that the model can tell it apart."""
    return wrap(rb"<system-reminder>\n", literal, rb"\n</system-reminder>")


def _strip_attribution(literal: bytes) -> bytes | None:
    if not literal.startswith(_ATTRIBUTION_LITERAL):
        return literal
    text = unquote(literal).partition("\n")[2].lstrip("\n")
    return quote(text) if text else None
