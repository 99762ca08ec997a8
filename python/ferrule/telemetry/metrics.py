"""Metrics of one worker, their aggregation over workers, and the text that Prometheus scrapes.

A series is a dict entry: counting costs a dict access, and the series of a removed backend can be
dropped. prometheus_client renders the text. Histograms live in Rust, which fills some of them per
token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from ferrule._core import Histogram as Buckets

# vLLM's own edges (vllm/v1/metrics/loggers.py), so that panels of both can be overlaid.
TTFT_EDGES_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
PER_TOKEN_EDGES_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
REQUEST_EDGES_S = (
    0.005, 0.025, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0,
)  # fmt: skip
OVERHEAD_EDGES_S = (
    0.00005, 0.0001, 0.0002, 0.0004, 0.0008, 0.0015, 0.003, 0.006, 0.0125, 0.025, 0.05, 0.1, 0.25,
    1.0,
)  # fmt: skip
WAIT_EDGES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0)

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[str, ...]


class Sample(msgspec.Struct, array_like=True):
    """One series: a number, or bucket counts (not cumulative, +Inf last) with the sum of the
    observed values in `value`."""

    labels: Labels
    value: float = 0.0
    counts: list[int] | None = None


class Family(msgspec.Struct, array_like=True):
    """All series of one name, as a worker sends them to the supervisor."""

    name: str
    kind: Kind
    help: str
    labels: Labels
    samples: list[Sample]
    edges: tuple[float, ...] = ()
    across_workers: Literal["sum", "max", "min"] = "sum"


class Counter:
    """A counter. `inc` takes label values in the order of `labels`. `across_workers`: how workers'
    values combine."""

    kind: Kind = "counter"

    def __init__(
        self,
        name: str,
        help: str,
        labels: Sequence[str] = (),
        across_workers: Literal["sum", "max", "min"] = "sum",
    ) -> None:
        self.name, self.help, self.labels, self.across_workers = (
            name,
            help,
            tuple(labels),
            across_workers,
        )
        self.series: dict[Labels, float] = {} if labels else {(): 0.0}

    def inc(self, *labels: str, by: float = 1.0) -> None:
        self.series[labels] = self.series.get(labels, 0.0) + by

    def drop(self, matches: Callable[[Labels], bool]) -> None:
        """Drops the series of something that no longer exists."""
        for labels in [known for known in self.series if matches(known)]:
            del self.series[labels]

    def family(self) -> Family:
        samples = [Sample(labels, value) for labels, value in self.series.items()]
        return Family(
            self.name, self.kind, self.help, self.labels, samples, (), self.across_workers
        )


class Gauge(Counter):
    """A gauge."""

    kind: Kind = "gauge"

    def set(self, value: float, *labels: str) -> None:
        self.series[labels] = value


class Histogram:
    """A histogram of durations in seconds."""

    def __init__(
        self, name: str, help: str, edges_s: Sequence[float], labels: Sequence[str] = ()
    ) -> None:
        self.name, self.help, self.labels, self.edges_s = name, help, tuple(labels), tuple(edges_s)
        self.series: dict[Labels, Buckets] = {}
        if not labels:
            self.buckets()

    def buckets(self, *labels: str) -> Buckets:
        """The buckets of one series, for Rust to fill."""
        buckets = self.series.get(labels)
        if buckets is None:
            buckets = self.series[labels] = Buckets(self.edges_s)
        return buckets

    def observe(self, seconds: float, *labels: str) -> None:
        self.buckets(*labels).observe(seconds)

    def observe_all(self, seconds: Sequence[float], *labels: str) -> None:
        """Observes several values of one series. An empty sequence does not create the series."""
        if seconds:
            observe = self.buckets(*labels).observe
            for value_s in seconds:
                observe(value_s)

    def family(self) -> Family:
        samples = []
        for labels, buckets in self.series.items():
            counts, total = buckets.snapshot()
            samples.append(Sample(labels, total, counts))
        return Family(self.name, "histogram", self.help, self.labels, samples, self.edges_s)


class Metrics:
    """All metrics of one worker. Names and labels are a contract with people's dashboards."""

    def __init__(self) -> None:
        by_backend = ("pool", "backend")
        self.requests = Counter(
            "ferrule_requests", "Requests answered.", ("route", "model", "code")
        )
        self.duration = Histogram(
            "ferrule_request_duration_seconds",
            "From a request's head to the end of its response.",
            REQUEST_EDGES_S,
            ("route",),
        )
        self.first_token = Histogram(
            "ferrule_time_to_first_token_seconds",
            "From a request's head to the first content event; pings and role chunks do not count.",
            TTFT_EDGES_S,
            ("model",),
        )
        self.per_token = Histogram(
            "ferrule_time_per_output_token_seconds",
            "Between two tokens of a stream.",
            PER_TOKEN_EDGES_S,
            ("model",),
        )
        self.overhead = Histogram(
            "ferrule_proxy_overhead_seconds",
            "Time the proxy itself took.",
            OVERHEAD_EDGES_S,
            ("phase",),
        )
        self.streams = Gauge("ferrule_streams_active", "Streams in progress.")
        self.stream_ends = Counter("ferrule_stream_end", "Streams ended, by reason.", ("reason",))
        self.tokens = Counter(
            "ferrule_tokens",
            "Tokens; input excludes tokens read from a cache.",
            ("model", "type"),
        )
        self.decisions = Counter(
            "ferrule_routing_decisions", "Backends chosen, by branch.", ("pool", "branch")
        )
        self.backend_requests = Counter(
            "ferrule_backend_requests",
            "Attempts at a backend, by status or failure.",
            (*by_backend, "code"),
        )
        self.backend_inflight = Gauge(
            "ferrule_backend_inflight", "Requests in flight at a backend.", by_backend
        )
        self.backend_healthy = Gauge(
            "ferrule_backend_healthy",
            "1: takes requests; 0: ejected, draining or down.",
            by_backend,
            "min",
        )
        self.retries = Counter("ferrule_backend_retries", "Retries, by reason.", ("reason",))
        self.queue_depth = Gauge(
            "ferrule_queue_depth", "Requests waiting for a free backend.", ("pool",)
        )
        self.queue_wait = Histogram(
            "ferrule_queue_wait_seconds", "Time spent waiting for a free backend.", WAIT_EDGES_S
        )
        self.limited = Counter(
            "ferrule_limited",
            "Requests refused at admission; gate store: the limits store was unavailable.",
            ("gate",),
        )
        self.count_tokens = Histogram(
            "ferrule_count_tokens_seconds", "Time to count the tokens of a body.", WAIT_EDGES_S
        )
        self.discovery_age = Gauge(
            "ferrule_discovery_age_seconds",
            "Time since the list of backends was last confirmed.",
            ("pool",),
            "max",
        )
        self.loop_lag = Gauge(
            "ferrule_event_loop_lag_seconds", "How late the event loop ran a timer.", (), "max"
        )
        self.dropped = Counter(
            "ferrule_dropped_params",
            "Parameters dropped that a client may have relied on.",
            ("param",),
        )
        self.build = Gauge(
            "ferrule_build_info", "1; the version is the label.", ("version",), "max"
        )

    def families(self) -> list[Family]:
        return [metric.family() for metric in vars(self).values()]


class Aggregator:
    """Merges the families of all workers, including the counts of workers that died."""

    def __init__(self) -> None:
        self._retired: list[list[Family]] = []

    def retire(self, families: list[Family]) -> None:
        """Keeps the counters of a worker that died; its gauges are dropped."""
        counters = [
            msgspec.structs.replace(family, samples=[]) if family.kind == "gauge" else family
            for family in families
        ]
        self._retired = [merge([*self._retired, counters])]

    def merge_with(self, live: Iterable[list[Family]]) -> list[Family]:
        """The families of live workers and retired ones as one."""
        return merge([*self._retired, *live])


def merge(workers: Sequence[list[Family]]) -> list[Family]:
    """The families of several workers as one; series with equal labels are combined."""
    merged: dict[str, tuple[Family, dict[Labels, Sample]]] = {}
    for families in workers:
        for family in families:
            into, series = merged.setdefault(family.name, (family, {}))
            for sample in family.samples:
                known = series.get(sample.labels)
                series[sample.labels] = (
                    sample if known is None else _merge_samples(into, known, sample)
                )
    return [
        msgspec.structs.replace(family, samples=list(series.values()))
        for family, series in merged.values()
    ]


def _merge_samples(family: Family, a: Sample, b: Sample) -> Sample:
    if a.counts is not None and b.counts is not None:
        return Sample(
            a.labels, a.value + b.value, [x + y for x, y in zip(a.counts, b.counts, strict=True)]
        )
    combine = {
        "sum": lambda: a.value + b.value,
        "max": lambda: max(a.value, b.value),
        "min": lambda: min(a.value, b.value),
    }
    return Sample(a.labels, combine[family.across_workers]())


class _Collector:
    """Adapts families to prometheus_client."""

    def __init__(self, families: list[Family]) -> None:
        self.families = families

    def collect(self) -> Iterator[Metric]:
        for family in self.families:
            yield _to_metric(family)


def _to_metric(family: Family) -> Metric:
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for sample in family.samples:
            histogram.add_metric(
                sample.labels, _accumulate(family.edges, sample.counts or []), sample.value
            )
        return histogram
    metric: Any = (CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily)(
        family.name, family.help, labels=family.labels
    )
    for sample in family.samples:
        metric.add_metric(sample.labels, sample.value)
    return metric  # type: ignore[no-any-return]


def _accumulate(edges_s: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    buckets, total = [], 0
    for edge, count in zip((*(str(float(edge)) for edge in edges_s), "+Inf"), counts, strict=True):
        total += count
        buckets.append((edge, float(total)))
    return buckets


def render(families: list[Family]) -> bytes:
    """The text that Prometheus scrapes."""
    registry = CollectorRegistry()
    registry.register(_Collector(families))
    return generate_latest(registry)
