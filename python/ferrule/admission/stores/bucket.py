"""Token buckets of a key. Pure: counters and time in, a decision out.

A bucket holds one minute's worth and refills continuously. It is stored as one number, the time at
which it is full again (GCRA); the debt is the distance from now to then. A request that used more
than a whole bucket leaves a debt of over a minute, and nothing is admitted until that has shrunk.
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

LimitName = Literal["requests", "tokens", "concurrency"]


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
    """`refused_by` None: taken. `wait_s`: the earliest time to retry. The debts: seconds until each
    bucket is full."""

    refused_by: LimitName | None
    wait_s: float
    requests_debt_s: float
    tokens_debt_s: float
    ticket: str = ""


def take(counters: Counters, tenant: Tenant, tokens: int, now: float) -> Decision:
    """Takes a slot, a request and the estimated tokens, all or none. The refusal with the longest
    wait is reported.

    A request estimated larger than a whole bucket needs a full one; it could never pass otherwise.
    """
    requests_debt_s = max(0.0, counters.requests_full_at - now)
    tokens_debt_s = max(0.0, counters.tokens_full_at - now)
    refused_by: LimitName | None = None
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


def release(counters: Counters, tenant: Tenant, extra_tokens: int, now: float) -> None:
    """Frees the slot and corrects the estimate by `extra_tokens`, used minus estimated. A refund
    never overfills the bucket."""
    counters.inflight = max(0, counters.inflight - 1)
    if tenant.tokens_per_minute is not None and extra_tokens:
        counters.tokens_full_at = (
            max(counters.tokens_full_at, now) + extra_tokens * MINUTE_S / tenant.tokens_per_minute
        )
