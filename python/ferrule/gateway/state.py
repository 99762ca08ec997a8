"""What a worker has for its requests, in one place."""

from __future__ import annotations

import msgspec

from ferrule.admission.keys import KeyRing
from ferrule.admission.limits import Limiter
from ferrule.backends.pool import BackendPool
from ferrule.backends.token_counter import TokenCounter
from ferrule.catalog import Catalog
from ferrule.config import Config
from ferrule.telemetry.metrics import Metrics
from ferrule.telemetry.recorder import RequestRecorder
from ferrule.telemetry.tracing import Tracing


class AppState(msgspec.Struct):
    """What a worker has for its requests. A reload replaces single state; a request keeps those it
    began with."""

    config: Config
    catalog: Catalog
    keys: KeyRing
    limiter: Limiter
    pools: dict[str, BackendPool]
    token_counter: TokenCounter
    metrics: Metrics
    recorder: RequestRecorder
    tracing: Tracing | None = None
    is_draining: bool = False
    rejects_new: bool = False
    """Draining, and whoever sends requests has had the time to learn of it."""
    is_overloaded: bool = False
    """By memory, as the sweep has found it."""
