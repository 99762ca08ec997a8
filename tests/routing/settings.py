"""Settings of a balancer as tests give them, unless they say otherwise."""

from __future__ import annotations

from typing import Any

from ferrule.routing.balancer import BalancerSettings
from ferrule.routing.health import HealthPolicy

HEALTH = HealthPolicy(interval_s=5.0, fall=2, rise=2)


def balancer_settings(**changes: Any) -> BalancerSettings:
    defaults = {"slots": 64, "max_inflight": 128, "retries": 2, "health": HEALTH}
    return BalancerSettings(**{**defaults, **changes})
