"""The story of a request where it goes wrong inside: what the client gets, and that everything is given back and noted once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from tests.doubles.backend import Hold, Reply, ScriptedBackend
from tests.doubles.frames import D
from tests.doubles.proxy import REQ
from tests.parts import running_worker, until

from ferrule import proxy as story
from ferrule import worker as working
from ferrule.config import Flags
from ferrule.telemetry.record import Record
from ferrule.worker import Settings, Worker


class Stage:
    """A worker with a client, and the records of its requests."""

    def __init__(self, worker: Worker, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
        self.worker, self.client = worker, client
        self.records: list[Record] = []
        monkeypatch.setattr(worker.parts.ledger, "add", self.records.append)

    async def ask(self, path: str = "/v1/messages", headers: dict[str, str] | None = None, **members: Any) -> tuple[int, Any]:
        async with self.client.post(path, json=REQ(**members), headers=headers) as answer:
            return answer.status, json.loads(await answer.read())

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.get(path, headers=named) as answer:
            return answer.status, json.loads(await answer.read())


@pytest.fixture
async def stage(backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(working, "_calm_collector", lambda: None)
    monkeypatch.setattr(working, "_keep_heap", lambda: None)
    settings = Settings(Flags(backends=(backend.url,), listen="127.0.0.1:0", dialect="anthropic"))
    async with running_worker(settings) as (worker, client):
        yield Stage(worker, client, monkeypatch)


async def test_a_fault_of_ours_is_a_500_without_a_word_of_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(story, "translate", broken)
    status, body = await stage.ask()
    assert (status, body["error"]) == (500, {"type": "api_error", "message": "Internal error."})
    assert "ZeroDivisionError" in caplog.text
    (record,) = stage.records
    assert (record.status, record.error, record.request_id) == (500, "api_error", body["request_id"])
    assert stage.worker.proxy.running == 0


async def test_a_fault_of_ours_in_a_stream_is_an_error_event(
    stage: Stage, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.play(Reply((D({"content": "a"}), Hold())))
    dispatch = story.dispatch

    async def broken(fleet: Any, exchange: Any, sending: Any, record: Any) -> None:
        running = asyncio.ensure_future(dispatch(fleet, exchange, sending, record))
        await until(lambda: exchange.is_committed)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        raise ZeroDivisionError

    monkeypatch.setattr(story, "dispatch", broken)
    async with stage.client.post("/v1/messages", json=REQ(stream=True)) as answer:
        told = await answer.read()
    assert answer.status == 200
    assert told.count(b"event: error") == 1
    assert b"Internal error." in told
    (record,) = stage.records
    assert (record.status, record.end_reason) == (200, "backend_error")
    assert stage.worker.proxy.live == set()


async def test_a_client_that_leaves_is_noted_once_and_costs_nothing_more(stage: Stage, backend: ScriptedBackend) -> None:
    backend.play(Reply((D({"content": "a"}), Hold())))
    async with stage.client.post("/v1/messages", json=REQ(stream=True)) as answer:
        await answer.content.readuntil(b"text_delta")
        answer.close()
    await until(lambda: stage.records)
    (record,) = stage.records
    assert (record.status, record.end_reason) == (499, "client_gone")
    assert stage.worker.proxy.live == set()
    assert stage.worker.metrics.streams.series == {(): 0}
    assert stage.worker.parts.fleets["default"].pool.inflight == 0


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
async def test_limits_are_settled_with_what_was_used_also_when_it_fails(
    stage: Stage, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    settled: list[int] = []

    class Lease:
        def headers(self) -> dict[str, str]:
            return {}

        async def settle(self, tokens: int) -> None:
            settled.append(tokens)

    async def admit(tenant: Any, tokens: int) -> Lease:
        return Lease()

    monkeypatch.setattr(stage.worker.parts.limiter, "admit", admit)
    assert (await stage.ask(path))[0] == 200
    backend.play(Reply(status=400, framing="length"))
    assert (await stage.ask(path))[0] == 400
    assert settled == [10, 0]


@pytest.mark.parametrize(
    ("headers", "is_anthropic"),
    [
        ({"anthropic_version": "2023-06-01"}, True),
        ({"x_api_key": "k"}, True),
        ({"authorization": "Bearer k"}, False),
        ({"x_api_key": "k", "authorization": "Bearer k"}, False),
        ({}, False),
    ],
)
async def test_lists_come_in_the_shape_the_client_speaks(stage: Stage, headers: dict[str, str], is_anthropic: bool) -> None:
    _, body = await stage.get("/v1/models", **headers)
    assert ("has_more" in body) is is_anthropic


async def test_a_path_with_v1_twice_gets_a_hint(stage: Stage) -> None:
    status, body = await stage.ask("/v1/v1/messages")
    assert status == 404
    assert "base URL" in body["error"]["message"]
    assert stage.records[0].route == "unknown"


async def test_a_method_that_is_not_offered(stage: Stage) -> None:
    async with stage.client.delete("/v1/models") as answer:
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


async def test_the_shutdown_ends_whole_replies_with_a_status(stage: Stage, backend: ScriptedBackend) -> None:
    backend.play(Reply((Hold(),), sends_head=False))
    asking = asyncio.ensure_future(stage.ask())
    await until(lambda: stage.worker.proxy.live and backend.requests)
    stage.worker.proxy.end_all()
    status, body = await asking
    assert (status, body["error"]["type"]) == (529, "overloaded_error")
