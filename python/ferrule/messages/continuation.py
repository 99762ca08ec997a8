"""The second leg of a response whose thinking budget is held here: the same conversation, continued
from the reasoning so far."""

from __future__ import annotations

import msgspec

from ferrule.messages.chat_schema import TemplateKwargs
from ferrule.messages.translate import Translation

_encode = msgspec.json.Encoder().encode


class _Thought(msgspec.Struct):
    """An assistant message with the thinking in its content, closed: templates continue from that
    verbatim."""

    content: str
    role: str = "assistant"


def build_continuation(translation: Translation, reasoning: str, spent_tokens: int) -> bytes:
    """The body that makes the backend answer after `reasoning`, with the rest of max_tokens."""
    body = msgspec.json.decode(translation.body, type=dict[str, msgspec.Raw])
    thought = _encode(_Thought(f"<think>\n{reasoning.strip()}\n</think>\n\n"))
    body["messages"] = msgspec.Raw(bytes(body["messages"])[:-1] + b"," + thought + b"]")
    body["max_tokens"] = msgspec.Raw(_encode(max(1, translation.max_tokens - spent_tokens)))
    body["stream"] = msgspec.Raw(b"true")
    body["stream_options"] = msgspec.Raw(b'{"include_usage":true}')
    # with thinking on, the engine's parser would take the answer for more reasoning
    body["chat_template_kwargs"] = msgspec.Raw(
        _encode(TemplateKwargs(enable_thinking=False, thinking=False))
    )
    body["continue_final_message"] = msgspec.Raw(b"true")
    body["add_generation_prompt"] = msgspec.Raw(b"false")
    return _encode(body)
