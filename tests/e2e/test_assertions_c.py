"""Conformance, tier C: robustness and operations."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.doubles.backend import Hold, Pause, Reply, ScriptedBackend, refusal, stream, whole
from tests.doubles.events import story_of
from tests.doubles.frames import DONE, Canned, D
from tests.doubles.proxy import REQ, Ferrule, assert_error, config_for
from tests.e2e.conftest import Received, Sent
from tests.e2e.test_cases_models import COUNT
from tests.e2e.test_cases_tools import F_TOOL, history


def test_assertion_38_pings_in_mid_stream(
    new_proxy: Callable[..., Ferrule], backend: ScriptedBackend
) -> None:
    proxy = new_proxy(config_for(backend.url, ping_after_s=0.3))
    backend.play(stream(D({"content": "a"}), Pause(2.2), D({"content": "b"}), D({}, "stop"), DONE))
    answer = proxy.stream()
    assert answer.message
    assert 1 <= [event.name for event in answer.events].count("ping") <= 7
    longest = max(
        later - earlier for earlier, later in zip(answer.times, answer.times[1:], strict=False)
    )
    assert longest < 1.9, "a sweep a second, so 0.3 s of silence may become 1.3"


def test_assertion_39_a_client_that_leaves(proxy: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(stream(D({"content": "a"}), Hold()))
    with proxy.open_stream() as answer:
        answer.read_some()
        answer.reset()
    assert backend.last.closed.wait(1)


def test_assertion_40_thirty_counts_while_all_slots_are_busy(
    new_proxy: Callable[..., Ferrule], backend: ScriptedBackend
) -> None:
    proxy = new_proxy(config_for(backend.url, pool={"slots": 2, "max_inflight": 2}))
    hold = Hold()
    backend.play(stream(D({"content": "a"}), hold, D({}, "stop"), DONE))
    with ThreadPoolExecutor(34) as threads:
        busy = [threads.submit(proxy.stream) for _ in range(4)]
        backend.wait_for_requests(2)
        begin = time.monotonic()
        counts = list(
            threads.map(
                lambda n: proxy.ask(
                    COUNT, max_tokens=None, messages=[{"role": "user", "content": f"foo {n}"}]
                ),
                range(30),
            )
        )
        assert time.monotonic() - begin < 3
        assert {type(count.json()["input_tokens"]) for count in counts} == {int}
        assert backend.most_inflight <= 2 + 30
        hold.release()
        assert all(done.result().message for done in busy)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("HEAD", "/"),
        ("HEAD", "/api/hello"),
        ("GET", "/v1/files"),
        ("POST", "/v1/messages/batches"),
        ("GET", "/v1/messages"),
        ("HEAD", "/v1/models"),
    ],
)
def test_assertion_41_small_probes(proxy: Ferrule, method: str, path: str) -> None:
    begin = time.monotonic()
    answer = proxy.client.request(method, path)
    assert time.monotonic() - begin < 1
    assert answer.status in (200, 204, 404, 405)
    if answer.status >= 400 and method != "HEAD":
        assert answer.json()["type"] == "error"


@pytest.mark.parametrize(
    "headers",
    [{"accept": "application/json"}, {"x-stainless-timeout": "NOT_GIVEN"}, {"accept": "*/*"}],
)
def test_assertion_43_streams_whatever_is_accepted(proxy: Ferrule, headers: dict[str, str]) -> None:
    assert proxy.stream(headers=headers).headers["content-type"].startswith("text/event-stream")


def test_assertion_44_refusals_are_in_the_envelope(proxy: Ferrule) -> None:
    assert_error(proxy.client.post("/v1/messages", b"{"), 400, "invalid_request_error")
    assert_error(
        proxy.client.post("/v1/messages", REQ(messages=None)),
        400,
        "invalid_request_error",
        "messages",
    )
    assert_error(
        proxy.ask(messages=[{"role": "robot", "content": "x"}]),
        400,
        "invalid_request_error",
        "messages.0.role",
    )
    assert_error(proxy.ask(model="nope"), 404, "not_found_error")


def test_assertion_45_json_is_labelled(proxy: Ferrule) -> None:
    for answer in (
        proxy.ask(),
        proxy.ask(model="nope"),
        proxy.client.get("/v1/models"),
        proxy.ask(COUNT),
    ):
        assert answer.headers["content-type"].startswith("application/json")


ODD_TEXT = 'a😀\u2028\u0085"quotes"\\\n\ttab\u0000end'


def test_assertion_46_text_survives(
    proxy: Ferrule, backend: ScriptedBackend, received: Received
) -> None:
    frames = b"".join([D({"content": ODD_TEXT}), D({}, "stop"), DONE])
    assert story_of(received(frames)) == [("text", ODD_TEXT)]
    assert story_of(received(*(frames[at : at + 3] for at in range(0, len(frames), 3)))) == [
        ("text", ODD_TEXT)
    ]
    backend.play(Canned(ODD_TEXT))
    assert story_of(proxy.message()) == [("text", ODD_TEXT)]


def test_assertion_47_the_quota_probe(proxy: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(Canned("x", finish="length", completion_tokens=1))
    message = proxy.message(max_tokens=1, messages=[{"role": "user", "content": "quota"}])
    assert message["stop_reason"] == "max_tokens"
    assert backend.last.json["max_tokens"] == 1


def test_max_tokens_zero_tells_nothing(proxy: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(Canned("x", finish="length"))
    for message in (proxy.message(max_tokens=0), proxy.stream(max_tokens=0).message):
        assert message["content"] == []
        assert message["stop_reason"] == "max_tokens"


def test_assertion_49_what_the_backend_adds_stays_behind(
    proxy: Ferrule, backend: ScriptedBackend
) -> None:
    leaks = [
        ("anthropic-ratelimit-unified-status", "allowed"),
        ("trailer", "x"),
        ("upgrade", "h2c"),
        ("x-internal", "1"),
    ]
    backend.play(whole(Canned("x").whole(), headers=leaks))
    answer = proxy.ask()
    assert [answer.headers[name] for name, _ in leaks] == [None] * 4
    assert answer.headers["content-encoding"] is None


def test_assertion_50_one_id_twice(sent: Sent) -> None:
    turns = history({"n": 1}) + history({"n": 2})[1:]
    turns[2]["content"][0]["content"], turns[4]["content"][0]["content"] = "first", "second"
    upstream = sent(messages=turns)["messages"]
    pairs = []
    for n, message in enumerate(upstream):
        if message["role"] == "assistant":
            pairs.append(
                (
                    message["tool_calls"][0]["id"] == upstream[n + 1]["tool_call_id"],
                    upstream[n + 1]["content"],
                )
            )
    assert pairs == [(True, "first"), (True, "second")]


USER, ASSISTANT = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}
ODD_ORDERS: dict[str, list[dict[str, Any]]] = {
    "prefill": [USER, ASSISTANT],
    "assistant-first": [ASSISTANT, USER],
    "two-users": [USER, {"role": "user", "content": "v"}],
    "empty-text": [{"role": "user", "content": ""}, USER],
    "empty-list": [USER, {"role": "assistant", "content": []}, USER],
    "orphan-result": [
        USER,
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "nobody", "content": "r"}],
        },
    ],
    "call-without-result": [*history({})[:2], USER],
}


@pytest.mark.parametrize("name", ODD_ORDERS)
def test_assertion_51_any_order(proxy: Ferrule, backend: ScriptedBackend, name: str) -> None:
    assert proxy.ask(messages=ODD_ORDERS[name], tools=[F_TOOL]).status == 200
    for message in backend.last.json["messages"]:
        assert message.get("content") is not None or message.get("tool_calls"), message


def test_assertion_51_prefill_goes_on_where_it_stopped(sent: Sent) -> None:
    body = sent(messages=[USER, {"role": "assistant", "content": "The answer is"}])
    assert body["continue_final_message"] is True
    assert body["add_generation_prompt"] is False
    assert body["messages"][-1] == {"role": "assistant", "content": "The answer is"}


def test_assertion_52_retry_after_is_small(proxy: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(refusal(429, "x", [("retry-after", "9999")]), Reply([], 503, [], framing="length"))
    for _ in range(2):
        assert 0 < int(proxy.ask().headers["retry-after"]) <= 60
