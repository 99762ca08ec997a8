"""Which store keeps the counts: Redis if the settings name one, else a shared file where there are
several workers, else memory."""

from __future__ import annotations

from ferrule.admission.stores import Store
from ferrule.admission.stores.memory import MemoryStore
from ferrule.admission.stores.shared import SharedStore
from ferrule.config import LimitsConfig


def open_store(limits: LimitsConfig, counts_file: str | None, worker: int) -> Store:
    """`counts_file`: what the supervisor made with `SharedStore.create`; None when this process is
    alone."""
    store = limits.store.reveal()
    if store != "memory":
        # Imported where it is asked for: it takes time and memory that a proxy without it need not
        # spend
        from ferrule.admission.stores.redis import RedisStore

        return RedisStore(store)
    return MemoryStore() if counts_file is None else SharedStore(counts_file, worker)
