"""Stores for the counters of limits: of one process, of the workers of one machine, or of all
replicas. All behave alike."""

from __future__ import annotations

from typing import Protocol

from ferrule.admission.keys import Tenant
from ferrule.admission.stores.bucket import Decision


class StoreUnavailable(Exception):
    """The store did not answer in time. What is then allowed is a setting."""


class Store(Protocol):
    async def take(self, tenant: Tenant, tokens: int, now: float) -> Decision:
        """Takes a slot, a request and `tokens` estimated tokens, all or none. `now`: monotonic
        seconds. Raises StoreUnavailable."""

    def release(self, tenant: Tenant, ticket: str, extra_tokens: int, now: float) -> None:
        """Frees the slot of a finished request and corrects its estimate by `extra_tokens`, used
        minus estimated. Neither suspends nor fails."""

    async def close(self) -> None:
        """Nothing may be taken afterwards."""
