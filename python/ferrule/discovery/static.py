"""Backends from the configuration: known at once, never stale."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ferrule.discovery.watcher import OnChange
from ferrule.routing.backend import BackendSpec


class StaticList:
    """A Watcher whose list never changes."""

    stale_after_s = math.inf

    def __init__(self, specs: Sequence[BackendSpec]) -> None:
        self._specs = list(specs)

    async def watch(self, on_change: OnChange) -> None:
        on_change(list(self._specs))

    def age_s(self) -> float:
        return 0.0
