"""Retries and breakers: what another backend may take over, what it must not, and what counts
against one."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.doubles.backend import (
    Pause,
    Reply,
    Reset,
    ScriptedBackend,
    refusal,
    stream,
    wait_until,
    whole,
)
from tests.doubles.events import assert_ends_with_error, read_events, story_of
from tests.doubles.frames import DONE, ROLE_DELTA, Canned, D, error_frame
from tests.doubles.proxy import Ferrule, assert_error, config_for

GOOD = Canned("good")
SLOW_PROBES = {"interval_s": 60}

Pair = tuple[Ferrule, ScriptedBackend, ScriptedBackend]


@pytest.fixture(scope="module")
def shared_pair(
    new_backend: Callable[..., ScriptedBackend], new_proxy: Callable[..., Ferrule]
) -> Pair:
    one, other = new_backend(), new_backend()
    return (
        new_proxy(config_for(one.url, other.url, pool={"health": SLOW_PROBES, "retries": 2})),
        one,
        other,
    )


@pytest.fixture
def pair(shared_pair: Pair) -> Callable[..., tuple[Any, ScriptedBackend, ScriptedBackend]]:
    """`pair(bad)`: a session whose home plays `bad` and whose second choice plays GOOD; returns
    ask, home, second."""
    proxy, one, other = shared_pair
    one.reset()
    other.reset()

    def arrange(bad: Any) -> tuple[Any, ScriptedBackend, ScriptedBackend]:
        for number in range(20):
            session = {"x-claude-code-session-id": f"pair-{time.monotonic_ns()}-{number}"}
            answer = proxy.ask(headers=session)
            if answer.headers["x-ferrule-affinity"] == "home":
                break
        home, second = (one, other) if one.requests else (other, one)
        one.reset()
        other.reset()
        home.play(bad)
        second.play(GOOD)
        return (lambda **body: proxy.ask(headers=session, **body)), home, second

    return arrange


BEFORE_THE_FIRST_EVENT = {
    "j05_error-first": stream(error_frame(), DONE),
    "j03_role-then-reset": stream(D(ROLE_DELTA), Reset()),
    "a17_only-done": stream(DONE),
    "half-a-frame": stream(D(ROLE_DELTA), D({"content": "x"})[:60], Reset()),
    "reset-before-the-head": Reply([Reset()], sends_head=False),
    "500": refusal(500),
    "503": refusal(503),
    "429": refusal(429, "slow down", [("retry-after", "9")]),
    "garbage": Reply([b"\x00\x01 not http\r\n\r\n", Reset()], sends_head=False, framing="close"),
}


STREAMS_ONLY = ("j05_error-first", "j03_role-then-reset", "a17_only-done", "half-a-frame")
FAILURES = [
    (name, streamed)
    for name in BEFORE_THE_FIRST_EVENT
    for streamed in (True, False)
    if streamed or name not in STREAMS_ONLY
]


@pytest.mark.parametrize(
    ("name", "streamed"),
    FAILURES,
    ids=[f"{name}-{'streamed' if streamed else 'whole'}" for name, streamed in FAILURES],
)
def test_what_fails_before_the_first_event_is_taken_over(
    pair: Any, name: str, streamed: bool
) -> None:
    ask, home, second = pair(BEFORE_THE_FIRST_EVENT[name])
    answer = ask(stream=streamed)
    assert answer.status == 200, answer.text
    assert b'"good"' in answer.content
    assert len(second.requests) == 1
    assert len(home.requests) <= 2, "a dead connection is tried once more, nothing else is"
    if streamed:
        assert answer.content.count(b"event: message_start") == 1
    assert answer.headers["x-ferrule-affinity"] == "failover"


def test_a_retry_after_a_ping(
    new_backend: Callable[..., ScriptedBackend], new_proxy: Callable[..., Ferrule]
) -> None:
    one, other = new_backend(), new_backend()
    proxy = new_proxy(
        config_for(one.url, other.url, pool={"health": SLOW_PROBES}, ping_after_s=0.2)
    )
    one.play(stream(D(ROLE_DELTA), Pause(2.5), Reset()), GOOD)
    other.play(GOOD)
    for n in range(20):
        answer = proxy.stream(headers={"x-claude-code-session-id": f"ping-{n}"})
        assert story_of(answer.message) == [("text", "good")]
        if one.requests:
            break
    assert answer.events[0].name == "ping"
    assert len(other.requests) == n + 1


def test_j03_what_was_told_is_never_told_again(pair: Any) -> None:
    ask, _, second = pair(stream(D({"content": "x"}), Reset()))
    events = read_events(ask(stream=True).content)
    assert story_of(assert_ends_with_error(events)) == [("text", "x")]
    assert second.requests == []


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_j09_a_refusal_is_the_clients(pair: Any, status: int) -> None:
    ask, home, second = pair(refusal(status, "The model `m` does not exist."))
    for _ in range(5):
        assert 400 <= ask().status < 500
    assert (len(home.requests), len(second.requests)) == (5, 0)


def test_j09_twenty_refusals_move_no_breaker(pair: Any, shared_pair: Pair) -> None:
    ask, home, second = pair(
        whole(
            {
                "error": {
                    "message": (
                        "The input (9 tokens) is longer than the model's context length (8 tokens)."
                    )
                }
            },
            400,
        )
    )
    for _ in range(20):
        assert_error(
            ask(), 400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"
        )
    assert len(home.requests) == 20
    assert second.requests == []
    assert shared_pair[0].metric("backend_healthy") == 2


def test_a_draining_backend_is_left_at_once(
    new_backend: Callable[..., ScriptedBackend], new_proxy: Callable[..., Ferrule]
) -> None:
    one, other = new_backend(), new_backend()
    proxy = new_proxy(config_for(one.url, other.url, pool={"health": SLOW_PROBES}))
    one.play(refusal(500, "cannot schedule new futures after shutdown"))
    other.play(GOOD)
    for n in range(20):
        assert story_of(proxy.stream(headers={"x-claude-code-session-id": f"{n}"}).message) == [
            ("text", "good")
        ]
    assert len(one.requests) == 1, "its health route still says 200, but it takes nobody new"


def test_j07_attempts_are_bounded(shared_pair: Pair) -> None:
    proxy, one, other = shared_pair
    for backend in (one, other):
        backend.reset()
        backend.play(refusal(503))
    begin = time.monotonic()
    answer = proxy.ask(headers={"x-claude-code-session-id": "j07"})
    assert time.monotonic() - begin < 5
    assert_error(answer, 529, "overloaded_error")
    assert int(answer.headers["retry-after"]) > 0
    assert 1 <= len(one.requests) + len(other.requests) <= 3


def test_j01_a_kept_connection_that_died_is_replaced(
    new_backend: Callable[..., ScriptedBackend], new_proxy: Callable[..., Ferrule]
) -> None:
    backend = new_backend()
    proxy = new_proxy(config_for(backend.url, pool={"health": SLOW_PROBES}))
    backend.keep_alive_s = 0.05
    for gap_s in (0.0, 0.03, 0.045, 0.048, 0.05, 0.052, 0.055, 0.06, 0.1):
        for _ in range(8):
            time.sleep(gap_s)
            assert proxy.ask().status == 200
            assert proxy.ask(stream=True).status == 200


def test_j01_it_closes_as_the_request_arrives(
    new_backend: Callable[..., ScriptedBackend], new_proxy: Callable[..., Ferrule]
) -> None:
    backend = new_backend()
    proxy = new_proxy(config_for(backend.url, pool={"health": SLOW_PROBES, "retries": 0}))
    for _ in range(10):
        backend.play(Canned("a"), Reply([Reset()], sends_head=False), Canned("b"))
        assert story_of(proxy.message()) == [("text", "a")]
        assert story_of(proxy.message()) == [("text", "b")]
    first, again = backend.requests[1:3]
    assert first.body == again.body
    assert first.connection != again.connection


def test_j11_many_failures_at_once_are_one_ejection(
    new_backend: Callable[..., ScriptedBackend], new_proxy: Callable[..., Ferrule]
) -> None:
    one, other = new_backend(), new_backend()
    proxy = new_proxy(
        config_for(
            one.url, other.url, pool={"health": {"interval_s": 0.3, "timeout_s": 0.3, "rise": 1}}
        )
    )
    one.play(Reply([Pause(0.3), Reset()], sends_head=False))
    other.play(Canned("ok"))
    with ThreadPoolExecutor(50) as threads:
        answers = list(
            threads.map(
                lambda n: proxy.ask(headers={"x-claude-code-session-id": str(n)}), range(50)
            )
        )
    assert {answer.status for answer in answers} <= {200, 500, 502, 529}
    one.play(Canned("ok"))

    def has_recovered() -> bool:
        assert proxy.ask(headers={"x-claude-code-session-id": str(time.monotonic())}).status == 200
        return proxy.metric("backend_healthy") == 2

    wait_until(has_recovered, 20, "the one that failed to be tried again")


def test_j13_a_busy_probe_is_not_a_dead_backend(
    new_backend: Callable[..., ScriptedBackend], new_proxy: Callable[..., Ferrule]
) -> None:
    backend = new_backend()
    proxy = new_proxy(
        config_for(backend.url, pool={"health": {"interval_s": 0.2, "timeout_s": 0.2, "fall": 1}})
    )
    backend.routes["GET", "/health"] = whole({}, 429, [("retry-after", "7")])
    backend.others.clear()
    time.sleep(2)
    probes = [seen for seen in backend.others if seen.target == "/health"]
    assert len(probes) == 1
    assert proxy.readyz() == 200
    assert proxy.ask().status == 200


def test_j15_all_down_then_back(
    new_backend: Callable[..., ScriptedBackend], new_proxy: Callable[..., Ferrule]
) -> None:
    backend = new_backend()
    health = {"interval_s": 0.2, "timeout_s": 0.2, "fall": 1, "rise": 1}
    proxy = new_proxy(
        config_for(backend.url, pool={"health": health, "queue": {"size": 8, "timeout_s": 0.5}})
    )
    backend.stop()
    proxy.wait_for_readyz(503, 5)
    begin = time.monotonic()
    answer = proxy.ask()
    assert_error(answer, 529, "overloaded_error")
    assert int(answer.headers["retry-after"]) >= 1
    assert time.monotonic() - begin < 3
    assert proxy.admin_get("/livez").status == 200
    backend.start()
    proxy.wait_for_readyz(200, 5)
    assert proxy.ask().status == 200
