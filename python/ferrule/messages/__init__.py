"""The request side of the Messages API: bytes from a client → a chat-completions body for a
backend. Pure: no I/O, no clock."""

from ferrule.messages.count import text_of, tokenize_body
from ferrule.messages.policy import Policy
from ferrule.messages.schema import MessagesRequest, decode
from ferrule.messages.session import session_key
from ferrule.messages.translate import Translation, needs_prompt_count, translate

__all__ = [
    "MessagesRequest",
    "Policy",
    "Translation",
    "decode",
    "needs_prompt_count",
    "session_key",
    "text_of",
    "tokenize_body",
    "translate",
]
