"""A reply that goes wrong while it is told: the stream ends honestly, and everything is given back
and noted once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.app_state import Stage, running_stage, until
from tests.doubles.backend import Hold, Reply, ScriptedBackend
from tests.doubles.frames import D
from tests.doubles.proxy import REQ

from ferrule.gateway import responder as replying


@pytest.fixture
async def stage(backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    async with running_stage(backend, monkeypatch) as running:
        yield running


async def test_a_fault_of_ours_in_a_stream_is_an_error_event(
    stage: Stage, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.play(Reply((D({"content": "a"}), Hold())))
    send_with_retries = replying.send_with_retries

    async def broken(pool: Any, stream: Any, sending: Any, record: Any) -> None:
        running = asyncio.ensure_future(send_with_retries(pool, stream, sending, record))
        await until(lambda: stream.is_committed)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        raise ZeroDivisionError

    monkeypatch.setattr(replying, "send_with_retries", broken)
    async with stage.client.post("/v1/messages", json=REQ(stream=True)) as answer:
        received = await answer.read()
    assert answer.status == 200
    assert received.count(b"event: error") == 1
    assert b"Internal error." in received
    (record,) = stage.records
    assert (record.status, record.end_reason) == (200, "backend_error")
    assert stage.worker.proxy.streams == set()


async def test_a_client_that_leaves_is_noted_once_and_costs_nothing_more(
    stage: Stage, backend: ScriptedBackend
) -> None:
    backend.play(Reply((D({"content": "a"}), Hold())))
    async with stage.client.post("/v1/messages", json=REQ(stream=True)) as answer:
        await answer.content.readuntil(b"text_delta")
        answer.close()
    await until(lambda: stage.records)
    (record,) = stage.records
    assert (record.status, record.end_reason) == (499, "client_gone")
    assert stage.worker.proxy.streams == set()
    assert stage.worker.metrics.streams.series == {(): 0}
    assert stage.worker.state.pools["default"].balancer.inflight == 0


async def test_the_shutdown_ends_whole_replies_with_a_status(
    stage: Stage, backend: ScriptedBackend
) -> None:
    backend.play(Reply((Hold(),), sends_head=False))
    asking = asyncio.ensure_future(stage.ask())
    await until(lambda: stage.worker.proxy.streams and backend.requests)
    stage.worker.proxy.end_streams()
    status, body = await asking
    assert (status, body["error"]["type"]) == (529, "overloaded_error")


async def test_the_shutdown_ends_streams_with_an_event_and_its_own_reason(
    stage: Stage, backend: ScriptedBackend
) -> None:
    backend.play(Reply((D({"content": "a"}), Hold())))
    async with stage.client.post("/v1/messages", json=REQ(stream=True)) as answer:
        await answer.content.readuntil(b"text_delta")
        stage.worker.proxy.end_streams()
        received = await answer.read()
    assert received.count(b"event: error") == 1
    (record,) = stage.records
    assert (record.status, record.end_reason) == (200, "drain")
