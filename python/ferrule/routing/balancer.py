"""Balances the requests of one pool over its backends: select → start → record_success → end.

Decides and returns; does no I/O. `now`: seconds of any monotonic clock. Every count is this
worker's own: with several workers the bounds are divided by `workers`, and each worker detects a
dead backend by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set

import msgspec

from ferrule._core import rank
from ferrule.routing import selection
from ferrule.routing.backend import Backend, BackendSpec, canonical_url, name_of
from ferrule.routing.health import BreakerState, Health, HealthPolicy, ProbeStatus, Verdict
from ferrule.routing.retry_budget import RetryBudget
from ferrule.routing.selection import Choice, LoadBounds
from ferrule.routing.sessions import Session, SessionTable

_NO_WORK_DONE = frozenset({Verdict.CONNECT_ERROR, Verdict.DRAINING})


class BalancerSettings(msgspec.Struct, frozen=True):
    """`slots`, `max_inflight`: of one backend, over all workers. `seed`: this worker's own, for
    jitter and keyless ties."""

    slots: int
    max_inflight: int
    retries: int
    health: HealthPolicy
    workers: int = 1
    seed: int = 0


class Attempt(msgspec.Struct, eq=False):
    """One request on one backend, from `Balancer.start` to `Balancer.end`."""

    backend: Backend
    session: Session | None
    generation: int
    is_trial: bool
    is_retry: bool
    """Counts against the retry budget until its first event."""
    is_over: bool = False


class BackendStatus(msgspec.Struct, frozen=True):
    """A backend for `/status`. `url` has no credentials. `probe`: up, down, or unknown before the
    first one."""

    name: str
    url: str
    weight: float
    healthy: bool
    probe: str
    breaker: str
    draining: bool
    inflight: int
    sessions: int


class BalancerStatus(msgspec.Struct, frozen=True):
    name: str
    inflight: int
    sessions: int
    retries: int
    backends: list[BackendStatus]


class Balancer:
    """The members of one pool, their sessions and their health."""

    def __init__(self, name: str, settings: BalancerSettings) -> None:
        self.name = name
        self.inflight = 0
        self._policy = _policy(settings)
        self._limits = _limits(settings)
        self._tie_key = f"keyless:{settings.seed}".encode()
        self._members: list[Backend] = []
        self._leaving: list[Backend] = []
        self._keyless_order: list[Backend] = []
        self._sessions = SessionTable()
        self._budget = RetryBudget(settings.retries)
        self._epoch = 0
        self._review_at = -math.inf

    def change(self, settings: BalancerSettings) -> None:
        """Applies other bounds and rules; members, health and sessions stay."""
        self._policy = _policy(settings)
        self._limits = _limits(settings)
        self._budget.per_request = settings.retries
        for backend in self.backends:
            backend.health.policy = self._policy

    # Membership

    @property
    def backends(self) -> Sequence[Backend]:
        """All members, draining ones last."""
        return [*self._members, *self._leaving]

    def update(self, specs: Iterable[BackendSpec], now: float) -> None:
        """Replaces the members. New ones join, missing ones drain, the others keep health and
        sessions."""
        wanted = {spec.url.rstrip("/"): spec for spec in specs}
        known = {b.url: b for b in self._members}
        self._leaving += [b for b in self._members if b.url not in wanted]
        for backend in self._leaving:
            # Sessions may still refer to it, so it stays unusable even after it has been dropped.
            backend.is_draining, backend.is_usable = True, False
        taken = {b.name for b in self.backends}
        self._members = []
        for url, spec in wanted.items():
            backend = known.get(url) or self._revived(url) or self._new(url, taken)
            backend.weight = spec.weight
            taken.add(backend.name)
            self._members.append(backend)
        self._drop_drained()
        self._keyless_order = self._order(self._tie_key)
        self._epoch += 1
        self._spare_half()
        self._review(now)

    def _new(self, url: str, taken: Set[str]) -> Backend:
        name = name_of(self.name, url, taken)
        return Backend(name, url, 1.0, Health(name, self._policy))

    def _revived(self, url: str) -> Backend | None:
        """A backend that returns while it drains keeps its requests; its health starts over."""
        for backend in self._leaving:
            if backend.url == url:
                self._leaving.remove(backend)
                backend.is_draining = False
                backend.health.start_over()
                return backend
        return None

    def _drop_drained(self) -> None:
        self._leaving = [b for b in self._leaving if b.inflight > 0]

    def _order(self, key: bytes) -> list[Backend]:
        return [self._members[i] for i in rank(key, [(b.name, b.weight) for b in self._members])]

    # One request

    def select(self, key: bytes | None, tried: Set[str], now: float) -> Choice | None:
        """The backend for the session `key` (None: no session), leaving out the names in `tried`.
        None: no usable backend has room."""
        if now >= self._review_at:
            self._review(now)
        if not self._members:
            return None
        if key is None:
            return selection.keyless(self._keyless_order, tried, self._limits)
        session = self._session(key, now)
        return selection.by_session(session.order, session.place(now), tried, self._limits)

    def start(self, choice: Choice, key: bytes | None, now: float) -> Attempt:
        """Counts a request that goes out. Pass the attempt to `end`, once, however it ends."""
        backend = choice.backend
        session = None
        if key is not None:
            session = self._session(key, now)
            session.move_to(backend)
            session.inflight += 1
            self._sessions.use(key, now)
        backend.inflight += 1
        self.inflight += 1
        is_trial = backend.health.start_request(now)
        if is_trial:
            backend.is_usable = False
        if choice.is_retry:
            self._budget.start()
        return Attempt(backend, session, backend.health.generation, is_trial, choice.is_retry)

    def record_success(self, attempt: Attempt) -> None:
        """The first event, or a whole response, has come. A retry no longer counts against the
        budget."""
        self._end_retry(attempt)
        if attempt.backend.health.succeed(attempt.generation):
            self._review_at = -math.inf

    def end(self, attempt: Attempt, verdict: Verdict, now: float) -> None:
        """Ends an attempt. A second call does nothing."""
        if attempt.is_over:
            return
        attempt.is_over = True
        backend = attempt.backend
        backend.inflight -= 1
        self.inflight -= 1
        if attempt.session is not None:
            attempt.session.inflight -= 1
            attempt.session.used_at = now
        self._end_retry(attempt)
        if verdict is Verdict.OK:
            self.record_success(attempt)
        else:
            self._judge(attempt, verdict, now)
        if backend.is_draining:
            self._drop_drained()

    def may_retry(self, retries_made: int, verdict: Verdict) -> bool:
        """Whether another attempt is within `retries` and the pool's retry budget. Call between
        `end` and `select`.

        The budget keeps retries from multiplying work. A backend that could not be reached, or that
        refused because it drains, has done no work; and it fails for many requests at once, all of
        which need another one. So those count against `retries` alone.
        """
        if verdict in _NO_WORK_DONE:
            return self._budget.is_within(retries_made)
        return self._budget.allows(retries_made, self.inflight + 1)

    def has_untried(self, tried: Set[str], now: float) -> bool:
        """Whether a usable backend is left outside `tried`, with room or without. If not, waiting
        is useless."""
        self._review(now)
        return any(b.is_usable and b.name not in tried for b in self._members)

    def _end_retry(self, attempt: Attempt) -> None:
        if attempt.is_retry:
            attempt.is_retry = False
            self._budget.end()

    def _session(self, key: bytes, now: float) -> Session:
        session = self._sessions.get(key)
        if session is None:
            session = Session(self._order(key), self._epoch, now)
            self._sessions.add(key, session, now)
        elif session.epoch != self._epoch:
            session.order = self._order(key)
            session.epoch = self._epoch
        return session

    # Health

    def due_probes(self, now: float) -> list[Backend]:
        """Members to be probed now; their next probe is scheduled. Results go to `record_probe`."""
        return [b for b in self._members if b.health.start_probe(now)]

    def record_probe(
        self, backend: Backend, result: ProbeStatus, now: float, retry_after_s: float = 0.0
    ) -> None:
        """Records a probe's result. `retry_after_s`: from a busy backend (429)."""
        backend.health.end_probe(result, now, retry_after_s)
        self._review(now)

    def is_ready(self, now: float) -> bool:
        """Whether a backend is usable and has passed a probe."""
        self._review(now)
        return any(b.is_usable and b.health.is_up for b in self._members)

    def _judge(self, attempt: Attempt, verdict: Verdict, now: float) -> None:
        health = attempt.backend.health
        if health.wants_ejection(verdict, attempt.generation) and self._may_eject(attempt.backend):
            health.eject(verdict, now)
        elif attempt.is_trial and attempt.generation == health.generation:
            health.end_trial()
        else:
            return
        self._review(now)

    def _may_eject(self, backend: Backend) -> bool:
        others = sum(b is not backend for b in self._ejected())
        return others + 1 <= len(self._members) // 2

    def _ejected(self) -> list[Backend]:
        """Members that only their breaker keeps out."""
        return [
            b
            for b in self._members
            if b.health.breaker is not BreakerState.CLOSED and b.health.is_up is not False
        ]

    def _spare_half(self) -> None:
        ejected = sorted(self._ejected(), key=lambda b: b.health.reopens_at)
        for backend in ejected[: max(0, len(ejected) - len(self._members) // 2)]:
            backend.health.readmit()

    def _review(self, now: float) -> None:
        """Updates which members are usable, and when that can next change by time alone."""
        for backend in self._members:
            backend.is_usable = backend.health.is_usable(now)
        self._review_at = min(
            (b.health.reopens_at for b in self._members if b.health.reopens_at > now),
            default=math.inf,
        )

    # For /status

    def status(self, now: float) -> BalancerStatus:
        self._review(now)
        self._sessions.forget_idle(now)
        return BalancerStatus(
            self.name,
            self.inflight,
            len(self._sessions),
            self._budget.active,
            [_status_of(b) for b in self.backends],
        )


def _policy(settings: BalancerSettings) -> HealthPolicy:
    return msgspec.structs.replace(settings.health, seed=settings.seed)


def _limits(settings: BalancerSettings) -> LoadBounds:
    return LoadBounds(
        math.ceil(settings.slots / settings.workers),
        math.ceil(settings.max_inflight / settings.workers),
    )


def _status_of(backend: Backend) -> BackendStatus:
    health = backend.health
    return BackendStatus(
        name=backend.name,
        url=canonical_url(backend.url),
        weight=backend.weight,
        healthy=backend.is_usable and health.breaker is BreakerState.CLOSED,
        probe="unknown" if health.is_up is None else "up" if health.is_up else "down",
        breaker=health.breaker.value,
        draining=backend.is_draining,
        inflight=backend.inflight,
        sessions=backend.sessions,
    )
