"""Counters shared by all workers of one machine: a mapped file, changed under `flock`, which the
kernel releases when its holder dies.

The lock is held for microseconds, never across an await. Each worker counts its slots in its own
column, so that a dead worker's slots are freed by zeroing the column. Times are CLOCK_MONOTONIC,
which the processes of a machine share; the file lives no longer than its supervisor.

Layout: a header, then `capacity` records in an open-addressing hash table, keyed by a digest of the
tenant's name. A record is (digest, two times, one slot count per worker).
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
"""Tenants that one file can ever hold. Unused records take no memory: the file is sparse."""

_MAGIC = b"ferrule1"
_HEADER = struct.Struct("<8sII")
_HEADER_BYTES = 64
_IDENTITY = struct.Struct("<16s")
_TIMES = struct.Struct("<dd")
_COUNT = struct.Struct("<I")
_EMPTY = bytes(_IDENTITY.size)


class SharedStore:
    """`worker`: this process's column, from 0; None for the supervisor, which takes nothing and
    only releases the slots of dead workers."""

    def __init__(self, path: str | Path, worker: int | None) -> None:
        # Opened here and not inherited: flock belongs to the open file, which a fork would share
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
        self._offsets: dict[str, int] = {}

    @classmethod
    def create(cls, path: str | Path, workers: int, capacity: int = CAPACITY) -> None:
        """Creates an empty file. To be called once, before the workers open it."""
        with Path(path).open("wb") as file:
            file.truncate(_HEADER_BYTES + capacity * _record_bytes(workers))
            file.write(_HEADER.pack(_MAGIC, workers, capacity))

    async def take(self, tenant: Tenant, tokens: int, now: float) -> Decision:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            offset = self._locate(tenant.name)
            counters = self._read(offset)
            decision = bucket.take(counters, tenant, tokens, now)
            if decision.refused_by is None:
                self._write(offset, counters, 1)
            return decision
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def release(self, tenant: Tenant, ticket: str, extra_tokens: int, now: float) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            offset = self._locate(tenant.name)
            counters = self._read(offset)
            bucket.release(counters, tenant, extra_tokens, now)
            self._write(offset, counters, -1)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def release_worker(self, worker: int) -> None:
        """Frees the slots of a dead worker. Its tokens stay counted as estimated."""
        if not 0 <= worker < self._workers:
            raise ValueError(f"no worker {worker} in this file")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            for offset in self._occupied_offsets():
                _COUNT.pack_into(self._map, self._column_offset(offset, worker), 0)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    async def close(self) -> None:
        self._map.close()
        os.close(self._file)

    def _read(self, offset: int) -> Counters:
        requests_full_at, tokens_full_at = _TIMES.unpack_from(self._map, offset + _IDENTITY.size)
        inflight = sum(self._columns.unpack_from(self._map, offset + _IDENTITY.size + _TIMES.size))
        return Counters(requests_full_at, tokens_full_at, inflight)

    def _write(self, offset: int, counters: Counters, slots: int) -> None:
        """`slots`: added to this worker's column; the others' are not touched."""
        if self._worker is None:
            raise ValueError("a supervisor takes nothing")
        _TIMES.pack_into(
            self._map, offset + _IDENTITY.size, counters.requests_full_at, counters.tokens_full_at
        )
        column = self._column_offset(offset, self._worker)
        (count,) = _COUNT.unpack_from(self._map, column)
        _COUNT.pack_into(self._map, column, max(0, count + slots))

    def _column_offset(self, offset: int, worker: int) -> int:
        return offset + _IDENTITY.size + _TIMES.size + worker * _COUNT.size

    def _locate(self, name: str) -> int:
        """Where the tenant's record is; inserted at first use. Call under the lock."""
        offset = self._offsets.get(name)
        if offset is None:
            offset = self._offsets[name] = self._find_or_insert(
                hashlib.blake2b(name.encode(), digest_size=_IDENTITY.size).digest()
            )
        return offset

    def _find_or_insert(self, identity: bytes) -> int:
        start = int.from_bytes(identity[:8], "little")
        for step in range(self._capacity):
            offset = _HEADER_BYTES + (start + step) % self._capacity * self._record_bytes
            (stored,) = _IDENTITY.unpack_from(self._map, offset)
            if stored == _EMPTY:
                _IDENTITY.pack_into(self._map, offset, identity)
                return offset
            if stored == identity:
                return offset
        raise RuntimeError(f"more than {self._capacity} keys had limits since the start")

    def _occupied_offsets(self) -> Iterator[int]:
        for index in range(self._capacity):
            offset = _HEADER_BYTES + index * self._record_bytes
            if _IDENTITY.unpack_from(self._map, offset)[0] != _EMPTY:
                yield offset


def _record_bytes(workers: int) -> int:
    return _IDENTITY.size + _TIMES.size + workers * _COUNT.size
