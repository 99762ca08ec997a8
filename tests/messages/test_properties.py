"""Whatever a client sends is translated or refused with a 400, in every dialect and for every
engine; nothing else ever happens."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.messages.requests import policy

from ferrule.chat import passthrough as chat
from ferrule.errors import Failure
from ferrule.messages import decode, documents, session_key, text_of, tokenize_body, translate
from ferrule.messages.content import SERVER_HISTORY

BLOCK_TYPES = [
    *(
        "text",
        "image",
        "document",
        "search_result",
        "thinking",
        "redacted_thinking",
        "tool_use",
        "tool_result",
        "tool_reference",
    ),
    *(
        "mcp_tool_use",
        "mcp_tool_result",
        "container_upload",
        "compaction",
        "tool_addition",
        "tool_removal",
        "from_the_future",
    ),
    *sorted(SERVER_HISTORY),
]
TOOL_TYPES = [
    None,
    "custom",
    "bash_20250124",
    "memory_20250818",
    "web_search_20250305",
    "tool_search_tool_regex",
    "computer_20250124",
    "x",
]

WORDS = st.sampled_from(
    [
        "",
        "a",
        "c1",
        "c2",
        "F",
        "odd.name",
        "x-anthropic-billing-header: v\nS",
        "北\ud83c\udf0d\n",
        '"\\',
        "[]",
        "{}",
    ]
)
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=4,
)


def _itself(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return value


def objects(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with some of these members, each now and then of a type it should not have."""
    return st.fixed_dictionaries(
        {},
        optional={
            name: st.sampled_from([value] * 60 + [JUNK]).flatmap(_itself)
            for name, value in members.items()
        },
    )


SOURCE = objects(
    type=st.sampled_from(["base64", "url", "text", "content", "file"]),
    media_type=st.sampled_from(["image/png", "application/pdf"]),
    data=WORDS,
    url=WORDS,
    content=WORDS,
)


def blocks(content: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    more = objects(
        text=WORDS, id=WORDS, name=WORDS, input=st.dictionaries(WORDS, JUNK, max_size=2), tool_use_id=WORDS, content=content,
        is_error=st.booleans(), thinking=WORDS, signature=WORDS, source=SOURCE, title=WORDS, tool_name=WORDS, url=WORDS,
        return_code=st.integers(),
        tool=objects(type=WORDS, name=WORDS, definition=objects(name=WORDS)),
    )  # fmt: skip
    return st.builds(
        lambda type_, members: {"type": type_, **members}, st.sampled_from(BLOCK_TYPES), more
    )


NESTED = st.recursive(
    WORDS | st.none(),
    lambda inner: st.lists(blocks(inner), max_size=2) | blocks(inner),
    max_leaves=3,
)
CONTENT = WORDS | st.none() | st.lists(blocks(NESTED), max_size=3)
MESSAGES = st.lists(
    st.builds(
        lambda role, content, more: {"role": role, "content": content, **more},
        st.sampled_from(["user", "user", "assistant", "assistant", "system"]),
        CONTENT,
        objects(output_config=objects(effort=WORDS)),
    ),
    min_size=1,
    max_size=5,
)
TOOLS = st.lists(
    objects(
        name=WORDS, type=st.sampled_from(TOOL_TYPES), description=WORDS, input_schema=st.dictionaries(WORDS, JUNK, max_size=1),
        defer_loading=st.booleans(), allowed_callers=st.lists(st.sampled_from(["direct", "code"]), max_size=2),
    ),
    max_size=4,
)  # fmt: skip
BODIES = st.builds(
    lambda messages, more: {"model": "m", "max_tokens": 64, "messages": messages, **more},
    MESSAGES,
    objects(
        system=CONTENT, tools=TOOLS, tool_choice=objects(type=st.sampled_from(["auto", "any", "tool", "none"]), name=WORDS),
        thinking=objects(type=st.sampled_from(["enabled", "adaptive", "disabled"]), budget_tokens=st.integers(-1, 100), display=WORDS),
        stop_sequences=st.lists(WORDS, max_size=6), temperature=st.floats(0, 1), top_k=st.integers(0, 100), stream=st.booleans(),
        metadata=objects(user_id=WORDS), output_config=objects(effort=WORDS, format=objects(type=WORDS, schema=JUNK)),
        max_tokens=st.integers(0, 9_000), mcp_servers=st.just([]), context_management=st.none(), thread=st.none(),
    ),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    BODIES,
    st.sampled_from(["token-factory", "pooled", "tokenify", "anthropic"]),
    st.sampled_from(["vllm", "sglang", "llamacpp"]),
    st.booleans(),
)
def test_every_body_is_translated_or_refused(
    body: dict[str, Any], dialect: str, engine: str, images: bool
) -> None:
    under = policy(dialect, engine, images=images, system_first=images, context_window=4_096)
    try:
        request = decode(json.dumps(body).encode())
    except Failure as failure:
        assert failure.status == 400
        return
    assert session_key({}, request, "t") == session_key({}, request, "t")
    for step in (
        lambda: text_of(request),
        lambda: tokenize_body(request, under),
        lambda: documents.pending(request, under),
    ):
        try:
            step()
        except Failure as failure:
            assert failure.status == 400
    try:
        translation = translate(request, under, "m", 100)
    except Failure as failure:
        assert failure.status == 400
        assert failure.message.isprintable() or "\n" in failure.message
        return
    check(json.loads(translation.body))
    assert all(
        name.isascii() and name.isprintable() and "," not in name for name in translation.dropped
    )


def check(sent: dict[str, Any]) -> None:
    """What every engine wants of a body: results right behind their calls, no empty lists, known
    roles, texts."""
    assert sent["messages"]
    assert sent.get("tools") != []
    assert ("tool_choice" in sent or "parallel_tool_calls" in sent) <= ("tools" in sent)
    waiting: list[str] = []
    for message in sent["messages"]:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
            assert isinstance(message["content"], str)
            continue
        assert waiting == []
        assert message["role"] in ("system", "user", "assistant")
        assert message["content"] is not None
        assert message["content"] != []
        waiting = [call["id"] for call in message.get("tool_calls", [])]
        assert all(
            isinstance(json.loads(call["function"]["arguments"]), dict)
            for call in message.get("tool_calls", [])
        )
    assert waiting == []


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=60)
    | st.text(max_size=60).map(str.encode)
    | JUNK.map(lambda value: json.dumps(value).encode())
)
def test_bytes_that_may_be_anything(data: bytes) -> None:
    for read in (decode, chat.decode):
        try:
            read(data)
        except Failure as failure:
            assert failure.status == 400
