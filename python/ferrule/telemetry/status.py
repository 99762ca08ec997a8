"""The content of `/status`: the workers' views merged. Counts of the same backend are added up."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ferrule.telemetry.metrics import Family


class WorkerView(msgspec.Struct):
    pid: int
    streams_active: int


class BackendView(msgspec.Struct):
    """`address` has no credentials. `reason`: why its probes fail; None while they succeed."""

    name: str
    address: str
    healthy: bool
    state: str
    breaker: str
    inflight: int
    slots: int
    sessions: int
    weight: float
    draining: bool
    reason: str | None = None


class ConfigView(msgspec.Struct, frozen=True):
    """`loaded_at`: when the configuration in force was read (ISO 8601, UTC). `error`: the problems
    of a newer one that was refused."""

    ok: bool
    error: str | None
    loaded_at: str


class PoolView(msgspec.Struct):
    name: str
    discovery_age_s: float
    queue_depth: int
    backends: list[BackendView]


class Latency(msgspec.Struct):
    """Counts per bucket, not cumulative; one more than edges, for values beyond the last."""

    edges_s: tuple[float, ...]
    counts: list[int]


class Status(msgspec.Struct):
    version: str
    uptime_s: float
    state: str
    reason: str | None
    config: ConfigView | None
    workers: list[WorkerView]
    pools: list[PoolView]
    counters: dict[str, float]
    routing: dict[str, float]
    streams_ended: dict[str, float]
    latency: dict[str, Latency]


def merge_pools(workers: Sequence[list[PoolView]]) -> list[PoolView]:
    """The pools of several workers as one. A backend is healthy if it is for all of them."""
    pools: dict[str, PoolView] = {}
    for view in (view for worker in workers for view in worker):
        known = pools.get(view.name)
        if known is None:
            pools[view.name] = msgspec.structs.replace(view, backends=list(view.backends))
            continue
        known.queue_depth += view.queue_depth
        known.discovery_age_s = max(known.discovery_age_s, view.discovery_age_s)
        known.backends = _merge_backends(known.backends, view.backends)
    return list(pools.values())


def _merge_backends(a: list[BackendView], b: list[BackendView]) -> list[BackendView]:
    merged = {backend.name: backend for backend in a}
    for backend in b:
        known = merged.get(backend.name)
        if known is None:
            merged[backend.name] = backend
            continue
        worse = known if not known.healthy else backend
        merged[backend.name] = msgspec.structs.replace(
            worse,
            inflight=known.inflight + backend.inflight,
            sessions=known.sessions + backend.sessions,
        )
    return list(merged.values())


def compute_totals(
    families: Sequence[Family],
) -> tuple[dict[str, float], dict[str, float], dict[str, float], dict[str, Latency]]:
    """(counters, routing by branch, stream ends by reason, latencies) out of the metrics, summed
    over all other labels."""
    by_name = {family.name: family for family in families}

    def total(name: str, **wanted: str) -> float:
        family = by_name[name]
        by_index = {family.labels.index(label): value for label, value in wanted.items()}
        return sum(
            s.value
            for s in family.samples
            if all(s.labels[index] == value for index, value in by_index.items())
        )

    requests = by_name["ferrule_requests"]
    code = requests.labels.index("code")
    counters = {
        "requests_total": total("ferrule_requests"),
        "requests_failed": sum(s.value for s in requests.samples if s.labels[code].startswith("5")),
        "tokens_input": total("ferrule_tokens", type="input"),
        "tokens_output": total("ferrule_tokens", type="output"),
        "tokens_cache_read": total("ferrule_tokens", type="cache_read"),
        "streams_active": total("ferrule_streams_active"),
        "limited": total("ferrule_limited"),
        "retries": total("ferrule_backend_retries"),
    }
    routing = {
        branch: total("ferrule_routing_decisions", branch=branch)
        for branch in ("home", "spill", "failover", "keyless")
    }
    reasons = ("complete", "client_gone", "backend_error", "timeout", "drain")
    ended = {reason: total("ferrule_stream_end", reason=reason) for reason in reasons}
    latency = {
        "ttft": _sum_latency(by_name["ferrule_time_to_first_token_seconds"]),
        "per_token": _sum_latency(by_name["ferrule_time_per_output_token_seconds"]),
    }
    return counters, routing, ended, latency


def _sum_latency(family: Family) -> Latency:
    columns = [sample.counts for sample in family.samples if sample.counts]
    return Latency(
        family.edges,
        [sum(column) for column in zip(*columns, strict=True)] or [0] * (len(family.edges) + 1),
    )
