"""Counters shared by processes: exact while they run, and freed when one dies."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import pytest

from ferrule.admission.keys import Tenant
from ferrule.admission.stores.shared import SharedStore

TENANT = Tenant(name="t", concurrency=4)
SPAWN = multiprocessing.get_context("spawn")


async def hammer(
    path: Path,
    worker: int,
    running: Synchronized[int],
    most: Synchronized[int],
    admitted: Synchronized[int],
) -> None:
    store = SharedStore(path, worker)

    async def client() -> None:
        while True:
            decision = await store.take(TENANT, 1, time.monotonic())
            if decision.refused_by is None:
                break
            await asyncio.sleep(0)
        with running.get_lock():
            running.value += 1
            most.value = max(most.value, running.value)
            admitted.value += 1
        for _ in range(5):
            await asyncio.sleep(0)
        with running.get_lock():
            running.value -= 1
        store.release(TENANT, decision.ticket, 0, time.monotonic())

    for _ in range(10):
        await asyncio.gather(*(client() for _ in range(20)))
    await store.close()


def run_hammer(
    path: Path,
    worker: int,
    running: Synchronized[int],
    most: Synchronized[int],
    admitted: Synchronized[int],
) -> None:
    asyncio.run(hammer(path, worker, running, most, admitted))


def hold_all(path: Path, ready: Synchronized[int]) -> None:
    async def take() -> None:
        store = SharedStore(path, 1)
        for _ in range(4):
            await store.take(TENANT, 1, time.monotonic())

    asyncio.run(take())
    ready.value = 1
    time.sleep(60)


async def test_m05_two_processes_never_exceed_the_limit_together(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    SharedStore.create(path, workers=2)
    running, most, admitted = SPAWN.Value("i", 0), SPAWN.Value("i", 0), SPAWN.Value("i", 0)
    # running's lock covers all three: they are one observation
    processes = [
        SPAWN.Process(target=run_hammer, args=(path, worker, running, most, admitted))
        for worker in (0, 1)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert admitted.value == 400
    assert 1 <= most.value <= 4
    store = SharedStore(path, 0)
    assert [(await store.take(TENANT, 1, 0.0)).refused_by for _ in range(5)] == [None] * 4 + [
        "concurrency"
    ]
    await store.close()


async def test_slots_of_a_killed_worker_are_all_freed(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    SharedStore.create(path, workers=2)
    ready = SPAWN.Value("i", 0)
    worker = SPAWN.Process(target=hold_all, args=(path, ready))
    worker.start()
    while not ready.value:
        await asyncio.sleep(0.01)
    store, supervisor = SharedStore(path, 0), SharedStore(path, None)
    assert (await store.take(TENANT, 1, 0.0)).refused_by == "concurrency"
    worker.kill()
    worker.join()
    supervisor.release_worker(1)
    assert [(await store.take(TENANT, 1, 0.0)).refused_by for _ in range(5)] == [None] * 4 + [
        "concurrency"
    ]
    supervisor.release_worker(1)
    assert (await store.take(TENANT, 1, 0.0)).refused_by == "concurrency"
    await store.close()
    await supervisor.close()


async def test_more_keys_than_a_file_holds_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    SharedStore.create(path, workers=1, capacity=3)
    store = SharedStore(path, 0)
    for name in "abc":
        assert (await store.take(Tenant(name=name, concurrency=1), 1, 0.0)).refused_by is None
    for name in "abc":
        assert (
            await store.take(Tenant(name=name, concurrency=1), 1, 0.0)
        ).refused_by == "concurrency"
    with pytest.raises(RuntimeError, match="more than 3 keys"):
        await store.take(Tenant(name="d", concurrency=1), 1, 0.0)
    await store.close()


async def test_workers_that_are_not_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    SharedStore.create(path, workers=2)
    for worker in (-1, 2):
        with pytest.raises(ValueError, match="no counts"):
            SharedStore(path, worker)
    supervisor = SharedStore(path, None)
    with pytest.raises(ValueError, match="no worker"):
        supervisor.release_worker(2)
    with pytest.raises(ValueError, match="takes nothing"):
        await supervisor.take(TENANT, 1, 0.0)
    await supervisor.close()
