"""Limits a pool's concurrent retries to a share of its active requests, so that retries do not
multiply an outage."""

from __future__ import annotations

RETRY_SHARE = 0.2
MIN_RETRIES = 3


class RetryBudget:
    """`per_request`: attempts after the first one."""

    def __init__(self, per_request: int) -> None:
        self.per_request = per_request
        self.active = 0

    def allows(self, retries_made: int, active_requests: int) -> bool:
        """Whether a request that was retried `retries_made` times may be retried again."""
        return self.is_within(retries_made) and self.active < max(
            MIN_RETRIES, RETRY_SHARE * active_requests
        )

    def is_within(self, retries_made: int) -> bool:
        return retries_made < self.per_request

    def start(self) -> None:
        self.active += 1

    def end(self) -> None:
        self.active -= 1
