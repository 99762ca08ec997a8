"""Clients that hold back their header, their body or their reading; that send nothing, or far too
much. Everybody else goes on."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.doubles.backend import ScriptedBackend, stream, wait_until
from tests.doubles.client import post
from tests.doubles.frames import DONE, Canned, D
from tests.doubles.proxy import REQ, Ferrule, config_for
from tests.resilience.attackers import (
    attacked,
    flood,
    idle,
    slow_body,
    slow_chunks,
    slow_header,
    slow_read,
)
from tests.resilience.crowd import Crowd, best_of, crowd, percentile

DEADLINE_S = 2
"""Of header, body and write; idle connections have one second more."""
EDGE = {
    "header_s": DEADLINE_S,
    "body_stall_s": DEADLINE_S,
    "idle_s": DEADLINE_S + 1,
    "write_stall_s": DEADLINE_S,
}
SWEEP_S = 1.0
SLACK_S = 1.0

ATTACKS = {
    "slow-header": (200, slow_header, True),
    "slow-body": (200, slow_body, True),
    "slow-chunks": (200, slow_chunks, True),
    "slow-read": (50, slow_read, False),
    "flood": (5, flood, False),
    "idle": (2000, idle, True),
}


@pytest.fixture
def backend(new_backend: Callable[..., ScriptedBackend]) -> ScriptedBackend:
    return new_backend()


@pytest.fixture
def edge(backend: ScriptedBackend, tmp_path: Path) -> Iterator[Ferrule]:
    with Ferrule(
        config_for(backend.url, edge=EDGE, pool={"slots": 1000, "max_inflight": 1000}), tmp_path
    ) as proxy:
        yield proxy


async def times(clients: Crowd, seconds: float) -> list[float]:
    """How long the requests of five honest clients take."""
    end = time.monotonic() + seconds

    async def one() -> list[float]:
        took = []
        while time.monotonic() < end:
            turn = await clients.ask()
            assert turn.is_good, (turn.status, turn.failure)
            took.append(turn.took_s)
            await asyncio.sleep(0.01)
        return took

    return [took for client in await asyncio.gather(*(one() for _ in range(5))) for took in client]


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
async def test_attackers_are_cut_and_others_go_on(
    edge: Ferrule, backend: ScriptedBackend, name: str
) -> None:
    count, drips, reads = ATTACKS[name]
    long = [D({"content": "x" * 1000})] * 4000
    short = Canned("x")
    backend.play(lambda seen: stream(*long, D({}, "stop"), DONE) if b"long" in seen.body else short)
    async with crowd(edge) as clients:
        memory = edge.memory_kb()
        async with attacked(edge.listen, count, drips, reads=reads) as attackers:
            begin = time.monotonic()
            await asyncio.sleep(0.5)  # the time to connect is the attackers' own

            async def added() -> float:
                return percentile(await times(clients, 1.0))

            measured = await best_of(3, added, 0.05)
            grown = edge.memory_kb() - memory
            print(
                f"{count} × {name}: others' p99 {min(measured) * 1000:.1f} ms, memory {grown:+d} kB"
            )
            assert min(measured) < 0.05, measured
            assert grown < 20 * count + 10_000, f"{grown} kB"
            limit_s = DEADLINE_S + (1 if name == "idle" else 0) + SWEEP_S + SLACK_S
            if reads:
                while time.monotonic() - begin < limit_s + 2 and any(
                    attacker.lasted_s is None for attacker in attackers
                ):
                    await asyncio.sleep(0.1)
                lasted = [attacker.lasted_s for attacker in attackers]
                assert None not in lasted, f"{lasted.count(None)} of {count} were never cut"
                assert max(took for took in lasted if took is not None) < limit_s
            else:
                await asyncio.sleep(max(0.0, begin + limit_s + 1 - time.monotonic()))
                assert sockets(edge) < 15, "their connections are closed"
                assert edge.metric("streams_active") == 0
        assert edge.memory_kb() - memory < 20 * count + 10_000
        assert (await clients.ask()).is_good


def sockets(proxy: Ferrule) -> int:
    """Established connections of the client port."""
    port = int(proxy.listen.split(":")[1])
    lines = [
        line.split()
        for line in Path(f"/proc/{proxy.process.pid}/net/tcp").read_text().splitlines()[1:]
    ]
    return sum(line[1].endswith(f":{port:04X}") and line[3] == "01" for line in lines)


def pushed(proxy: Ferrule, data: bytes) -> bytes:
    """Sends for as long as it is let, and returns the answer."""
    host, port = proxy.listen.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(data)
        with contextlib.suppress(ConnectionError):
            return client.recv(65536)
    return b""


def test_a_header_without_end(edge: Ferrule) -> None:
    """Refused by its size long before its deadline."""
    before = edge.memory_kb()
    begin = time.monotonic()
    head = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + b"".join(
        b"x-%d: %s\r\n" % (n, b"y" * 1000) for n in range(20_000)
    )
    answer = pushed(edge, head)
    assert answer == b"" or answer.split(b" ")[1] in (b"400", b"431"), answer[:100]
    assert time.monotonic() - begin < DEADLINE_S + 2
    assert edge.memory_kb() - before < 10_000


def test_a_trailer_without_end(edge: Ferrule) -> None:
    before = edge.memory_kb()
    start = (
        b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ntransfer-encoding: "
        b"chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    )
    answer = pushed(
        edge, start + b"".join(b"x-%d: %s\r\n" % (n, b"y" * 1000) for n in range(20_000))
    )
    assert answer == b"" or answer.split(b" ")[1][:1] == b"4", answer[:100]
    assert edge.memory_kb() - before < 10_000


def test_a_url_without_end(edge: Ferrule) -> None:
    answer = edge.client.raw(b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer.split(b" ")[1] in (b"400", b"414", b"431"), answer[:100]


def test_connections_are_limited(backend: ScriptedBackend, tmp_path: Path) -> None:
    with Ferrule(config_for(backend.url, edge={"max_connections": 20}), tmp_path) as proxy:
        host, port = proxy.listen.split(":")
        held = [socket.create_connection((host, int(port))) for _ in range(60)]
        try:
            wait_until(lambda: sockets(proxy) <= 20, 3, "the surplus to be cut")
        finally:
            for connection in held:
                connection.close()
        wait_until(lambda: sockets(proxy) == 0, 3, "the others to be gone")
        assert proxy.ask().status == 200


def test_a_pipelined_stream_behind_a_stream_is_held_back_too(
    edge: Ferrule, backend: ScriptedBackend
) -> None:
    """A reader that does not read holds back every stream that it asked for, not only the first."""
    backend.play(stream(*([D({"content": "x" * 4000})] * 5000), D({}, "stop"), DONE))
    before = edge.memory_kb()
    edge.client.raw(post("/v1/models", {}) + post("/v1/messages", REQ(stream=True)) * 8, limit=1)
    assert edge.memory_kb() - before < 30_000
