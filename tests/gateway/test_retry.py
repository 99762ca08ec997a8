"""One request at a pool: which failures are tried again, what each does to the backend's health,
and what is raised in the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from time import monotonic

import pytest
from tests.app_state import config_of, running_pool, until
from tests.doubles.backend import Close, Hold, Play, Reply, Reset, ScriptedBackend, refusal, stream
from tests.doubles.frames import DONE, Canned, D
from tests.doubles.response_policy import response_policy

from ferrule._core import (
    ResponseEnd,
    ResponseOptions,
    ResponseSpec,
    ResponseStream,
    StreamDeadlines,
)
from ferrule.backends.pool import BackendPool
from ferrule.errors import Failure
from ferrule.gateway import retry as dispatching
from ferrule.gateway.retry import UpstreamRequest, send_with_retries
from ferrule.routing.health import BreakerState
from ferrule.telemetry.request_record import RequestRecord

BODY = json.dumps({"model": "m", "stream": True}).encode()


DEADLINES = StreamDeadlines(ping_after_s=10, first_event_s=600, idle_s=120, total_s=3600)


def aggregated() -> ResponseStream:
    options = ResponseOptions(
        response_policy(), message_id="msg_1", model="m", reasoning="thinking"
    )
    return ResponseStream(ResponseSpec.aggregated(options), DEADLINES)


def sending(**members: str) -> UpstreamRequest:
    return UpstreamRequest("/v1/chat/completions", BODY, b"key", lambda choice: b"", **members)


async def sent(
    pool: BackendPool, stream: ResponseStream | None = None
) -> tuple[bytes, RequestRecord]:
    stream, record = stream or aggregated(), RequestRecord("req_1", "messages", monotonic())
    await send_with_retries(pool, stream, sending(), record)
    return stream.take_body(), record


async def until_kept(pool: BackendPool) -> None:
    """The end of a reply's framing may come a moment after the reply."""
    upstream = pool.connections(pool.balancer.backends[0])
    async with asyncio.timeout(5):
        while (connection := upstream.take_idle()) is None:
            await asyncio.sleep(0.001)
    upstream.give_back(connection)


def codes(pool: BackendPool) -> list[str]:
    return sorted(labels[2] for labels in pool.metrics.backend_requests.series)


async def test_a_reply(backend: ScriptedBackend) -> None:
    async with running_pool(config_of(backend.url)) as pool:
        body, record = await sent(pool)
        assert json.loads(body)["content"] == [{"type": "text", "text": "Hello."}]
        assert (record.backend, record.branch) == (pool.balancer.backends[0].name, "home")
        assert pool.balancer.backends[0].inflight == 0
        assert codes(pool) == ["200"]
        assert record.connected_s > 0
        await until_kept(pool)
        _, again = await sent(pool)
        assert again.connected_s == 0  # on the connection that was kept
        assert len({seen.connection for seen in backend.requests}) == 1


async def test_extra_headers_go_along(backend: ScriptedBackend) -> None:
    async with running_pool(config_of(backend.url)) as pool:
        await send_with_retries(
            pool,
            aggregated(),
            sending(extra_headers="traceparent: 00-x\r\n"),
            RequestRecord("req_1", "messages", 0.0),
        )
        assert backend.last.header("traceparent") == "00-x"


RETRIED: list[tuple[str, Play, str]] = [
    ("500", refusal(500), "server_error"),
    ("503", refusal(503), "server_error"),
    ("429", refusal(429), "busy"),
    ("reset", stream(Reset(), sends_head=False), "broken"),
    ("broken", stream(b": hello\n\n", Close()), "broken"),
    ("error_event", stream(b"data: {nonsense}\n\n"), "server_error"),
    ("error_event", stream(b'data: {"error":{"message":"boom","code":500}}\n\n'), "server_error"),
]


@pytest.mark.parametrize(("code", "play", "reason"), RETRIED)
async def test_retried_elsewhere(
    new_backend: Callable[..., ScriptedBackend], code: str, play: Play, reason: str
) -> None:
    backends = [new_backend(), new_backend()]
    async with running_pool(config_of(*(backend.url for backend in backends))) as pool:
        first = pool.balancer.select(b"key", frozenset(), monotonic())
        assert first is not None
        for backend in backends:
            backend.play(play if backend.url == first.backend.url else Canned("Hello."))
        body, record = await sent(pool)
        assert b"Hello." in body
        assert record.branch == "failover"
        assert codes(pool) == ["200", code]
        assert pool.metrics.retries.series == {(reason,): 1}


RAISED: list[tuple[str, Play, int, str]] = [
    ("400", refusal(400, "bad", kind="BadRequestError"), 400, "400"),
    ("500", refusal(500), 502, "500"),
    ("429", refusal(429, headers=[("retry-after", "9")]), 429, "429"),
    ("hangs up", stream(Close(), sends_head=False), 502, "reset"),
    ("no stream", stream(b"data: {nonsense}\n\n"), 502, "error_event"),
]


@pytest.mark.parametrize(
    ("name", "play", "status", "code"), RAISED, ids=[case[0] for case in RAISED]
)
async def test_raised_where_there_is_nobody_else(
    backend: ScriptedBackend, name: str, play: Play, status: int, code: str
) -> None:
    backend.play(play)
    async with running_pool(config_of(backend.url)) as pool:
        with pytest.raises(Failure) as raised:
            await sent(pool)
        assert raised.value.status == status
        assert codes(pool) == [code]
        assert pool.balancer.backends[0].inflight == 0
        assert len(backend.requests) == 1


@pytest.mark.parametrize(
    ("said", "received"), [("9", "9"), ("600", "60"), ("soon", "2"), (None, "2")]
)
async def test_retry_after(backend: ScriptedBackend, said: str | None, received: str) -> None:
    backend.play(refusal(429, headers=[("retry-after", said)] if said else []))
    async with running_pool(config_of(backend.url)) as pool:
        with pytest.raises(Failure) as raised:
            await sent(pool)
        assert str(raised.value.retry_after_s) == received


async def test_nobody_listens_any_more(new_backend: Callable[..., ScriptedBackend]) -> None:
    backend = new_backend()
    async with running_pool(config_of(backend.url)) as pool:
        backend.stop()
        with pytest.raises(Failure) as raised:
            await sent(pool)
        assert (raised.value.status, raised.value.message) == (
            529,
            "The backend could not be reached.",
        )
        assert codes(pool) == ["connect_error"]
        assert "127.0.0.1" not in raised.value.message


async def test_a_kept_connection_that_was_closed_is_no_failure(backend: ScriptedBackend) -> None:
    async with running_pool(config_of(backend.url, pool={"retries": 0})) as pool:
        await sent(pool)
        await until_kept(pool)
        backend.play(stream(Close(), sends_head=False), Canned("Hello."))
        body, _ = await sent(pool)
        assert b"Hello." in body
        assert pool.metrics.retries.series == {("stale_connection",): 1}
        assert pool.balancer.backends[0].health.breaker is BreakerState.CLOSED


async def test_retries_end(new_backend: Callable[..., ScriptedBackend]) -> None:
    backends = [new_backend() for _ in range(3)]
    for backend in backends:
        backend.play(refusal(500))
    async with running_pool(
        config_of(*(backend.url for backend in backends), pool={"retries": 1})
    ) as pool:
        with pytest.raises(Failure):
            await sent(pool)
        assert sum(len(backend.requests) for backend in backends) == 2


async def test_after_the_first_event_nothing_is_tried_again(
    new_backend: Callable[..., ScriptedBackend],
) -> None:
    backends = [new_backend(), new_backend()]
    for backend in backends:
        backend.play(stream(D({"content": "a"}), Close()))
    async with running_pool(config_of(*(backend.url for backend in backends))) as pool:
        response = aggregated()
        await send_with_retries(pool, response, sending(), RequestRecord("req_1", "messages", 0.0))
        assert response.end == ResponseEnd.BROKEN
        assert response.outcome.fault_status == 502
        assert sum(len(backend.requests) for backend in backends) == 1


async def test_who_is_cancelled_gives_everything_back(backend: ScriptedBackend) -> None:
    backend.play(Reply((D({"content": "a"}), Hold())))
    async with running_pool(config_of(backend.url)) as pool:
        task = asyncio.ensure_future(sent(pool))
        await until(lambda: backend.requests)
        assert pool.balancer.inflight == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pool.balancer.inflight == 0
        assert codes(pool) == ["client_gone"]
        await until(backend.last.closed.is_set)


async def test_a_full_pool_makes_it_wait_its_turn(backend: ScriptedBackend) -> None:
    hold = Hold()
    backend.play(Reply((D({"content": "a"}), hold, D({}, "stop"), DONE)))
    async with running_pool(config_of(backend.url, pool={"slots": 1, "max_inflight": 1})) as pool:
        first, second = asyncio.ensure_future(sent(pool)), asyncio.ensure_future(sent(pool))
        await until(lambda: pool.queue.depth == 1)
        assert len(backend.requests) == 1
        hold.release()
        await first
        _, record = await second
        assert record.queued_s > 0


async def test_a_full_queue_refuses(backend: ScriptedBackend) -> None:
    backend.play(Reply((D({"content": "a"}), Hold())))
    async with running_pool(
        config_of(backend.url, pool={"slots": 1, "max_inflight": 1, "queue": {"size": 0}})
    ) as pool:
        first = asyncio.ensure_future(sent(pool))
        await until(lambda: pool.balancer.inflight == 1)
        with pytest.raises(Failure, match="queue is full") as raised:
            await sent(pool)
        assert raised.value.status == 529
        assert pool.metrics.limited.series == {("queue",): 1}
        first.cancel()


async def test_nobody_to_wait_for(
    monkeypatch: pytest.MonkeyPatch, backend: ScriptedBackend
) -> None:
    monkeypatch.setattr(dispatching, "NO_BACKEND_WAIT_S", 0.05)
    async with running_pool(config_of(backend.url)) as pool:
        pool.balancer.update([], monotonic())
        with pytest.raises(Failure) as raised:
            await sent(pool)
        assert (raised.value.status, raised.value.message) == (529, dispatching.NO_BACKEND)
