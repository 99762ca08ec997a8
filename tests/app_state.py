"""The state of a worker as tests build them, and waiting for what other threads and tasks bring
about."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import yaml
from tests.doubles.backend import ScriptedBackend
from tests.doubles.proxy import REQ, config_for

from ferrule._core import Poller
from ferrule.backends.pool import BackendPool, PoolContext, WorkerId
from ferrule.catalog import DiscoveredModels
from ferrule.config import Config, Flags, loads
from ferrule.process import worker as working
from ferrule.process.worker import Worker, WorkerSettings
from ferrule.telemetry.metrics import Metrics
from ferrule.telemetry.request_record import RequestRecord


def config_of(*backends: str, **settings: Any) -> Config:
    """As `tests.doubles.proxy.config_for`, read."""
    return loads(yaml.safe_dump(config_for(*backends, **settings)))


async def until(condition: Callable[[], Any], timeout_s: float = 5.0) -> None:
    """Lets the loop run until it is so."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running_pool(
    config: Config,
    on_models: Callable[[str, DiscoveredModels], None] = lambda pool, discovered: None,
) -> AsyncIterator[BackendPool]:
    """The pool of pool `p`, its backends asked and its connections read by a poller of its own."""
    poller = Poller()
    loop = asyncio.get_running_loop()
    loop.add_reader(poller.fileno(), poller.run)
    pool = BackendPool(
        "p", config.pools["p"], PoolContext(WorkerId(), Metrics(), poller), on_models
    )
    pool.start()
    try:
        await until(
            lambda: (
                pool.balancer.backends
                and not any(entry.has_probe for entry in pool._entries.values())
            )
        )
        yield pool
    finally:
        await pool.stop()
        loop.remove_reader(poller.fileno())


@asynccontextmanager
async def running_worker(
    settings: WorkerSettings, *, waits: bool = True
) -> AsyncIterator[tuple[Worker, aiohttp.ClientSession]]:
    """A worker in this process, ready unless `waits` is False, and a client of its port."""
    worker = Worker(settings, settings.read())
    host, port = await worker.start()
    try:
        if waits:
            await until(lambda: worker.snapshot().is_ready)
        async with aiohttp.ClientSession(f"http://{host}:{port}") as client:
            yield worker, client
    finally:
        await worker.close()


class Stage:
    """A worker with a client, and the records of its requests."""

    def __init__(
        self, worker: Worker, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.worker, self.client = worker, client
        self.records: list[RequestRecord] = []
        monkeypatch.setattr(worker.state.recorder, "add", self.records.append)

    async def ask(
        self, path: str = "/v1/messages", headers: dict[str, str] | None = None, **members: Any
    ) -> tuple[int, Any]:
        async with self.client.post(path, json=REQ(**members), headers=headers) as answer:
            return answer.status, json.loads(await answer.read())

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.get(path, headers=named) as answer:
            return answer.status, json.loads(await answer.read())


@asynccontextmanager
async def running_stage(
    backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stage]:
    """One backend, whose every model is served in the dialect `anthropic`."""
    monkeypatch.setattr(working, "tune_gc", lambda: None)
    monkeypatch.setattr(working, "tune_malloc", lambda: None)
    settings = WorkerSettings(
        Flags(backends=(backend.url,), listen="127.0.0.1:0", dialect="anthropic")
    )
    async with running_worker(settings) as (worker, client):
        yield Stage(worker, client, monkeypatch)
