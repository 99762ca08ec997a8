"""Sessions: the order in which each prefers the backends, and where it is.

The table is bounded. Losing an entry is harmless: the session goes to its home again, as in every
other replica.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from ferrule.routing.backend import Backend

MAX_SESSIONS = 100_000
AWAY_IDLE_S = 60.0
"""A session that spilled returns home after this long without a request, which is longer than an
agent pauses between turns."""
FORGET_IDLE_S = 900.0
"""After this long without a request a session is forgotten."""


class Session(msgspec.Struct, eq=False):
    """`order` holds for the pool's membership number `epoch`; `at` is where its last request went,
    `is_away`: not its home."""

    order: Sequence[Backend]
    epoch: int
    used_at: float
    inflight: int = 0
    at: Backend | None = None
    is_away: bool = False

    def place(self, now: float) -> Backend:
        """Where the next request goes if load does not matter: home, or where the session is
        away."""
        if (
            self.is_away
            and self.at is not None
            and (self.inflight > 0 or now - self.used_at < AWAY_IDLE_S)
        ):
            return self.at
        return self.order[0]

    def move_to(self, backend: Backend) -> None:
        self.is_away = backend is not self.order[0]
        if backend is not self.at:
            self.leave()
            backend.sessions += 1
            self.at = backend

    def leave(self) -> None:
        if self.at is not None:
            self.at.sessions -= 1
            self.at = None


class SessionTable:
    """Sessions by key, least recently used first."""

    def __init__(self, limit: int = MAX_SESSIONS) -> None:
        self._limit = limit
        self._by_key: OrderedDict[bytes, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: bytes) -> Session | None:
        return self._by_key.get(key)

    def add(self, key: bytes, session: Session, now: float) -> None:
        self._by_key[key] = session
        self.forget_idle(now)
        if len(self._by_key) > self._limit:
            self._drop_oldest()

    def use(self, key: bytes, now: float) -> None:
        """Mark as used now, so that it is the last to be forgotten."""
        self._by_key[key].used_at = now
        self._by_key.move_to_end(key)

    def forget_idle(self, now: float) -> None:
        while self._by_key:
            oldest = next(iter(self._by_key.values()))
            if now - oldest.used_at < FORGET_IDLE_S:
                return
            if oldest.inflight > 0:
                oldest.used_at = now
                self._by_key.move_to_end(next(iter(self._by_key)))
            else:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        # Requests in flight keep their session object; only the lookup is lost.
        _, session = self._by_key.popitem(last=False)
        session.leave()
