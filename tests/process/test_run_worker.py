"""The worker's end of the socket to its supervisor."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import msgspec

from ferrule.process import run_worker
from ferrule.process.snapshot import Snapshot
from ferrule.telemetry.status import WorkerView


async def test_a_worker_answers_until_its_supervisor_is_gone() -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    ended = asyncio.Event()
    worker: Any = SimpleNamespace(
        snapshot=lambda: Snapshot(WorkerView(9, 0), [], [], True, False, None), ended=ended
    )
    worker_reads, worker_writes = await asyncio.open_connection(sock=theirs)
    answering = asyncio.ensure_future(run_worker._answer(worker, worker_reads, worker_writes))
    writer.write(b"?")
    length = int.from_bytes(await reader.readexactly(4), "big")
    assert msgspec.msgpack.decode(await reader.readexactly(length), type=Snapshot).worker.pid == 9
    assert not ended.is_set()
    writer.close()
    await answering
    assert ended.is_set()
    for one in (writer, worker_writes):
        one.close()
        await one.wait_closed()
