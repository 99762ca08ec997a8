"""A Redis server on a free port, and the three stores behind one interface."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis

from ferrule.admission.keys import Tenant
from ferrule.admission.limits import Limiter
from ferrule.admission.stores import Store
from ferrule.admission.stores.memory import MemoryStore
from ferrule.admission.stores.redis import KEY_PREFIX, RedisStore
from ferrule.admission.stores.shared import SharedStore


class RedisServer:
    """`redis-server` as a child process; `hang` suspends it, `resume` continues it."""

    def __init__(self, binary: str, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._command = [
            binary,
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
            str(folder),
        ]
        self.client = redis.Redis.from_url(self.url, decode_responses=True)
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while True:
            try:
                self.client.ping()
                return
            except redis.ConnectionError:
                if time.monotonic() > deadline:
                    raise

    def hang(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        self.client.close()
        self.resume()
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="session")
def running_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    binary = shutil.which("redis-server") or shutil.which("valkey-server")
    if binary is None:
        pytest.skip("needs redis-server or valkey-server")
    server = RedisServer(binary, tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def redis_server(running_redis: RedisServer) -> RedisServer:
    running_redis.client.flushall()
    return running_redis


class Replicas:
    """A store and a second one that shares its counters (another worker or replica), with a clock
    that `pass_time` moves. In memory there is no second one."""

    def __init__(self, kind: str, request: pytest.FixtureRequest, folder: Path) -> None:
        self.now = 1000.0
        self.refusals: list[str] = []
        self._stores: list[Store] = []
        self._server: RedisServer | None = None
        if kind == "memory":
            self._stores = [MemoryStore()]
        elif kind == "shared":
            SharedStore.create(folder / "counts", workers=2)
            self._stores = [SharedStore(folder / "counts", worker) for worker in (0, 1)]
        else:
            self._server = request.getfixturevalue("redis_server")
            self._stores = [RedisStore(self._server.url) for _ in range(2)]
        self.limiters = [
            Limiter(store, "deny", on_limited=self.refusals.append, clock=lambda: self.now)
            for store in self._stores
        ]
        self.limiter = self.limiters[0]
        self.any_limiter = itertools.cycle(self.limiters)

    def pass_time(self, seconds: float, tenant: Tenant) -> None:
        self.now += seconds
        if self._server is not None:
            name = f"{KEY_PREFIX}{{{tenant.name}}}"
            for field in self._server.client.hkeys(name):
                self._server.client.hincrbyfloat(name, field, -seconds)

    async def close(self) -> None:
        for limiter in self.limiters:
            await limiter.close()


@pytest.fixture(params=["memory", "shared", "redis"])
async def replicas(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Replicas]:
    replicas = Replicas(request.param, request, tmp_path)
    yield replicas
    await replicas.close()
