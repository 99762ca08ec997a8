"""The supervisor's side of a worker's answers: late, cut anywhere, and never taken for the answer
to another question."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import msgspec
import pytest

from ferrule.process import supervisor
from ferrule.process.snapshot import Snapshot
from ferrule.process.supervisor import Child
from ferrule.telemetry.status import WorkerView


def answer(pid: int) -> bytes:
    body = msgspec.msgpack.encode(Snapshot(WorkerView(pid, 0), [], [], True, False, None))
    return len(body).to_bytes(4, "big") + body


class Worker:
    """A worker that the test plays."""

    def __init__(self) -> None:
        self.child = Child(0)

    async def open(self) -> None:
        near, far = socket.socketpair()
        self.child.connect(*await asyncio.open_connection(sock=near))
        self.reader, self.writer = await asyncio.open_connection(sock=far)

    async def close(self) -> None:
        assert self.child.streams is not None
        for writer in (self.child.streams[1], self.writer):
            writer.close()
            await writer.wait_closed()


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    opened = Worker()
    await opened.open()
    yield opened
    await opened.close()


@pytest.mark.parametrize("cut", [0, 2, 4, 9])
async def test_a_late_answer_is_not_taken_for_the_next_one(
    worker: Worker, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "ANSWER_TIMEOUT_S", 0.02)
    worker.writer.write(answer(1)[:cut])
    assert await worker.child.snapshot() is None
    monkeypatch.setattr(supervisor, "ANSWER_TIMEOUT_S", 5)
    worker.writer.write(answer(1)[cut:] + answer(2))
    received = await worker.child.snapshot()
    assert received is not None
    assert received.worker.pid == 2
    assert await worker.reader.readexactly(2) == b"??"


async def test_of_a_worker_that_is_late_the_counts_stay(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.writer.write(answer(1))
    assert await worker.child.snapshot() is not None
    monkeypatch.setattr(supervisor, "ANSWER_TIMEOUT_S", 0.02)
    received = await worker.child.snapshot()
    assert received is not None
    assert (received.worker.pid, received.is_ready, received.reason) == (
        1,
        False,
        "a worker does not answer",
    )
