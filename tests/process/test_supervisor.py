"""Workers that die, hang or outlive their supervisor, told by doubles of their processes."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.app_state import config_of, until

from ferrule.admission.stores.shared import SharedStore
from ferrule.config import Flags
from ferrule.process import supervisor as supervising
from ferrule.process.snapshot import Snapshot
from ferrule.process.supervisor import BACKOFF_FIRST_S, BACKOFF_MAX_S, STEADY_S, Supervisor
from ferrule.process.worker import WorkerSettings
from ferrule.telemetry.metrics import Metrics
from ferrule.telemetry.status import WorkerView


class Process:
    """One that runs until the test ends it."""

    def __init__(self) -> None:
        self.returncode: int | None = None
        self.signals: list[int] = []
        self._ended = asyncio.Event()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def end(self, status: int = 1) -> None:
        self.returncode = status
        self._ended.set()


def snapshot(pid: int = 1, requests: int = 0) -> Snapshot:
    metrics = Metrics()
    metrics.requests.inc("messages", "m", "200", by=requests)
    return Snapshot(WorkerView(pid, 0), [], metrics.families(), True, False, None)


class Stage:
    """A supervisor whose workers are doubles, on a clock of the test's."""

    def __init__(self, folder: Path, workers: int = 1) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self.failing: list[OSError] = []
        """What the next starts come to."""
        self.started: list[Process] = []
        self.counts_file = str(folder / "limits")
        SharedStore.create(self.counts_file, workers)
        settings = WorkerSettings(Flags(backends=("http://127.0.0.1:9",)))
        configuration = config_of("http://127.0.0.1:9", workers=workers, drain_grace_s=0)
        self.supervisor = Supervisor(settings, configuration, "info")
        self.children = self.supervisor._children
        self.supervisor._start = self._start  # type: ignore[method-assign]

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    async def _start(self, child: Any, port: int, counts_file: str) -> Process:
        if self.failing:
            raise self.failing.pop()
        child.process = Process()
        self.started.append(child.process)
        return self.started[-1]

    def keep(self) -> list[asyncio.Task[None]]:
        return [
            asyncio.ensure_future(self.supervisor._keep_running(child, 1, self.counts_file))
            for child in self.children
        ]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage(tmp_path)
    monkeypatch.setattr(
        supervising, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": made.sleep})
    )
    monkeypatch.setattr(supervising, "monotonic", lambda: made.now)
    return made


async def test_a_worker_that_dies_young_waits_longer_each_time(stage: Stage) -> None:
    (keeper,) = stage.keep()
    for number in range(8):
        await until(lambda number=number: len(stage.started) == number + 1)  # type: ignore[misc]
        stage.now += 1
        stage.started[-1].end()
    await until(lambda: len(stage.pauses) == 8)
    assert stage.pauses == [0.4, 0.8, 1.6, 3.2, 6.4, BACKOFF_MAX_S, BACKOFF_MAX_S, BACKOFF_MAX_S]
    await until(lambda: len(stage.started) == 9)
    stage.now += STEADY_S + 1
    stage.started[-1].end()
    await until(lambda: len(stage.started) == 10)
    assert stage.pauses[-1] == BACKOFF_FIRST_S
    keeper.cancel()


async def test_a_worker_that_cannot_be_started_is_tried_again(stage: Stage) -> None:
    stage.failing = [OSError("no memory"), OSError("no descriptor")]
    (keeper,) = stage.keep()
    await until(lambda: stage.started)
    assert stage.pauses == [0.4, 0.8]
    keeper.cancel()


async def test_what_it_counted_stays_and_its_share_of_limits_does_not(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[int] = []
    monkeypatch.setattr(
        SharedStore, "release_worker", lambda store, number: forgotten.append(number)
    )
    (keeper,) = stage.keep()
    await until(lambda: stage.started)
    stage.children[0].last = snapshot(requests=5)
    stage.started[0].end()
    await until(lambda: len(stage.started) == 2)
    assert forgotten == [0]
    families = stage.supervisor._admin.aggregator.merge_with([snapshot(requests=2).families])
    (requests,) = [family for family in families if family.name == "ferrule_requests"]
    assert [sample.value for sample in requests.samples] == [7]
    assert await stage.supervisor._snapshots() == []
    keeper.cancel()


async def test_signals_go_to_those_that_run(tmp_path: Path) -> None:
    stage = Stage(tmp_path, workers=2)
    for child, status in zip(stage.children, (None, -9), strict=True):
        await stage.supervisor._start(child, 1, stage.counts_file)
        stage.started[-1].returncode = status
    stage.supervisor._forward_signal(signal.SIGHUP)
    assert [process.signals for process in stage.started] == [[signal.SIGHUP], []]


async def test_it_ends_when_its_workers_have(stage: Stage) -> None:
    keepers = stage.keep()
    await until(lambda: stage.started)
    ending = asyncio.ensure_future(stage.supervisor._shut_down(keepers))
    await until(lambda: stage.started[0].signals == [signal.SIGTERM])
    assert not ending.done()
    stage.started[0].end(0)
    await ending
    assert keepers[0].done()
    assert len(stage.started) == 1
    assert stage.pauses == []


async def test_a_second_signal_is_passed_on(stage: Stage) -> None:
    keepers = stage.keep()
    await until(lambda: stage.started)
    stage.supervisor._stop()
    assert stage.supervisor._ended.is_set()
    ending = asyncio.ensure_future(stage.supervisor._shut_down(keepers))
    await until(lambda: stage.started[0].signals == [signal.SIGTERM])
    stage.supervisor._stop()
    assert stage.started[0].signals == [signal.SIGTERM, signal.SIGTERM]
    stage.started[0].end(0)
    await ending


async def test_a_worker_that_does_not_end_is_killed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "EXTRA_GRACE_S", 0.01)
    keepers = stage.keep()
    await until(lambda: stage.started)
    await stage.supervisor._shut_down(keepers)
    assert stage.started[0].signals == [signal.SIGTERM, signal.SIGKILL]


# The line between the two


class Line:
    """The worker's end of a child's socket, in the test's hands."""

    def __init__(
        self, child: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.child, self.reader, self.writer = child, reader, writer

    def answer(self, received: Snapshot) -> bytes:
        packed = msgspec.msgpack.encode(received)
        return len(packed).to_bytes(4, "big") + packed


@pytest.fixture
async def line(stage: Stage) -> AsyncIterator[Line]:
    ours, theirs = socket.socketpair()
    (child,) = stage.children
    child.connect(*await asyncio.open_connection(sock=ours))
    opened = Line(child, *await asyncio.open_connection(sock=theirs))
    yield opened
    for writer in (child.streams[1], opened.writer):
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_those_who_ask_at_once_are_answered_in_turn(line: Line) -> None:
    asked = [asyncio.ensure_future(line.child.snapshot()) for _ in range(3)]
    for pid in (7, 8, 9):
        assert await line.reader.readexactly(1) == b"?"
        line.writer.write(line.answer(snapshot(pid=pid)))
    assert [received.worker.pid for received in await asyncio.gather(*asked)] == [7, 8, 9]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(supervising, "ANSWER_TIMEOUT_S", 0.03)
    yield


@pytest.mark.usefixtures("hasty")
async def test_an_answer_cut_by_the_timeout_does_not_spoil_the_next(line: Line) -> None:
    assert await line.child.snapshot() is None
    late = line.answer(snapshot(pid=1))
    line.writer.write(late[:20])
    assert await line.child.snapshot() is None
    line.writer.write(late[20:] + line.answer(snapshot(pid=2)) + line.answer(snapshot(pid=3)))
    received = await line.child.snapshot()
    assert (received.worker.pid, received.is_ready) == (3, True)
    assert await line.reader.readexactly(3) == b"???"


@pytest.mark.usefixtures("hasty")
async def test_a_worker_that_hangs_keeps_its_counts_and_is_not_ready(line: Line) -> None:
    line.writer.write(line.answer(snapshot(pid=1, requests=3)))
    await line.child.snapshot()
    received = await line.child.snapshot()
    assert (received.worker.pid, received.is_ready, received.reason) == (
        1,
        False,
        "a worker does not answer",
    )


async def test_a_worker_that_hangs_up_answers_nothing(line: Line) -> None:
    line.writer.close()
    assert await line.child.snapshot() is None
