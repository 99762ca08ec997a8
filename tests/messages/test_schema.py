"""Decoding: what is no request gets a 400 that names the place; everything clients add on top
passes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.messages.requests import TOOL_F, ask, body, call, policy, raw, result, text, user

from ferrule.errors import InvalidRequest
from ferrule.messages import decode, translate
from ferrule.messages.json_text import NOTHING, is_given
from ferrule.messages.schema import blocks_in

DEEP = b"[" * 10_000 + b"]" * 10_000


def refused(data: bytes) -> str:
    with pytest.raises(InvalidRequest) as caught:
        decode(data)
    assert (caught.value.status, caught.value.kind) == (400, "invalid_request_error")
    return caught.value.message


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"{", "must be a JSON object"),
        (b"", "must be a JSON object"),
        (b"[]", "body: must be object, not array"),
        (b'"x"', "body: must be object, not string"),
        (b"null", "body: must be object, not null"),
        (b"1e400", "body: Number out of range"),
        (b"NaN", "must be a JSON object"),
        (DEEP, "body: must be object, not array"),
        (b'{"model":"m","foo":' + DEEP + b"}", "nested too deeply"),
        (
            b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}',
            "must be a JSON object",
        ),
        (
            b'{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"\\ud800"}]}]}',
            "must be a JSON object",
        ),
        (
            b'{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":1e400}',
            "temperature: Number out of range",
        ),
        (
            b'{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":NaN}',
            "must be a JSON object",
        ),
        (b'{"model":"m","messages":[{"role":"user","content":"x"}]} x', "must be a JSON object"),
        (b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}', "must be a JSON object"),
    ],
)
def test_h09_what_is_no_request(data: bytes, says: str) -> None:
    assert says in refused(data)


@pytest.mark.parametrize("place", ["input", "input_schema", "content"])
def test_h09_depth_and_bytes_inside_opaque_members(place: str) -> None:
    for inside, says in (
        (DEEP, "nested too deeply"),
        (b'{"a":"\xff"}', "UTF-8"),
        (b'{"a":"\\udc00"}', "JSON"),
        (b'{"a":NaN}', "JSON"),
    ):
        member = b'"' + place.encode() + b'":' + inside
        blocks = (
            b'{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"F",'
            + member
            + b"}]}"
        )
        tools = (
            b'"tools":[{"name":"F",' + member + b"}]" if place == "input_schema" else b'"tools":[]'
        )
        assert says in refused(
            b'{"model":"m","max_tokens":1,' + tools + b',"messages":[' + blocks + b"]}"
        )


def test_h09_duplicate_keys_pass() -> None:
    assert (
        decode(b'{"model":"a","model":"m","messages":[{"role":"user","content":"x"}]}').model == "m"
    )


@pytest.mark.parametrize("depth", [10, 200, 400])
def test_deep_but_readable_inputs_survive_the_whole_way(depth: int) -> None:
    nested = b'{"a":' * depth + b"1" + b"}" * depth
    whole = raw(messages=[user("x"), {"role": "assistant", "content": [call("c1")]}]).replace(
        b'"input":{}', b'"input":' + nested
    )
    sent = json.loads(ask_raw(whole))
    assert sent["messages"][1]["tool_calls"][0]["function"]["arguments"] == nested.decode()


def ask_raw(data: bytes) -> bytes:
    return translate(decode(data), policy(), "m").body


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": ...}, "model: is required"),
        ({"model": ""}, "model: must be a non-empty string"),
        ({"model": 5}, "model: must be string, not integer"),
        ({"messages": ...}, "messages: is required"),
        ({"messages": "hi"}, "messages: must be array, not string"),
        ({"messages": [{"content": "x"}]}, "messages.0.role: is required"),
        (
            {"messages": [user("x"), {"role": "user2", "content": "x"}]},
            "messages.1.role: must be 'user', 'assistant' or 'system'",
        ),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages.0.content: must be string or array or null, not integer",
        ),
        (
            {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
            "messages.0.content.0.type: is required",
        ),
        (
            {"messages": [user("x"), user(text("x"), {"type": 1})]},
            "messages.1.content.1.type: must be string, not integer",
        ),
        ({"max_tokens": "64"}, "max_tokens: must be integer or null, not string"),
        ({"max_tokens": 6.5}, "max_tokens: must be integer or null, not number"),
        ({"max_tokens": 10**40}, "max_tokens: "),
        ({"tools": [{"name": 5}]}, "tools.0.name: must be string or null, not integer"),
        ({"stop_sequences": [1]}, "stop_sequences.0: must be string, not integer"),
    ],
)
def test_errors_name_the_place_and_what_would_be_right(changes: dict[str, Any], says: str) -> None:
    assert refused(raw(**changes)).startswith(says)


def test_l07_no_messages() -> None:
    assert refused(raw(messages=[])) == "messages: must hold at least one message"


def test_assertion_11_unknown_keys_everywhere_change_nothing() -> None:
    plain = body(
        messages=[
            user(text("hi")),
            {"role": "assistant", "content": [call("c1", a=1)]},
            user(result("c1", "r")),
        ],
        tools=[TOOL_F],
        thinking={"type": "adaptive"},
        system=[text("S")],
    )
    more = json.loads(json.dumps(plain))
    more |= {
        "safeguards": [1],
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "tags": {},
        "foo": None,
    }
    more |= {
        "betas": ["x"],
        "chat_template_kwargs": {"a": 1},
        "output_config": {"task_budget": {"type": "tokens"}, "foo": 1},
    }
    for message in more["messages"]:
        message["foo"] = {"bar": 1}
        for block in message["content"]:
            block |= {
                "cache_control": {"type": "ephemeral", "scope": "x"},
                "citations": None,
                "foo": [1],
                "caller": {"type": "direct"},
            }
    more["tools"][0] |= {
        "eager_input_streaming": True,
        "cache_control": None,
        "foo": 1,
        "input_examples": [{}],
        "type": None,
    }
    more["thinking"]["block_binding"] = "x"
    more["system"][0]["foo"] = 1
    assert ask(**more).body == ask(**plain).body
    assert ask(**more).dropped == ()


def test_assertion_11_nulls_stand_for_absent() -> None:
    names = (
        "system stream stop_sequences temperature top_p top_k tools tool_choice thinking "
        "output_config output_format metadata"
    )
    nothing = dict.fromkeys(
        [*names.split(), "mcp_servers", "context_management", "compaction", "thread", "container"]
    )
    assert ask(**nothing).body == ask().body
    assert ask(**nothing).dropped == ()


def test_nested_content_in_every_form() -> None:
    request = decode(
        raw(
            messages=[
                user(
                    result("c1", "s"),
                    result("c2", [text("a")]),
                    result("c3", text("o")),
                    result("c4", None),
                    result("c5"),
                )
            ]
        )
    )
    blocks = request.messages[0].content
    assert isinstance(blocks, list)
    string, listed, single, null, absent = (blocks_in(block.content, "p") for block in blocks)
    assert (string, null, absent) == (b'"s"', [], [])
    assert isinstance(listed, list)
    assert isinstance(single, list)
    assert [bytes(block.text) for block in (*listed, *single)] == [b'"a"', b'"o"']


def test_nested_content_errors_name_the_place() -> None:
    for content, says in (
        (5, "p: must be a string or an array of content blocks"),
        ([{"type": 1}], "p.0.type: must be string, not integer"),
    ):
        blocks = decode(raw(messages=[user(result("c1", content))])).messages[0].content
        assert isinstance(blocks, list)
        with pytest.raises(InvalidRequest) as caught:
            blocks_in(blocks[0].content, "p")
        assert caught.value.message == says


def test_given_means_neither_absent_nor_null() -> None:
    request = decode(raw(metadata=None, thread={"type": "create"}))
    assert [
        is_given(request.metadata),
        is_given(request.compaction),
        is_given(request.thread),
        is_given(NOTHING),
    ] == [
        False,
        False,
        True,
        False,
    ]
