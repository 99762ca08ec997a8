"""One request at a pool: which failures are tried again, what each does to the backend's health, and what is raised in the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from time import monotonic

import pytest
from tests.app_state import config_of, running_fleet, until
from tests.doubles.backend import Close, Hold, Play, Reply, Reset, ScriptedBackend, refusal, stream
from tests.doubles.frames import DONE, Canned, D

from ferrule._core import Exchange, ReplyOptions
from ferrule.backends.pool import Fleet
from ferrule.errors import Failure
from ferrule.gateway import retry as dispatching
from ferrule.gateway.retry import Sending, dispatch
from ferrule.routing.health import BreakerState
from ferrule.telemetry.request_record import Record

BODY = json.dumps({"model": "m", "stream": True}).encode()


def folded() -> Exchange:
    return Exchange(telling="folded", options=ReplyOptions(message_id="msg_1", model="m"))


def sending(**members: str) -> Sending:
    return Sending("/v1/chat/completions", BODY, b"key", lambda backend, affinity: b"", **members)


async def sent(fleet: Fleet, exchange: Exchange | None = None) -> tuple[bytes, Record]:
    exchange, record = exchange or folded(), Record("req_1", "messages", monotonic())
    await dispatch(fleet, exchange, sending(), record)
    return exchange.take_body(), record


async def until_kept(fleet: Fleet) -> None:
    """The end of a reply's framing may come a moment after the reply."""
    upstream = fleet.upstream(fleet.pool.backends[0])
    async with asyncio.timeout(5):
        while (relay := upstream.take_idle()) is None:
            await asyncio.sleep(0.001)
    upstream.give_back(relay)


def codes(fleet: Fleet) -> list[str]:
    return sorted(labels[2] for labels in fleet.metrics.backend_requests.series)


async def test_a_reply(backend: ScriptedBackend) -> None:
    async with running_fleet(config_of(backend.url)) as fleet:
        body, record = await sent(fleet)
        assert json.loads(body)["content"] == [{"type": "text", "text": "Hello."}]
        assert (record.backend, record.branch) == (fleet.pool.backends[0].name, "home")
        assert fleet.pool.backends[0].inflight == 0
        assert codes(fleet) == ["200"]
        assert record.connected_s > 0
        await until_kept(fleet)
        _, again = await sent(fleet)
        assert again.connected_s == 0  # on the connection that was kept
        assert len({seen.connection for seen in backend.requests}) == 1


async def test_extra_headers_go_along(backend: ScriptedBackend) -> None:
    async with running_fleet(config_of(backend.url)) as fleet:
        await dispatch(fleet, folded(), sending(extra_headers="traceparent: 00-x\r\n"), Record("req_1", "messages", 0.0))
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
async def test_retried_elsewhere(new_backend: Callable[..., ScriptedBackend], code: str, play: Play, reason: str) -> None:
    backends = [new_backend(), new_backend()]
    async with running_fleet(config_of(*(backend.url for backend in backends))) as fleet:
        first = fleet.pool.choose(b"key", frozenset(), monotonic())
        assert first is not None
        for backend in backends:
            backend.play(play if backend.url == first.backend.url else Canned("Hello."))
        body, record = await sent(fleet)
        assert b"Hello." in body
        assert record.branch == "failover"
        assert codes(fleet) == ["200", code]
        assert fleet.metrics.retries.series == {(reason,): 1}


RAISED: list[tuple[str, Play, int, str]] = [
    ("400", refusal(400, "bad", kind="BadRequestError"), 400, "400"),
    ("500", refusal(500), 502, "500"),
    ("429", refusal(429, headers=[("retry-after", "9")]), 429, "429"),
    ("hangs up", stream(Close(), sends_head=False), 502, "reset"),
    ("no stream", stream(b"data: {nonsense}\n\n"), 502, "error_event"),
]


@pytest.mark.parametrize(("name", "play", "status", "code"), RAISED, ids=[case[0] for case in RAISED])
async def test_raised_where_there_is_nobody_else(backend: ScriptedBackend, name: str, play: Play, status: int, code: str) -> None:
    backend.play(play)
    async with running_fleet(config_of(backend.url)) as fleet:
        with pytest.raises(Failure) as raised:
            await sent(fleet)
        assert raised.value.status == status
        assert codes(fleet) == [code]
        assert fleet.pool.backends[0].inflight == 0
        assert len(backend.requests) == 1


@pytest.mark.parametrize(("said", "told"), [("9", "9"), ("600", "60"), ("soon", "2"), (None, "2")])
async def test_retry_after(backend: ScriptedBackend, said: str | None, told: str) -> None:
    backend.play(refusal(429, headers=[("retry-after", said)] if said else []))
    async with running_fleet(config_of(backend.url)) as fleet:
        with pytest.raises(Failure) as raised:
            await sent(fleet)
        assert raised.value.headers == {"retry-after": told}


async def test_nobody_listens_any_more(new_backend: Callable[..., ScriptedBackend]) -> None:
    backend = new_backend()
    async with running_fleet(config_of(backend.url)) as fleet:
        backend.stop()
        with pytest.raises(Failure) as raised:
            await sent(fleet)
        assert (raised.value.status, raised.value.message) == (529, "The backend could not be reached.")
        assert codes(fleet) == ["connect_error"]
        assert "127.0.0.1" not in raised.value.message


async def test_a_kept_connection_that_was_closed_is_no_failure(backend: ScriptedBackend) -> None:
    async with running_fleet(config_of(backend.url, pool={"retries": 0})) as fleet:
        await sent(fleet)
        await until_kept(fleet)
        backend.play(stream(Close(), sends_head=False), Canned("Hello."))
        body, _ = await sent(fleet)
        assert b"Hello." in body
        assert fleet.metrics.retries.series == {("stale_connection",): 1}
        assert fleet.pool.backends[0].health.breaker is BreakerState.CLOSED


async def test_retries_end(new_backend: Callable[..., ScriptedBackend]) -> None:
    backends = [new_backend() for _ in range(3)]
    for backend in backends:
        backend.play(refusal(500))
    async with running_fleet(config_of(*(backend.url for backend in backends), pool={"retries": 1})) as fleet:
        with pytest.raises(Failure):
            await sent(fleet)
        assert sum(len(backend.requests) for backend in backends) == 2


async def test_after_the_first_event_nothing_is_tried_again(new_backend: Callable[..., ScriptedBackend]) -> None:
    backends = [new_backend(), new_backend()]
    for backend in backends:
        backend.play(stream(D({"content": "a"}), Close()))
    async with running_fleet(config_of(*(backend.url for backend in backends))) as fleet:
        exchange = folded()
        await dispatch(fleet, exchange, sending(), Record("req_1", "messages", 0.0))
        assert exchange.end == "broken"
        assert exchange.outcome.fault_status == 502
        assert sum(len(backend.requests) for backend in backends) == 1


async def test_who_is_cancelled_gives_everything_back(backend: ScriptedBackend) -> None:
    backend.play(Reply((D({"content": "a"}), Hold())))
    async with running_fleet(config_of(backend.url)) as fleet:
        task = asyncio.ensure_future(sent(fleet))
        await until(lambda: backend.requests)
        assert fleet.pool.inflight == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert fleet.pool.inflight == 0
        assert codes(fleet) == ["client_gone"]
        await until(backend.last.closed.is_set)


async def test_a_full_pool_makes_it_wait_its_turn(backend: ScriptedBackend) -> None:
    hold = Hold()
    backend.play(Reply((D({"content": "a"}), hold, D({}, "stop"), DONE)))
    async with running_fleet(config_of(backend.url, pool={"slots": 1, "max_inflight": 1})) as fleet:
        first, second = asyncio.ensure_future(sent(fleet)), asyncio.ensure_future(sent(fleet))
        await until(lambda: fleet.queue.depth == 1)
        assert len(backend.requests) == 1
        hold.release()
        await first
        _, record = await second
        assert record.queued_s > 0


async def test_a_full_queue_refuses(backend: ScriptedBackend) -> None:
    backend.play(Reply((D({"content": "a"}), Hold())))
    async with running_fleet(config_of(backend.url, pool={"slots": 1, "max_inflight": 1, "queue": {"size": 0}})) as fleet:
        first = asyncio.ensure_future(sent(fleet))
        await until(lambda: fleet.pool.inflight == 1)
        with pytest.raises(Failure, match="queue is full") as raised:
            await sent(fleet)
        assert raised.value.status == 529
        assert fleet.metrics.limited.series == {("queue",): 1}
        first.cancel()


async def test_nobody_to_wait_for(monkeypatch: pytest.MonkeyPatch, backend: ScriptedBackend) -> None:
    monkeypatch.setattr(dispatching, "NO_BACKEND_WAIT_S", 0.05)
    async with running_fleet(config_of(backend.url)) as fleet:
        fleet.pool.update([], monotonic())
        with pytest.raises(Failure) as raised:
            await sent(fleet)
        assert (raised.value.status, raised.value.message) == (529, dispatching.NO_BACKEND)
