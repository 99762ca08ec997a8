"""Stores for the counters of limits: one process, the workers of one machine, or all replicas.
Each gives the same answers."""

from __future__ import annotations

from typing import Protocol

from ferrule.admission.keys import Tenant
from ferrule.admission.stores.bucket import Decision


class StoreUnavailable(Exception):
    """The store did not answer in time. What is then allowed is a setting."""


class Store(Protocol):
    async def take(self, tenant: Tenant, tokens: int, now: float) -> Decision:
        """One request of `tokens` estimated tokens: taken as a whole or not at all. `now`: seconds,
        monotonic."""

    def give_back(self, tenant: Tenant, ticket: str, more_tokens: int, now: float) -> None:
        """The request is over: its slot is free, and it took `more_tokens` (may be negative) than
        estimated. Never suspends or fails."""

    async def close(self) -> None:
        """Nothing is taken afterwards."""
