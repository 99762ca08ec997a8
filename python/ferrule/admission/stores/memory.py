"""Counters of one process, in a dict. Never fails or suspends."""

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

    def release(self, tenant: Tenant, ticket: str, extra_tokens: int, now: float) -> None:
        bucket.release(self._counters[tenant.name], tenant, extra_tokens, now)

    async def close(self) -> None:
        self._counters.clear()
