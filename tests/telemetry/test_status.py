"""The merged views of several workers, and totals from the metrics."""

from __future__ import annotations

from typing import Any

import msgspec

from ferrule.telemetry.metrics import TTFT_EDGES_S, Metrics
from ferrule.telemetry.status import BackendView, PoolView, compute_totals, merge_pools


def backend(name: str = "a", **members: Any) -> BackendView:
    view = BackendView(
        name,
        f"http://{name}",
        True,
        "up",
        "closed",
        inflight=1,
        slots=64,
        sessions=2,
        weight=1.0,
        draining=False,
    )
    return msgspec.structs.replace(view, **members)


def pool(*backends: BackendView, age_s: float = 1.0, depth: int = 1) -> PoolView:
    return PoolView("p", age_s, depth, list(backends))


def test_counts_add_up_and_the_oldest_discovery_is_shown() -> None:
    (view,) = merge_pools([[pool(backend(), age_s=1)], [pool(backend(), backend("b"), age_s=5)]])
    assert (view.discovery_age_s, view.queue_depth) == (5, 2)
    assert [(b.name, b.inflight, b.sessions) for b in view.backends] == [("a", 2, 4), ("b", 1, 2)]


def test_a_backend_is_healthy_if_it_is_for_all_workers() -> None:
    for views in (
        [backend(), backend(healthy=False, state="down")],
        [backend(healthy=False, state="down"), backend()],
    ):
        (view,) = merge_pools([[pool(one)] for one in views])
        assert (view.backends[0].healthy, view.backends[0].state) == (False, "down")


def test_merging_leaves_the_views_unchanged() -> None:
    one = pool(backend())
    merge_pools([[one], [pool(backend())]])
    assert (one.queue_depth, one.backends[0].inflight) == (1, 1)


def test_totals() -> None:
    metrics = Metrics()
    for code in ("200", "200", "502", "404"):
        metrics.requests.inc("messages", "m", code)
    metrics.tokens.inc("m", "output", by=5)
    metrics.tokens.inc("n", "output", by=6)
    metrics.decisions.inc("p", "home", by=3)
    metrics.stream_ends.inc("client_gone")
    metrics.first_token.observe(0.3, "m")
    metrics.first_token.observe(0.3, "n")
    counters, routing, ended, latency = compute_totals(metrics.families())
    assert (counters["requests_total"], counters["requests_failed"], counters["tokens_output"]) == (
        4,
        1,
        11,
    )
    assert routing == {"home": 3, "spill": 0, "failover": 0, "keyless": 0}
    assert (ended["client_gone"], ended["complete"]) == (1, 0)
    assert latency["ttft"].edges_s == TTFT_EDGES_S
    assert sum(latency["ttft"].counts) == 2
    assert latency["per_token"].counts == [0] * (len(latency["per_token"].edges_s) + 1)
