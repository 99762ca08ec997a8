"""Chooses the store: Redis if configured, else a shared file for several workers, else memory."""

from __future__ import annotations

from ferrule.admission.stores import Store
from ferrule.admission.stores.memory import MemoryStore
from ferrule.admission.stores.shared import SharedStore
from ferrule.config import LimitsConfig


def open_store(limits: LimitsConfig, counts_file: str | None, worker: int) -> Store:
    """`counts_file`: created by the supervisor with `SharedStore.create`; None without a
    supervisor."""
    store = limits.store.reveal()
    if store != "memory":
        # Imported here: a proxy without Redis should not spend the time and memory
        from ferrule.admission.stores.redis import RedisStore

        return RedisStore(store)
    return MemoryStore() if counts_file is None else SharedStore(counts_file, worker)
