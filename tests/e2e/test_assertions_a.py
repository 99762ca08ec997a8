"""Conformance, tier A: what stops Claude Code or an SDK from working at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.doubles.backend import Close, ScriptedBackend, refusal, stream
from tests.doubles.events import assert_ends_with_error, read_events, story_of
from tests.doubles.frames import DONE, TC, Canned, D, error_frame
from tests.doubles.proxy import REQ, Ferrule, assert_error, config_for
from tests.e2e.conftest import Received, Sent
from tests.e2e.test_cases_tools import F_TOOL, history

FULL = Canned("Look.", reasoning="Plan.", calls=[("c1", "F", '{"a":1}'), ("c2", "G", "{}")])


@pytest.fixture(scope="module")
def system_first(new_proxy: Callable[..., Ferrule], shared_backend: ScriptedBackend) -> Ferrule:
    """Its backend's template takes a system message at the start only."""
    return new_proxy(config_for(shared_backend.url, pool={"system_first": True}))


def test_assertion_01_system_messages_within_the_conversation(
    system_first: Ferrule, backend: ScriptedBackend
) -> None:
    bodies = []
    for form in (
        "# Environment\ncwd: /w",
        [
            {
                "type": "text",
                "text": "# Environment\ncwd: /w",
                "cache_control": {"type": "ephemeral"},
            }
        ],
    ):
        turns = [
            {"role": "user", "content": "u"},
            {"role": "system", "content": form},
            *history({})[1:],
        ]
        system_first.message(system="S", messages=turns)
        bodies.append(backend.last.json["messages"])
    assert bodies[0] == bodies[1]
    assert [message["role"] for message in bodies[0]].count("system") == 1
    assert bodies[0][0] == {"role": "system", "content": "S"}
    place = [n for n, message in enumerate(bodies[0]) if "cwd: /w" in json.dumps(message)]
    assert place
    assert place[0] < [message["role"] for message in bodies[0]].index("assistant")


def test_assertion_02_events_are_named(proxy: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(FULL)
    raw = proxy.stream().raw
    assert raw.count(b"event: ") == raw.count(b"data: ") == raw.count(b"\n\n")
    assert read_events(raw)


def test_assertion_03_text_arrives_in_deltas(received: Received) -> None:
    assert story_of(received(*Canned("Hello there").frames())) == [("text", "Hello there")]


def test_assertion_04_a_call_in_one_chunk(received: Received) -> None:
    message = received(TC(0, "c1", "F", '{"a":1}'), D({}, "tool_calls"), DONE)
    assert message["content"][0]["partial_json"] == '{"a":1}'


@pytest.mark.parametrize("id_", ["call_0", ""])
def test_assertion_05_call_ids_pair_over_turns(
    proxy: Ferrule, backend: ScriptedBackend, id_: str
) -> None:
    backend.play(Canned(calls=[(id_, "F", "{}")]))
    turns: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for n in range(2):
        block = proxy.message(messages=turns, tools=[F_TOOL])["content"][0]
        turns.append({"role": "assistant", "content": [block]})
        turns.append(
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": block["id"], "content": f"r{n}"}
                ],
            }
        )
    proxy.message(messages=turns, tools=[F_TOOL])
    upstream = backend.last.json["messages"]
    calls = [
        message["tool_calls"][0]["id"] for message in upstream if message["role"] == "assistant"
    ]
    results = [
        (message["tool_call_id"], message["content"])
        for message in upstream
        if message["role"] == "tool"
    ]
    assert results == [(calls[0], "r0"), (calls[1], "r1")]


def test_assertion_06_message_ids_differ(proxy: Ferrule) -> None:
    ids = {proxy.message()["id"] for _ in range(3)} | {
        proxy.stream().message["id"] for _ in range(3)
    }
    assert len(ids) == 6


def test_assertion_07_max_tokens_is_clamped(sent: Sent) -> None:
    body = sent(max_tokens=128_000)
    assert body.get("max_tokens", body.get("max_completion_tokens")) <= 32768


def test_assertion_08_blocks_are_numbered_without_gap(received: Received) -> None:
    kinds = [block["type"] for block in received(*FULL.frames())["content"]]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]


def test_assertion_09_one_message_start_comes_first(
    proxy: Ferrule, backend: ScriptedBackend
) -> None:
    backend.play(FULL)
    events = proxy.stream().events
    assert next(event.name for event in events if event.name != "ping") == "message_start"
    message = events[0].data["message"]
    assert message["content"] == []
    assert message["usage"].keys() >= {"input_tokens", "output_tokens"}


def test_assertion_10_the_end(proxy: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(FULL)
    raw = proxy.stream().raw
    assert raw.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    assert b"[DONE]" not in raw


NOISE: dict[str, Any] = {
    "safeguards": [{"type": "x"}],
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "tags": ["a"],
    "foo": None,
    "cache_control": {"type": "ephemeral"},
}
NOISY_TOOL = {
    **F_TOOL,
    "eager_input_streaming": True,
    "novelty": {"x": 1},
    "cache_control": {"type": "ephemeral"},
}
NOISY_TURN = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "hi", "novelty": 1, "cache_control": {"type": "ephemeral"}}
        ],
        "id": "x",
    }
]


def test_assertion_11_what_is_unknown_changes_nothing(
    proxy: Ferrule, backend: ScriptedBackend
) -> None:
    assert proxy.ask(tools=[F_TOOL]).status == 200
    plain = backend.last.body
    headers = {"anthropic-beta": "novel-2027-01-01,x", "x-novel": "1"}
    answer = proxy.client.post(
        "/v1/messages?beta=true&x=1",
        REQ(tools=[NOISY_TOOL], messages=NOISY_TURN, **NOISE) | {"foo": None},
        headers,
    )
    assert answer.status == 200, answer.text
    assert backend.last.body == plain


def test_assertion_12_the_same_body_without_streaming(
    proxy: Ferrule, backend: ScriptedBackend
) -> None:
    backend.play(FULL)
    message, streamed = proxy.message(max_tokens=64_000), proxy.stream(max_tokens=64_000).message
    assert story_of(message) == story_of(streamed)
    assert message["stop_reason"] == streamed["stop_reason"] == "tool_use"
    assert isinstance(message["content"], list)


@pytest.mark.parametrize("version", ["2023-06-01", "2026-10-21", None])
@pytest.mark.parametrize(
    "credential",
    [
        {"authorization": "Bearer k"},
        {"x-api-key": "k"},
        {"authorization": "Bearer k", "x-api-key": "k"},
        {},
    ],
)
def test_assertion_13_credentials_and_versions(
    proxy: Ferrule, version: str | None, credential: dict[str, str]
) -> None:
    headers = {**credential, **({"anthropic-version": version} if version else {})}
    assert proxy.ask(headers=headers).status == 200


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["{}", '{"a":1}'], {"a": 1}),
        (['{"a":1}', " }"], {"a": 1}),
        (['{"a":1}', '{"a":1}'], {"a": 1}),
        ([{"a": 1}], {"a": 1}),
        ([], {}),
        ([""], {}),
    ],
    ids=["placeholder", "garbage", "twice", "object", "none", "empty"],
)
def test_assertion_14_arguments_are_one_object(
    received: Received, pieces: list[Any], expected: dict[str, Any]
) -> None:
    message = received(
        TC(0, "c1", "F"), *(TC(0, arguments=piece) for piece in pieces), D({}, "tool_calls"), DONE
    )
    assert story_of(message) == [("tool_use", "F", expected)]


@pytest.mark.parametrize(("status", "received"), [(500, 502), (503, 529), (429, 429)])
def test_assertion_15_failures_before_the_first_chunk(
    proxy: Ferrule, backend: ScriptedBackend, status: int, received: int
) -> None:
    backend.play(refusal(status))
    answer = proxy.ask(stream=True)
    assert answer.status in (received, status if status == 500 else received)
    assert_error(
        answer,
        answer.status,
        {500: "api_error", 503: "overloaded_error", 429: "rate_limit_error"}[status],
    )
    assert status == 500 or int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize("end", [error_frame(), Close()], ids=["error-object", "connection-dies"])
def test_assertion_16_failures_after_content(
    proxy: Ferrule, backend: ScriptedBackend, end: Any
) -> None:
    backend.play(stream(D({"content": "x"}), end, DONE))
    assert story_of(assert_ends_with_error(proxy.stream().events)) == [("text", "x")]


def test_assertion_17_a_prompt_over_the_window(proxy: Ferrule, backend: ScriptedBackend) -> None:
    words = (
        "This model's maximum context length is 100 tokens. However, your prompt contains at "
        "least 101 input tokens"
    )
    backend.play(refusal(400, words, kind="BadRequestError"))
    assert_error(proxy.ask(), 400, "invalid_request_error", "prompt is too long", "101", "100")


def test_assertion_18_deferred_tools(sent: Sent) -> None:
    deferred = {**F_TOOL, "name": "DeferredToolPlaceholder", "defer_loading": True}
    assert [tool["function"]["name"] for tool in sent(tools=[F_TOOL, deferred])["tools"]] == ["F"]
    assert "tools" not in sent(tools=[deferred])


def test_assertion_19_models_do_not_page_forever(proxy: Ferrule) -> None:
    listed = proxy.client.get("/v1/models", {"anthropic-version": "2026-10-21"}).json()
    assert listed["has_more"] is False
    for entry in listed["data"]:
        assert entry["type"] == "model"
        assert entry.keys() >= {"id", "display_name", "created_at"}
