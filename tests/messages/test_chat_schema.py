"""The body's members: in one order, and left out where absent."""

from __future__ import annotations

import msgspec

from ferrule.messages.chat_schema import (
    CalledFunction,
    ChatBody,
    ChatMessage,
    Function,
    FunctionName,
    FunctionTool,
    ImagePart,
    ImageUrl,
    NamedTool,
    StreamOptions,
    TextPart,
    ToolCall,
    encode,
)
from ferrule.messages.json_text import NOTHING

HI = msgspec.Raw(b'"hi"')


def test_absent_members_are_left_out() -> None:
    assert (
        encode(ChatBody(model="m", messages=[ChatMessage("user", HI)]))
        == b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
    )
    assert encode(FunctionTool(Function("F"))) == b'{"type":"function","function":{"name":"F"}}'
    assert (
        encode(ChatMessage("user", HI, reasoning=NOTHING, tool_calls=None))
        == b'{"role":"user","content":"hi"}'
    )


def test_what_stands_early_stays_the_same_while_what_follows_changes() -> None:
    first = encode(ChatBody(model="m", messages=[ChatMessage("user", HI)], max_tokens=1))
    second = encode(
        ChatBody(
            model="m",
            messages=[ChatMessage("user", HI)],
            max_tokens=2,
            stream=True,
            stream_options=StreamOptions(True),
        )
    )
    assert first.partition(b'"max_tokens"')[0] == second.partition(b'"max_tokens"')[0] != first


def test_types_are_told() -> None:
    assert (
        encode(ToolCall("c1", CalledFunction("F", "{}")))
        == b'{"type":"function","id":"c1","function":{"name":"F","arguments":"{}"}}'
    )
    assert encode(NamedTool(FunctionName("F"))) == b'{"type":"function","function":{"name":"F"}}'
    assert (
        encode([TextPart(HI), ImagePart(ImageUrl(HI))])
        == b'[{"type":"text","text":"hi"},{"type":"image_url","image_url":{"url":"hi"}}]'
    )
