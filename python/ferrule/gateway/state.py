"""What a worker serves requests with, and its own condition."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ferrule._core import StreamDeadlines
from ferrule.admission.keys import KeyRing
from ferrule.admission.limits import Limiter
from ferrule.backends.pool import BackendPool
from ferrule.backends.token_counter import TokenCounter
from ferrule.catalog import Catalog
from ferrule.config import Config
from ferrule.dialects import DIALECTS, Dialect
from ferrule.telemetry.metrics import Metrics
from ferrule.telemetry.recorder import RequestRecorder
from ferrule.telemetry.tracing import Tracing


class AppState(msgspec.Struct, frozen=True):
    """What requests are served with. Never changed: a reload makes a new one, and a request keeps
    the one it began with. What backends say of themselves (health, models) lives inside `pools`
    and `catalog` and goes on changing."""

    config: Config
    catalog: Catalog
    keys: KeyRing
    limiter: Limiter
    pools: dict[str, BackendPool]
    deadlines: Mapping[str, StreamDeadlines]
    """By pool."""
    token_counter: TokenCounter
    metrics: Metrics
    recorder: RequestRecorder
    tracing: Tracing | None = None

    @property
    def dialect(self) -> Dialect:
        """The dialect of everything that is not about one model."""
        return DIALECTS[self.config.dialect]


def stream_deadlines(config: Config) -> dict[str, StreamDeadlines]:
    """By pool: made once, and not for each response."""
    return {
        name: StreamDeadlines(
            ping_after_s=config.ping_after_s,
            first_event_s=pool.timeouts.first_event_s,
            idle_s=pool.timeouts.idle_s,
            total_s=pool.timeouts.total_s,
        )
        for name, pool in config.pools.items()
    }


class Lifecycle(msgspec.Struct):
    """The worker's own condition, which holds for every request at once."""

    is_draining: bool = False
    rejects_new: bool = False
    """Draining, for so long that whoever sends requests has had the time to notice."""
    is_overloaded: bool = False
    """Past its memory mark, as the sweep found it."""
