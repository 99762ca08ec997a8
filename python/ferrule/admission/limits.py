"""Admits requests within their key's limits, and settles what they used, exactly once.

Turns a store's decisions into leases and 429s.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Literal

from ferrule.admission.keys import ANONYMOUS, Tenant
from ferrule.admission.stores import Store, StoreUnavailable
from ferrule.admission.stores.bucket import MINUTE_S, Decision
from ferrule.errors import Failure, RateLimit

RETRY_AFTER_MAX_S = 60

log = logging.getLogger(__name__)

_REFUSALS = {
    "requests": "This API key has used its requests per minute.",
    "tokens": "This API key has used its tokens per minute.",
    "concurrency": "This API key has as many requests running as it may.",
}


def _ignore(_limit: str) -> None:
    pass


class Lease:
    """One admitted request. To be settled when the request ends, however it ends; settling again
    does nothing."""

    __slots__ = (
        "_decision", "_estimated_tokens", "_is_settled", "_limiter", "_tenant", "rate_limits",
    )  # fmt: skip

    def __init__(
        self,
        limiter: Limiter,
        tenant: Tenant,
        estimated_tokens: int,
        decision: Decision | None,
        rate_limits: tuple[RateLimit, ...] = (),
    ) -> None:
        self._limiter = limiter
        self._tenant = tenant
        self._estimated_tokens = estimated_tokens
        self._decision = decision
        self._is_settled = decision is None
        self.rate_limits = rate_limits
        """The key's limits as they stood after this request was admitted; empty where it has
        none."""

    async def settle(self, tokens: int) -> None:
        """`tokens`: input plus output as used; 0 if no backend was reached. Does not suspend."""
        if self._is_settled or self._decision is None:
            return
        self._is_settled = True
        self._limiter.release(self._tenant, self._decision.ticket, tokens - self._estimated_tokens)


class Limiter:
    """Admits requests. `on_limited` is called with the limit that refused (`requests`, `tokens`,
    `concurrency`), or with `store` if the store did not answer."""

    def __init__(
        self,
        store: Store,
        on_store_failure: Literal["allow", "deny"] = "allow",
        *,
        on_limited: Callable[[str], None] = _ignore,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._allows_on_failure = on_store_failure == "allow"
        self._on_limited = on_limited
        self._clock = clock
        self._wall_clock = wall_clock
        self._store_is_down = False
        self._unlimited = Lease(self, ANONYMOUS, 0, None)
        """Shared by all requests of keys without limits: there is nothing to count or settle."""

    async def admit(self, tenant: Tenant, estimated_tokens: int) -> Lease:
        """A lease. Raises Failure 429 with `retry-after`, or 529 if the store is unavailable and
        the setting says deny."""
        if not tenant.has_limits:
            return self._unlimited
        try:
            decision = await self._store.take(tenant, estimated_tokens, self._clock())
        except StoreUnavailable as error:
            return self._admit_without_store(tenant, error)
        self._note_store_is_up()
        rate_limits = self._rate_limits(tenant, decision)
        if decision.refused_by is None:
            return Lease(self, tenant, estimated_tokens, decision, rate_limits)
        self._on_limited(decision.refused_by)
        raise Failure(
            429,
            _REFUSALS[decision.refused_by],
            retry_after_s=min(RETRY_AFTER_MAX_S, max(1, math.ceil(decision.wait_s))),
            rate_limits=rate_limits,
            is_admission=True,
        )

    def release(self, tenant: Tenant, ticket: str, extra_tokens: int) -> None:
        """For `Lease.settle`. `extra_tokens`: used minus estimated."""
        self._store.release(tenant, ticket, extra_tokens, self._clock())

    def _rate_limits(self, tenant: Tenant, decision: Decision) -> tuple[RateLimit, ...]:
        wall = self._wall_clock()
        limits: list[RateLimit] = []
        if (requests := tenant.requests_per_minute) is not None:
            limits.append(_make_rate_limit("requests", requests, decision.requests_debt_s, wall))
        if (tokens := tenant.tokens_per_minute) is not None:
            limits.append(_make_rate_limit("tokens", tokens, decision.tokens_debt_s, wall))
        return tuple(limits)

    async def close(self) -> None:
        await self._store.close()

    def _admit_without_store(self, tenant: Tenant, error: StoreUnavailable) -> Lease:
        self._on_limited("store")
        if not self._store_is_down:
            self._store_is_down = True
            treatment = "admitted" if self._allows_on_failure else "refused"
            log.warning(
                "limits store unavailable (%s); requests are %s until it is back", error, treatment
            )
        if self._allows_on_failure:
            return Lease(self, tenant, 0, None)
        raise Failure(
            529,
            "The limits of this API key cannot be checked at the moment.",
            retry_after_s=1,
            is_admission=True,
        )

    def _note_store_is_up(self) -> None:
        if self._store_is_down:
            self._store_is_down = False
            log.warning("limits store is back")


def _make_rate_limit(name: str, limit: int, debt_s: float, wall: float) -> RateLimit:
    # The tolerance keeps 9.999999 from becoming 9.
    remaining = max(0, math.floor(limit * (1 - debt_s / MINUTE_S) + 1e-6))
    return RateLimit(name, limit, remaining, math.ceil(wall + debt_s))
