"""Loads that one request could put on all others, and what thousands leave behind: nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.doubles.backend import Hold, ScriptedBackend, stream, wait_until
from tests.doubles.client import Client, post
from tests.doubles.frames import D
from tests.doubles.proxy import REQ, ROOT, Ferrule, config_for, free_port
from tests.resilience.crowd import best_of, crowd, gaps, percentile
from tests.resilience.engines import Sim

RATE = 20.0
STREAMS = 50
ABORTED = 10_000
WIDE = {"slots": 20_000, "max_inflight": 20_000}
HOSE_MB = 400
WRITE_STALL_S = 3


@pytest.fixture
def hose() -> Iterator[Client]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.resilience.hose", str(port), str(HOSE_MB)], cwd=ROOT
    )
    client = Client(f"127.0.0.1:{port}")

    def answers() -> bool:
        try:
            return client.get("/health").status == 200
        except OSError:
            return False

    wait_until(answers, 10, "the hose")
    client.address = f"http://127.0.0.1:{port}"  # type: ignore[attr-defined]
    yield client
    process.kill()
    process.wait(5)


def beside(steady: Sim, hose: Client) -> dict[str, object]:
    """Model `m` at twenty tokens a second, model `hose` without a pause."""
    config = config_for(steady.url, pool=WIDE, edge={"write_stall_s": WRITE_STALL_S})
    config["pools"]["hose"] = {"backends": [hose.address], "engine": "vllm"}  # type: ignore[attr-defined]
    config["models"].append({"id": "hose", "pool": "hose", "upstream": "m"})
    return config


async def lateness_ms(
    proxy: Ferrule, disturb: Callable[[], Awaitable[object]] | None = None
) -> float:
    """The 99th percentile of how much later than the beat the tokens of fifty streams come; with a
    disturbance until they end."""
    async with crowd(proxy) as clients:
        disturbing = asyncio.ensure_future(disturb()) if disturb is not None else None
        turns = await asyncio.gather(*(clients.stream(f"beat-{n}", 40) for n in range(STREAMS)))
        if disturbing is not None:
            disturbing.cancel()
            await asyncio.gather(disturbing, return_exceptions=True)
        assert all(turn.is_good for turn in turns)
    return percentile([max(0.0, gap - 1 / RATE) for gap in gaps(turns)]) * 1000


async def test_a_firehose_beside_50_streams(steady_sim: Sim, hose: Client, tmp_path: Path) -> None:
    with Ferrule(beside(steady_sim, hose), tmp_path) as proxy:
        request = post("/v1/messages", REQ(model="hose", stream=True))

        async def drink() -> None:
            await asyncio.to_thread(drained, proxy.listen, request)

        measured = await best_of(3, lambda: lateness_ms(proxy, drink), 20)
        print(f"firehose: others' p99 {min(measured):.1f} ms late")
        assert min(measured) < 20, measured


def drained(address: str, request: bytes) -> None:
    """Asks for the hose and reads for as long as the fifty need."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(request)
        end = time.monotonic() + 2.5
        room = bytearray(1 << 20)
        while time.monotonic() < end and client.recv_into(room):
            pass


@pytest.mark.slow
async def test_counting_400_kb_beside_50_streams(steady_sim: Sim, tmp_path: Path) -> None:
    config = config_for(steady_sim.url, pool=WIDE, dialect="token-factory")
    words = "".join(f"word {n} and another {n * 7919 % 1000003} " for n in range(14_000))[:400_000]
    with Ferrule(config, tmp_path) as proxy:
        counted = 0

        async def count() -> None:
            nonlocal counted
            async with crowd(proxy) as clients:
                while True:
                    turn = await clients.ask(
                        "/v1/messages/count_tokens", messages=[{"role": "user", "content": words}]
                    )
                    assert turn.status == 200
                    counted += 1

        alone = min([await lateness_ms(proxy) for _ in range(2)])

        async def added() -> float:
            return await lateness_ms(proxy, count) - alone

        measured = await best_of(3, added, 10)
        print(
            f"{counted} counts of 400 kB: p99 {alone:.1f} ms late alone, {min(measured):+.1f} ms "
            f"beside them"
        )
        assert min(measured) < 10, measured
        assert counted > 10


async def test_a_slow_reader_is_held_back_and_then_cut(
    steady_sim: Sim, hose: Client, tmp_path: Path
) -> None:
    with Ferrule(beside(steady_sim, hose), tmp_path) as proxy:
        host, port = proxy.listen.split(":")
        before = proxy.memory_kb()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            client.connect((host, int(port)))
            client.sendall(post("/v1/messages", REQ(model="hose", stream=True)))
            began = time.monotonic()
            poured = [-1, 0]
            while poured[-1] != poured[-2] or poured[-1] == 0:  # until nothing more goes in
                await asyncio.sleep(0.3)
                poured.append(int((await asyncio.to_thread(hose.get, "/sent")).text))
            assert poured[-1] < 40 << 20, "the backend is held back"
            assert proxy.metric("streams_active") == 1
            assert proxy.memory_kb() - before < 6_000
            await asyncio.to_thread(proxy.wait_for_metric, "streams_active", 0, WRITE_STALL_S + 4.0)
            assert time.monotonic() - began > WRITE_STALL_S
            assert proxy.memory_kb() - before < 6_000
        assert proxy.metric("backend_inflight") == 0


@pytest.fixture
def watched(
    new_backend: Callable[..., ScriptedBackend], tmp_path: Path
) -> Iterator[tuple[Ferrule, ScriptedBackend]]:
    """A proxy that tells its number of tasks."""
    backend = new_backend()
    path = os.pathsep.join([str(Path(__file__).parent / "inside"), str(ROOT / "python")])
    environment = {"PYTHONPATH": path, "FERRULE_TASKS_FILE": str(tmp_path / "tasks")}
    with Ferrule(
        config_for(backend.url, pool={**WIDE, "health": {"interval_s": 60}}),
        tmp_path,
        env=environment,
    ) as proxy:
        yield proxy, backend


def tasks_of(proxy: Ferrule) -> int:
    place = Path(f"{proxy.folder / 'tasks'}.{proxy.process.pid}")
    place.unlink(missing_ok=True)
    proxy.signal(signal.SIGUSR1)
    wait_until(place.exists, 5, "the number of tasks")
    return int(place.read_text())


def descriptors_of(proxy: Ferrule) -> int:
    return len(os.listdir(f"/proc/{proxy.process.pid}/fd"))


@pytest.mark.slow
async def test_10000_streams_opened_and_aborted(watched: tuple[Ferrule, ScriptedBackend]) -> None:
    proxy, backend = watched
    backend.play(stream(D({"content": "x"}), Hold()))
    await abort_many(proxy, 200)
    await asyncio.to_thread(quiet, proxy, backend)
    tasks, descriptors, memory = tasks_of(proxy), descriptors_of(proxy), proxy.memory_kb()
    gone = proxy.metric("stream_end_total", reason="client_gone")
    await abort_many(proxy, ABORTED)
    await asyncio.to_thread(quiet, proxy, backend)
    # Of those that left at once, the reset may have overtaken the request
    assert ABORTED / 2 <= proxy.metric("stream_end_total", reason="client_gone") - gone <= ABORTED
    assert proxy.metric("stream_end_total") == proxy.metric(
        "stream_end_total", reason="client_gone"
    )
    wait_until(lambda: tasks_of(proxy) <= tasks, 5, "the tasks to be as few as before")
    more = descriptors_of(proxy) - descriptors
    grown = proxy.memory_kb() - memory
    print(
        f"after {ABORTED} aborts: {tasks_of(proxy) - tasks:+d} tasks, {more:+d} descriptors, "
        f"{grown:+d} kB"
    )
    assert more <= 2
    assert grown < 12_000
    assert proxy.metric("backend_healthy") == 1


def quiet(proxy: Ferrule, backend: ScriptedBackend) -> None:
    for gauge in ("streams_active", "backend_inflight", "queue_depth"):
        proxy.wait_for_metric(gauge, 0, 10)
    wait_until(
        lambda: len(backend.open_connections) <= 1,
        10,
        "the backend's connections to be closed, but for the probe's",
    )


async def abort_many(proxy: Ferrule, count: int) -> None:
    """Half leave in mid-stream, half before the first byte."""
    host, port = proxy.listen.split(":")
    request = post("/v1/messages", REQ(stream=True))
    room = asyncio.Semaphore(100)

    async def one(n: int) -> None:
        async with room:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request)
            await (reader.read(12) if n % 2 else asyncio.sleep(0))
            writer.transport.abort()

    await asyncio.gather(*(one(n) for n in range(count)))
