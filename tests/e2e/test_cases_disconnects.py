"""Clients that leave, backends that say nothing: what is cut, what is kept alive, and when."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.doubles.backend import Hold, Pause, Reply, ScriptedBackend, Step, stream, wait_until
from tests.doubles.client import post
from tests.doubles.events import assert_ends_with_error, read_events, story_of
from tests.doubles.frames import DONE, ROLE_DELTA, Canned, D
from tests.doubles.proxy import REQ, Ferrule, assert_error, config_for

PING_AFTER_S = 0.4
TIMEOUTS = {"connect_s": 1, "first_event_s": 1.5, "idle_s": 2.0, "total_s": 4}
FOREVER: list[Step] = [step for _ in range(200) for step in (D({"content": "x"}), Pause(0.1))]


@pytest.fixture(scope="module")
def shared_quick(new_proxy: Callable[..., Ferrule], shared_backend: ScriptedBackend) -> Ferrule:
    pool = {"timeouts": TIMEOUTS, "retries": 0}
    return new_proxy(
        config_for(
            shared_backend.url, pool=pool, ping_after_s=PING_AFTER_S, edge={"write_stall_s": 2}
        )
    )


@pytest.fixture
def quick(shared_quick: Ferrule, backend: ScriptedBackend) -> Ferrule:
    """A proxy with short deadlines."""
    return shared_quick


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_i01_the_backend_is_cut_within_a_second(
    proxy: Ferrule, backend: ScriptedBackend, path: str, streamed: bool
) -> None:
    backend.play(stream(*FOREVER) if streamed else Reply([Hold()], sends_head=False))
    with socket.create_connection(tuple(proxy.listen.split(":"))) as client:
        client.sendall(post(path, REQ(stream=streamed)))
        backend.wait_for_requests(1)
        if streamed:
            assert client.recv(10)
    left = time.monotonic()
    assert backend.last.closed.wait(3)
    assert backend.last.closed_at is not None
    assert backend.last.closed_at - left < 1


def test_i01_while_waiting_for_the_first_token(proxy: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(stream(D(ROLE_DELTA), Hold()))
    with socket.create_connection(tuple(proxy.listen.split(":"))) as client:
        client.sendall(post("/v1/messages", REQ(stream=True)))
        backend.wait_for_requests(1)
    assert backend.last.closed.wait(1)


def test_i03_a_client_that_reads_nothing(quick: Ferrule, backend: ScriptedBackend) -> None:
    before = quick.memory_kb()
    backend.play(stream(*([D({"content": "x" * 4000})] * 20_000)))
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        host, port = quick.listen.split(":")
        client.connect((host, int(port)))
        client.sendall(post("/v1/messages", REQ(stream=True)))
        backend.wait_for_requests(1)
        assert backend.last.closed.wait(8), "the write stall is never noticed"
    assert quick.memory_kb() - before < 30_000


def test_i05_clients_that_leave_are_no_fault_of_the_backend(
    quick: Ferrule, backend: ScriptedBackend
) -> None:
    before = quick.metric("stream_end_total", reason="client_gone")
    backend.play(stream(*FOREVER))
    for _ in range(20):
        with quick.open_stream() as answer:
            answer.read_some()
            answer.reset()
    quick.wait_for_metric("stream_end_total", before + 20, reason="client_gone")
    assert quick.metric("backend_healthy") == 1
    backend.play(Canned("Hi"))
    assert story_of(quick.message()) == [("text", "Hi")]


def test_i07_pings_in_silence(quick: Ferrule, backend: ScriptedBackend) -> None:
    silent = Pause(PING_AFTER_S * 2.6)
    backend.play(
        stream(
            D(ROLE_DELTA),
            silent,
            D({"content": "a"}),
            silent,
            D({"content": "b"}),
            D({}, "stop"),
            DONE,
        )
    )
    answer = quick.stream()
    names = [event.name for event in answer.events]
    assert story_of(answer.message) == [("text", "ab")]
    start, end = names.index("content_block_delta"), names.index("content_block_stop")
    assert names[:start].count("ping") >= 1
    assert names[start:end].count("ping") >= 1
    assert names.count("ping") <= 6
    assert names[-1] == "message_stop"


def test_i07_no_ping_where_there_is_no_silence(proxy: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(Canned("Hi"))
    assert "ping" not in [event.name for event in proxy.stream().events]


def test_i07_comments_are_no_progress(quick: Ferrule, backend: ScriptedBackend) -> None:
    comments: list[Step] = [step for _ in range(60) for step in (b": keep-alive\n\n", Pause(0.1))]
    backend.play(stream(D({"content": "x"}), *comments))
    begin = time.monotonic()
    events = quick.stream().events
    assert_ends_with_error(events, "timeout_error")
    assert time.monotonic() - begin < TIMEOUTS["idle_s"] + 2
    assert "ping" in [event.name for event in events]


def test_i09_one_silent_backend_holds_up_nobody_else(
    new_backend: Callable[..., ScriptedBackend], new_proxy: Callable[..., Ferrule]
) -> None:
    silent, lively = new_backend(), new_backend()
    silent.play(Reply([Hold()], sends_head=False))
    pool = {"timeouts": TIMEOUTS, "retries": 0, "health": {"interval_s": 30}}
    proxy = new_proxy(config_for(silent.url, lively.url, pool=pool))

    def turn(n: int) -> tuple[float, int]:
        begin = time.monotonic()
        status = proxy.ask(stream=True, headers={"x-claude-code-session-id": f"s{n}"}).status
        return time.monotonic() - begin, status

    with ThreadPoolExecutor(20) as threads:
        turns = list(threads.map(turn, range(20)))
    quick_ones = [seconds for seconds, status in turns if status == 200]
    slow_ones = [seconds for seconds, status in turns if status == 504]
    assert len(quick_ones) + len(slow_ones) == 20, turns
    assert len(slow_ones) == len(silent.requests)
    assert quick_ones
    assert max(quick_ones) < 1.2


def test_i09_a_stream_that_never_begins(quick: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(Reply([Hold()], sends_head=False))
    begin = time.monotonic()
    answer = quick.ask(stream=True)
    assert time.monotonic() - begin < TIMEOUTS["first_event_s"] + 2
    if answer.status == 200:  # a ping was due first, so the status is out
        assert_ends_with_error(read_events(answer.content), "timeout_error")
    else:
        assert_error(answer, 504, "timeout_error")
    assert backend.last.closed.wait(1)


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_i11_a_reply_without_end(quick: Ferrule, backend: ScriptedBackend, streamed: bool) -> None:
    before = quick.metric("stream_end_total", reason="timeout")
    backend.play(stream(*FOREVER) if streamed else Reply([Hold()], sends_head=False))
    begin = time.monotonic()
    if streamed:
        assert_ends_with_error(quick.stream().events, "timeout_error")
        quick.wait_for_metric("stream_end_total", before + 1, reason="timeout")
    else:
        assert_error(quick.ask(), 504, "timeout_error")
    assert TIMEOUTS["total_s"] - 0.5 < time.monotonic() - begin < TIMEOUTS["total_s"] + 2
    assert backend.last.closed.wait(1)


def test_gauges_return_to_zero(quick: Ferrule, backend: ScriptedBackend) -> None:
    wait_until(lambda: backend.inflight == 0, 3, "the backend to be idle")
    quick.wait_for_metric("streams_active", 0)
    quick.wait_for_metric("backend_inflight", 0)
