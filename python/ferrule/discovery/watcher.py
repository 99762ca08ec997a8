"""The interface of a discovery: calls back with the whole list when it changes, and knows its
age."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ferrule.routing.backend import BackendSpec

OnChange = Callable[[list[BackendSpec]], None]


class Watcher(Protocol):
    """A failure keeps the last list: a pool is never emptied because its source is unreachable."""

    stale_after_s: float
    """The age past which the list counts as stale."""

    async def watch(self, on_change: OnChange) -> None:
        """Runs until cancelled, or until nothing can change any more."""

    def age_s(self) -> float:
        """Seconds since the list was last confirmed; since the start, before the first time."""


class Freshness:
    """Tracks when a list was last confirmed, and reports it only when it differs."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._confirmed_at = clock()
        self._specs: list[BackendSpec] | None = None

    def age_s(self) -> float:
        return self._clock() - self._confirmed_at

    def confirm(self) -> None:
        self._confirmed_at = self._clock()

    def accept(self, specs: list[BackendSpec], on_change: OnChange) -> None:
        """The current list, in any order. Calls `on_change` if it differs from the last."""
        self.confirm()
        ordered = sorted(specs, key=lambda spec: spec.url)
        if ordered != self._specs:
            self._specs = ordered
            on_change(list(ordered))
