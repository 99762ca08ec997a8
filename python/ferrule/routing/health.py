"""Whether one backend may get a request, by its probes and by its requests.

Two state machines side by side. Probes (active): `fall` failures in a row take a backend out,
`rise` successes bring it back. The breaker (passive): closed → open on connect errors and 5xx
before the first event → half-open after a back-off, where a single request is let through → closed
by its first event. Time is an argument; no I/O.
"""

from __future__ import annotations

import math
import zlib
from enum import StrEnum

import msgspec

MAX_BUSY_S = 3600.0


class Verdict(StrEnum):
    """What the end of an attempt says about the backend's health."""

    OK = "ok"
    CLIENT_GONE = "client_gone"
    NEUTRAL = "neutral"
    """A 4xx, or anything after the first event: says nothing about whether the next request would
    be served."""
    BUSY = "busy"
    """429: alive, not now."""
    CONNECT_ERROR = "connect_error"
    SERVER_ERROR = "server_error"
    """5xx, or an error frame, before the first event."""
    BROKEN = "broken"
    """The connection was lost, or nothing came in time, before the first event."""
    DRAINING = "draining"
    """vLLM's "cannot schedule new futures after shutdown", while its /health still says 200."""


_AT_ONCE = frozenset({Verdict.CONNECT_ERROR, Verdict.DRAINING})
_COUNTED = frozenset({Verdict.SERVER_ERROR, Verdict.BROKEN})


class HealthPolicy(msgspec.Struct, frozen=True):
    """The rules. `trip`: failures in a row that open the breaker (a refused connection opens it at
    once).

    `connect_open_s`, `error_open_s`: the first time a breaker stays open, doubled with each failed
    trial up to `max_open_s`.
    """

    interval_s: float
    fall: int
    rise: int
    trip: int = 3
    connect_open_s: float = 1.0
    error_open_s: float = 5.0
    max_open_s: float = 60.0
    seed: int = 0


class ProbeStatus(StrEnum):
    OK = "ok"
    FAILED = "failed"
    BUSY = "busy"


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Health:
    """The health of one backend. The balancer decides whether a due ejection happens (at most half
    of a pool)."""

    def __init__(self, name: str, policy: HealthPolicy) -> None:
        self._name = name
        self.policy = policy
        self.is_up: bool | None = None
        """By probes; None before the first one. A backend not probed yet may be tried."""
        self.breaker = BreakerState.CLOSED
        self.generation = 0
        """Incremented when the breaker opens or closes: results of requests from an older
        generation are ignored."""
        self.reopens_at = math.inf
        self.next_probe_at = -math.inf
        self._quiet_until = -math.inf
        self._streak = 0
        self._probes = 0
        self._failures = 0
        self._ejections = 0
        self._cause = Verdict.OK
        self._has_trial = False

    def is_usable(self, now: float) -> bool:
        """Whether a request may go here now."""
        if self.is_up is False or self._has_trial:
            return False
        return self.breaker is BreakerState.CLOSED or now >= self.reopens_at

    # Active: probes

    def start_probe(self, now: float) -> bool:
        """Whether a probe is due; if so, schedules the next one after `interval_s`, less up to a
        fifth, so that workers do not probe in step."""
        if now < self.next_probe_at:
            return False
        self._probes += 1
        self.next_probe_at = now + self.policy.interval_s * (1.0 - 0.2 * self._jitter())
        return True

    def end_probe(self, probed: ProbeStatus, now: float, retry_after_s: float = 0.0) -> None:
        """Records a probe. `BUSY` (429) is alive, and is not probed again for
        `retry_after_s`."""
        if probed is ProbeStatus.BUSY:
            self._quiet_until = now + min(retry_after_s, MAX_BUSY_S)
            self.next_probe_at = max(self.next_probe_at, self._quiet_until)
            self._streak = max(self._streak, 0)
        elif probed is ProbeStatus.OK:
            self._streak = max(self._streak, 0) + 1
            self._rise(now)
        else:
            self._streak = min(self._streak, 0) - 1
            if self.is_up is None or -self._streak >= self.policy.fall:
                self.is_up = False
            else:
                self._probe_soon(now)

    def _rise(self, now: float) -> None:
        risen = self._streak >= self.policy.rise
        if self.is_up is False and risen:
            # Down and up again: it was restarted, so earlier failures mean nothing.
            self._close()
        elif risen and self._cause is Verdict.CONNECT_ERROR:
            self._close()
        if self.is_up is None or risen:
            self.is_up = True
        else:
            self._probe_soon(now)

    def _probe_soon(self, now: float) -> None:
        # Probe sooner while undecided, so that going down or up takes less than two intervals.
        self.next_probe_at = max(
            self._quiet_until, min(self.next_probe_at, now + self.policy.interval_s / 4)
        )

    def _jitter(self) -> float:
        return zlib.crc32(f"{self.policy.seed}:{self._name}:{self._probes}".encode()) / 0xFFFFFFFF

    # Passive: the breaker

    def start_request(self, now: float) -> bool:
        """Counts a request that goes out. True: it is the single trial of a half-open breaker."""
        if self.breaker is BreakerState.CLOSED or self._has_trial or now < self.reopens_at:
            return False
        self.breaker = BreakerState.HALF_OPEN
        self._has_trial = True
        return True

    def succeed(self, generation: int) -> bool:
        """A first event or a whole answer came. True: that closed the breaker."""
        if generation != self.generation:
            return False
        self._failures = 0
        if self.breaker is BreakerState.CLOSED:
            return False
        self._close()
        return True

    def wants_ejection(self, verdict: Verdict, generation: int) -> bool:
        """Counts a failure of the current generation; True: enough of them, `eject` is due."""
        if generation != self.generation or self.is_up is False:
            return False
        if verdict in _COUNTED:
            self._failures += 1
        elif verdict not in _AT_ONCE:
            return False
        return (
            verdict in _AT_ONCE
            or self._failures >= self.policy.trip
            or self.breaker is not BreakerState.CLOSED
        )

    def eject(self, verdict: Verdict, now: float) -> None:
        """Open the breaker, longer each time until something succeeds."""
        policy = self.policy
        first_s = policy.connect_open_s if verdict is Verdict.CONNECT_ERROR else policy.error_open_s
        self.reopens_at = now + min(policy.max_open_s, first_s * 2.0 ** min(self._ejections, 16))
        self.breaker = BreakerState.OPEN
        self.generation += 1
        self._cause = verdict
        self._ejections += 1
        self._failures = 0
        self._streak = min(self._streak, 0)
        self._has_trial = False
        self._probe_soon(now)

    def end_trial(self) -> None:
        """The trial said nothing about health (its client left, a 4xx): the next request is the
        trial."""
        self._has_trial = False

    def readmit(self) -> None:
        """Closes the breaker: more than half of the pool would be ejected."""
        self._close()

    def start_over(self) -> None:
        """Forgets everything: another process has the address now."""
        self.generation += 1
        self._close()
        self.is_up = None
        self.next_probe_at = self._quiet_until = -math.inf
        self._streak = 0

    def _close(self) -> None:
        if self.breaker is not BreakerState.CLOSED:
            self.breaker = BreakerState.CLOSED
            self.generation += 1
        self.reopens_at = math.inf
        self._failures = 0
        self._ejections = 0
        self._cause = Verdict.OK
        self._has_trial = False
