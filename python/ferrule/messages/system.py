"""System text: the leading prompt, and system messages in the middle of a conversation, which stay where they are.

Hoisting a later system message to the front would change the prompt from its first byte and lose the backend's prefix cache.
"""

from __future__ import annotations

from ferrule.messages.schema import Block

ATTRIBUTION = "x-anthropic-billing-header:"
BLANK_LINE = "\n\n"


def system_text(content: str | list[Block] | None) -> str:
    """String and list form give the same text. A client's attribution line, which changes from request to request, is removed."""
    if content is None:
        return ""
    if isinstance(content, str):
        return without_attribution(content)
    texts = (without_attribution(block.text) for block in content if block.text)
    return BLANK_LINE.join(text for text in texts if text)


def without_attribution(text: str) -> str:
    """The text without its first line, if that is an attribution line."""
    if not text.startswith(ATTRIBUTION):
        return text
    return text.partition("\n")[2].lstrip("\n")


def reminder(text: str) -> str:
    """System text for a template that takes no late system message: told by the user, marked so that the model can tell it apart."""
    return f"<system-reminder>\n{text}\n</system-reminder>"
