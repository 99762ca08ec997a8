"""Token buckets of a key. Pure: counters and time in, a decision out.

A bucket holds one minute's worth and refills continuously. It is kept as one number, the time at
which it is full again (GCRA): what is missing now is that time's distance. A settlement may push it
beyond a minute: then nothing is left until it has come back.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ferrule.admission.keys import Tenant

MINUTE_S = 60.0
SLACK_S = 1e-6
"""Rounding of sums such as 3 × 60/3; far below any limit's spacing."""
CONCURRENCY_WAIT_S = 1.0
"""When a slot becomes free is unknown; retry after a second."""

Gate = Literal["requests", "tokens", "concurrency"]


class Counters:
    """The counters of one tenant. Times in seconds on the store's clock."""

    __slots__ = ("inflight", "requests_full_at", "tokens_full_at")

    def __init__(
        self, requests_full_at: float = 0.0, tokens_full_at: float = 0.0, inflight: int = 0
    ) -> None:
        self.requests_full_at = requests_full_at
        self.tokens_full_at = tokens_full_at
        self.inflight = inflight


class Decision(msgspec.Struct, frozen=True, gc=False):
    """`refused_by` None: taken. `wait_s`: after which it may be asked again. The debts say how long
    each bucket needs to be full."""

    refused_by: Gate | None
    wait_s: float
    requests_debt_s: float
    tokens_debt_s: float
    ticket: str = ""


def take(counters: Counters, tenant: Tenant, tokens: int, now: float) -> Decision:
    """Takes a slot, a request and the estimated tokens when all three are there, else nothing.

    A request that is estimated larger than a whole bucket needs a full one, since it could not pass
    otherwise.
    """
    requests_debt_s = max(0.0, counters.requests_full_at - now)
    tokens_debt_s = max(0.0, counters.tokens_full_at - now)
    refused_by: Gate | None = None
    wait_s = 0.0
    if tenant.concurrency is not None and counters.inflight >= tenant.concurrency:
        refused_by, wait_s = "concurrency", CONCURRENCY_WAIT_S
    requests_cost_s = 0.0
    if tenant.requests_per_minute is not None:
        requests_cost_s = MINUTE_S / tenant.requests_per_minute
        short_s = requests_debt_s + requests_cost_s - MINUTE_S
        if short_s > SLACK_S and short_s > wait_s:
            refused_by, wait_s = "requests", short_s
    tokens_cost_s = 0.0
    if tenant.tokens_per_minute is not None:
        tokens_cost_s = tokens * MINUTE_S / tenant.tokens_per_minute
        needed_s = (
            max(1, min(tokens, tenant.tokens_per_minute)) * MINUTE_S / tenant.tokens_per_minute
        )
        short_s = tokens_debt_s + needed_s - MINUTE_S
        if short_s > SLACK_S and short_s > wait_s:
            refused_by, wait_s = "tokens", short_s
    if refused_by is not None:
        return Decision(refused_by, wait_s, requests_debt_s, tokens_debt_s)
    counters.inflight += 1
    requests_debt_s += requests_cost_s
    tokens_debt_s += tokens_cost_s
    counters.requests_full_at = now + requests_debt_s
    counters.tokens_full_at = now + tokens_debt_s
    return Decision(None, 0.0, requests_debt_s, tokens_debt_s)


def give_back(counters: Counters, tenant: Tenant, more_tokens: int, now: float) -> None:
    """Frees the slot and settles the estimate. What was refilled meanwhile stays refilled."""
    counters.inflight = max(0, counters.inflight - 1)
    if tenant.tokens_per_minute is not None and more_tokens:
        counters.tokens_full_at = (
            max(counters.tokens_full_at, now) + more_tokens * MINUTE_S / tenant.tokens_per_minute
        )
