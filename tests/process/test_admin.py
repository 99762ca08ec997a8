"""The admin port: what it says for workers that are there, draining, silent or dead."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from ferrule.process.admin import Admin
from ferrule.process.snapshot import Snapshot
from ferrule.telemetry.metrics import Metrics
from ferrule.telemetry.status import BackendView, ConfigView, PoolView, WorkerView


def snapshot(**members: Any) -> Snapshot:
    metrics = Metrics()
    metrics.requests.inc("messages", "m", "200")
    backend = BackendView("p-1", "http://a", True, "up", "closed", 1, 64, 2, 1.0, False)
    plain = Snapshot(
        WorkerView(7, 3), [PoolView("p", 0.5, 1, [backend])], metrics.families(), True, False, None
    )
    return msgspec.structs.replace(plain, **members)


class Port:
    """An admin port over workers that the test tells."""

    def __init__(self) -> None:
        self.workers: list[Snapshot] = [snapshot()]
        self.admin = Admin(self._ask)

    async def _ask(self) -> list[Snapshot]:
        return self.workers

    async def get(self, path: str, method: str = "GET") -> tuple[int, str, str]:
        async with self.session.request(method, path) as answer:
            return answer.status, answer.headers["content-type"], await answer.text()


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    opened = Port()
    host, number = await opened.admin.listen("127.0.0.1", 0)
    async with aiohttp.ClientSession(f"http://{host}:{number}") as opened.session:
        yield opened
    await opened.admin.close()


NOT_READY = {"is_ready": False, "reason": "no healthy backend"}
READY: list[tuple[str, list[Snapshot], int, str]] = [
    ("ready", [snapshot()], 200, "ready"),
    ("one is enough", [snapshot(**NOT_READY), snapshot()], 200, "ready"),
    ("not ready", [snapshot(**NOT_READY)], 503, "no healthy backend"),
    ("one drains", [snapshot(), snapshot(is_draining=True)], 503, "draining"),
    ("none runs", [], 503, "no worker is running"),
]


@pytest.mark.parametrize(
    ("name", "workers", "status", "text"), READY, ids=[case[0] for case in READY]
)
async def test_readyz(
    port: Port, name: str, workers: list[Snapshot], status: int, text: str
) -> None:
    port.workers = workers
    received, _, body = await port.get("/readyz")
    assert (received, body) == (status, f"{text}\n")


async def test_livez_asks_nobody(port: Port) -> None:
    port.workers = []
    assert (await port.get("/livez"))[0] == 200


async def test_metrics_are_those_of_the_living_and_the_dead(port: Port) -> None:
    port.workers = [snapshot(), snapshot()]
    port.admin.aggregator.retire(snapshot().families)
    status, kind, text = await port.get("/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert 'ferrule_requests_total{code="200",model="m",route="messages"} 3.0' in text


async def test_status(port: Port) -> None:
    port.workers = [snapshot(), snapshot(worker=WorkerView(8, 1))]
    status, kind, text = await port.get("/status")
    received = msgspec.json.decode(text)
    assert (status, kind, received["state"], received["reason"]) == (
        200,
        "application/json",
        "ready",
        None,
    )
    assert [worker["pid"] for worker in received["workers"]] == [7, 8]
    assert received["pools"][0]["backends"][0]["inflight"] == 2
    assert received["counters"]["requests_total"] == 2


@pytest.mark.parametrize(
    ("workers", "state", "reason"),
    [
        ([], "not_ready", "no worker is running"),
        ([snapshot(is_draining=True)], "draining", "draining"),
        ([snapshot(**NOT_READY)], "not_ready", "no healthy backend"),
    ],
    ids=["none", "draining", "not-ready"],
)
async def test_status_says_why_not(
    port: Port, workers: list[Snapshot], state: str, reason: str
) -> None:
    port.workers = workers
    status, _, text = await port.get("/status")
    received = msgspec.json.decode(text)
    assert (status, received["state"], received["reason"]) == (200, state, reason)


async def test_status_tells_of_a_refused_configuration(port: Port) -> None:
    good, bad = (
        ConfigView(True, None, "2026-01-01T00:00:00+00:00"),
        ConfigView(False, "f.yaml: listne", "2026-01-01T00:00:00+00:00"),
    )
    for views, expected in (([good, good], good), ([good, bad], bad), ([None], None)):
        port.workers = [snapshot(config=view) for view in views]
        _, _, text = await port.get("/status")
        assert msgspec.json.decode(text)["config"] == msgspec.to_builtins(expected)


async def test_the_page_and_nothing_else(port: Port) -> None:
    status, kind, text = await port.get("/")
    assert (status, kind) == (200, "text/html; charset=utf-8")
    assert "<html" in text
    assert (await port.get("/v1/models"))[0] == 404
    assert (await port.get("/metrics", "POST"))[0] == 405
