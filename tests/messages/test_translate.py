"""The whole body: what is always there, what never is, and that the same request gives the same
bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.messages.requests import (
    EVERY_DIALECT,
    TOOL_F,
    ask,
    assistant,
    body,
    call,
    policy,
    refusal,
    result,
    text,
    upstream,
    user,
)

from ferrule.messages import decode, needs_prompt_count, translate


def test_the_smallest_request() -> None:
    assert upstream() == {
        "model": "org/model",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 64,
    }


def test_a_stream_asks_for_usage() -> None:
    sent = upstream(stream=True)
    assert (sent["stream"], sent["stream_options"]) == (True, {"include_usage": True})
    assert ask(stream=True).stream
    for stream in (False, None, ...):
        assert {"stream", "stream_options"} & set(upstream(stream=stream)) == set()
        assert not ask(stream=stream).stream


def test_b23_only_the_model_itself_is_renamed() -> None:
    sent = upstream(messages=[user('"model": "m"')], model="m")
    assert (sent["model"], sent["messages"][0]["content"]) == ("org/model", '"model": "m"')


def test_translating_again_gives_the_same() -> None:
    whole = json.dumps(
        body(
            system=[text("S")],
            messages=[user(text("a")), assistant(call("c1", a=1)), user(result("c1", "r"))],
            tools=[TOOL_F, {"name": "odd.name", "input_schema": {}}],
            thinking={"type": "adaptive"},
            stream=True,
        )
    ).encode()
    request = decode(whole)
    for dialect in EVERY_DIALECT:
        assert (
            translate(request, policy(dialect), "m")
            == translate(request, policy(dialect), "m")
            == translate(decode(whole), policy(dialect), "m")
        )


def test_a_retry_on_another_engine_speaks_its_language() -> None:
    request = decode(
        b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}],"thinking":{"type":"enabled","budget_tokens":5}}'
    )
    assert b"thinking_token_budget" in translate(request, policy(engine="vllm"), "m").body
    second = translate(request, policy(engine="sglang"), "m")
    assert b"budget" not in second.body
    assert second.edge_budget_tokens == 5


# Parameters of Anthropic's own servers


@pytest.mark.parametrize("dialect", ["pooled", "tokenify", "token-factory"])
def test_a_thread_is_dropped_where_it_is_not_in_the_set(dialect: str) -> None:
    assert ask(policy(dialect), thread={"type": "create"}).dropped == ("thread",)


def test_a_thread_is_refused_where_all_is_accepted() -> None:
    assert (
        refusal(thread={"type": "continue"})
        == "thread: must be absent: no conversation is stored here, send all messages"
    )


@pytest.mark.parametrize(
    ("changes", "dropped"),
    [
        ({"compaction": {"type": "summarize"}}, ("compaction",)),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            ("context_management",),
        ),
        (
            {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
            (),
        ),
        ({"context_management": {"edits": None}}, ()),
        (
            {
                "service_tier": "auto",
                "speed": "fast",
                "inference_geo": "us",
                "betas": ["x"],
                "metadata": {"user_id": "u"},
            },
            (),
        ),
    ],
)
def test_only_what_a_client_may_rely_on_is_reported(
    changes: dict[str, Any], dropped: tuple[str, ...]
) -> None:
    assert ask(**changes).dropped == dropped


# Structured output


def test_assertion_33_the_schema_reaches_the_backend() -> None:
    schema = {
        "type": "object",
        "properties": {"title": {"type": "string"}},
        "required": ["title"],
        "additionalProperties": False,
    }
    sent = upstream(output_config={"format": {"type": "json_schema", "schema": schema}}, tools=[])
    assert sent["response_format"]["json_schema"] == {
        "name": "output",
        "schema": schema,
        "strict": True,
    }
    assert "tools" not in sent


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"output_config": {"format": {"type": "json_schema"}}},
            "output_config.format.schema: must be a JSON schema",
        ),
        (
            {"output_config": {"format": {}}},
            "output_config.format.type: must be 'json_schema', not ''",
        ),
        (
            {"output_format": {"type": "xml", "schema": {}}},
            "output_format.type: must be 'json_schema', not 'xml'",
        ),
    ],
)
def test_formats_that_are_none(changes: dict[str, Any], says: str) -> None:
    assert refusal(**changes) == says


# Counting first


@pytest.mark.parametrize(
    ("body_bytes", "max_tokens", "window", "needed"),
    [
        (1_000, 64, None, False),
        (1_000, 64, 32_768, False),
        (1_000, 32_768, 32_768, True),
        (200_000, 64, 32_768, True),
        (25_000, 22_769, 32_768, True),
        (25_000, 22_768, 32_768, False),
    ],
)
def test_the_prompt_is_counted_only_where_it_could_matter(
    body_bytes: int, max_tokens: int, window: int | None, needed: bool
) -> None:
    assert needs_prompt_count(body_bytes, max_tokens, window) is needed
