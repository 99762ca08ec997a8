"""Counts of all workers of one machine: a mapped file, changed under a lock that the kernel drops
when its holder dies.

The lock is held for microseconds, never across an await. Slots in use are kept one column per
worker, so that what a dead worker held is given back by zeroing its column. Times are
CLOCK_MONOTONIC, which the processes of a machine share; the file therefore lives no longer than its
supervisor.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from ferrule.admission.keys import Tenant
from ferrule.admission.stores import bucket
from ferrule.admission.stores.bucket import Counters, Decision

CAPACITY = 4096
"""Names of keys that one file can ever hold; an empty file takes no memory for the unused ones."""

_MAGIC = b"ferrule1"
_HEADER = struct.Struct("<8sII")
_HEADER_BYTES = 64
_IDENTITY = struct.Struct("<16s")
_TIMES = struct.Struct("<dd")
_COUNT = struct.Struct("<I")
_EMPTY = bytes(_IDENTITY.size)


class SharedStore:
    """`worker` is this process's column, from 0; None for a supervisor, which takes nothing and
    only forgets."""

    def __init__(self, path: str | Path, worker: int | None) -> None:
        # A descriptor of its own: the lock belongs to it, and a forked one would share it
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._map = mmap.mmap(self._file, 0)
        magic, workers, capacity = _HEADER.unpack_from(self._map, 0)
        self._workers: int = workers
        self._capacity: int = capacity
        if magic != _MAGIC or (worker is not None and not 0 <= worker < workers):
            raise ValueError(f"no counts for worker {worker} in this file")
        self._worker = worker
        self._columns = struct.Struct(f"<{self._workers}I")
        self._record_bytes = _record_bytes(self._workers)
        self._places: dict[str, int] = {}

    @classmethod
    def create(cls, path: str | Path, workers: int, capacity: int = CAPACITY) -> None:
        """A fresh file, nothing taken. To be called once, before the workers open it."""
        with Path(path).open("wb") as file:
            file.truncate(_HEADER_BYTES + capacity * _record_bytes(workers))
            file.write(_HEADER.pack(_MAGIC, workers, capacity))

    async def take(self, tenant: Tenant, tokens: int, now: float) -> Decision:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            place = self._place(tenant.name)
            counters = self._read(place)
            decision = bucket.take(counters, tenant, tokens, now)
            if decision.refused_by is None:
                self._write(place, counters, 1)
            return decision
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def give_back(self, tenant: Tenant, ticket: str, more_tokens: int, now: float) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            place = self._place(tenant.name)
            counters = self._read(place)
            bucket.give_back(counters, tenant, more_tokens, now)
            self._write(place, counters, -1)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def forget_worker(self, worker: int) -> None:
        """A worker is gone: the slots it held are free. Its tokens stay counted as estimated."""
        if not 0 <= worker < self._workers:
            raise ValueError(f"no worker {worker} in this file")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            for place in self._all_places():
                _COUNT.pack_into(self._map, self._count_at(place, worker), 0)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    async def close(self) -> None:
        self._map.close()
        os.close(self._file)

    def _read(self, place: int) -> Counters:
        requests_full_at, tokens_full_at = _TIMES.unpack_from(self._map, place + _IDENTITY.size)
        inflight = sum(self._columns.unpack_from(self._map, place + _IDENTITY.size + _TIMES.size))
        return Counters(requests_full_at, tokens_full_at, inflight)

    def _write(self, place: int, counters: Counters, slots: int) -> None:
        """`slots`: how many more this worker holds. Others' columns are not touched."""
        if self._worker is None:
            raise ValueError("a supervisor takes nothing")
        _TIMES.pack_into(
            self._map, place + _IDENTITY.size, counters.requests_full_at, counters.tokens_full_at
        )
        at = self._count_at(place, self._worker)
        (count,) = _COUNT.unpack_from(self._map, at)
        _COUNT.pack_into(self._map, at, max(0, count + slots))

    def _count_at(self, place: int, worker: int) -> int:
        return place + _IDENTITY.size + _TIMES.size + worker * _COUNT.size

    def _place(self, name: str) -> int:
        """The tenant's record, made on first use; the same in every process. Call under the
        lock."""
        place = self._places.get(name)
        if place is None:
            place = self._places[name] = self._find(
                hashlib.blake2b(name.encode(), digest_size=_IDENTITY.size).digest()
            )
        return place

    def _find(self, identity: bytes) -> int:
        start = int.from_bytes(identity[:8], "little")
        for step in range(self._capacity):
            place = _HEADER_BYTES + (start + step) % self._capacity * self._record_bytes
            (held,) = _IDENTITY.unpack_from(self._map, place)
            if held == _EMPTY:
                _IDENTITY.pack_into(self._map, place, identity)
                return place
            if held == identity:
                return place
        raise RuntimeError(f"more than {self._capacity} keys had limits since the start")

    def _all_places(self) -> Iterator[int]:
        for index in range(self._capacity):
            place = _HEADER_BYTES + index * self._record_bytes
            if _IDENTITY.unpack_from(self._map, place)[0] != _EMPTY:
                yield place


def _record_bytes(workers: int) -> int:
    return _IDENTITY.size + _TIMES.size + workers * _COUNT.size
