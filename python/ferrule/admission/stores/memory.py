"""Counts of one process, in a dict. Nothing can fail and nothing suspends."""

from __future__ import annotations

from ferrule.admission.keys import Tenant
from ferrule.admission.stores import bucket
from ferrule.admission.stores.bucket import Counters, Decision


class MemoryStore:
    def __init__(self) -> None:
        self._counters: dict[str, Counters] = {}

    async def take(self, tenant: Tenant, tokens: int, now: float) -> Decision:
        counters = self._counters.get(tenant.name)
        if counters is None:
            counters = self._counters[tenant.name] = Counters()
        return bucket.take(counters, tenant, tokens, now)

    def give_back(self, tenant: Tenant, ticket: str, more_tokens: int, now: float) -> None:
        bucket.give_back(self._counters[tenant.name], tenant, more_tokens, now)

    async def close(self) -> None:
        self._counters.clear()
