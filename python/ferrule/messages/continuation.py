"""The second leg of a reply whose thinking budget the edge holds: the same conversation, going on
from what was thought so far."""

from __future__ import annotations

import msgspec

from ferrule.messages.chat_schema import TemplateKwargs
from ferrule.messages.translate import Translation

_encode = msgspec.json.Encoder().encode


class _Thought(msgspec.Struct):
    """The thinking stands in the content, closed, because that is what a template can go on from
    word by word."""

    content: str
    role: str = "assistant"


def build_continuation(translation: Translation, reasoning: str, spent_tokens: int) -> bytes:
    """The body that makes the backend answer after `reasoning`, with what is left of max_tokens."""
    body = msgspec.json.decode(translation.body, type=dict[str, msgspec.Raw])
    thought = _encode(_Thought(f"<think>\n{reasoning.strip()}\n</think>\n\n"))
    body["messages"] = msgspec.Raw(bytes(body["messages"])[:-1] + b"," + thought + b"]")
    body["max_tokens"] = msgspec.Raw(_encode(max(1, translation.max_tokens - spent_tokens)))
    body["stream"] = msgspec.Raw(b"true")
    body["stream_options"] = msgspec.Raw(b'{"include_usage":true}')
    # the reasoning is over; a parser that waits for its end would take the answer for more of it
    body["chat_template_kwargs"] = msgspec.Raw(
        _encode(TemplateKwargs(enable_thinking=False, thinking=False))
    )
    body["continue_final_message"] = msgspec.Raw(b"true")
    body["add_generation_prompt"] = msgspec.Raw(b"false")
    return _encode(body)
