"""Counting, merging the counts of several workers, and the text that Prometheus scrapes."""

from __future__ import annotations

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from ferrule.telemetry.metrics import (
    Aggregator,
    Counter,
    Family,
    Gauge,
    Histogram,
    Metrics,
    merge,
    render,
)


def values_by_labels(families: list[Family], name: str) -> dict[tuple[str, ...], float]:
    (family,) = [family for family in families if family.name == name]
    return {sample.labels: sample.value for sample in family.samples}


def test_a_counter_without_labels_begins_at_zero_and_one_with_labels_empty() -> None:
    assert [(sample.labels, sample.value) for sample in Counter("c", "h").family().samples] == [
        ((), 0.0)
    ]
    assert Counter("c", "h", ("a",)).family().samples == []


def test_series_can_be_dropped() -> None:
    counter = Counter("c", "h", ("pool", "backend"))
    counter.inc("p", "a")
    counter.inc("p", "b", by=2)
    counter.drop(lambda labels: labels[1] == "a")
    assert counter.series == {("p", "b"): 2.0}


def test_a_gauge_goes_up_and_down() -> None:
    gauge = Gauge("g", "h")
    gauge.inc()
    gauge.inc(by=-1)
    gauge.set(7)
    assert gauge.series == {(): 7}
    assert gauge.family().kind == "gauge"


def test_the_buckets_of_a_series_can_be_filled_directly() -> None:
    histogram = Histogram("h", "h", (1.0,), ("model",))
    histogram.observe(0.5, "m")
    histogram.buckets("m").observe(2.0)
    (sample,) = histogram.family().samples
    assert (sample.labels, sample.counts, sample.value) == (("m",), [1, 1], 2.5)


def test_workers_are_merged_by_kind() -> None:
    one, other = Metrics(), Metrics()
    for metrics, lag, healthy in ((one, 0.1, 1.0), (other, 0.3, 0.0)):
        metrics.requests.inc("messages", "m", "200")
        metrics.loop_lag.set(lag)
        metrics.backend_healthy.set(healthy, "p", "a")
        metrics.queue_wait.observe(0.02)
    merged = merge([one.families(), other.families()])
    assert values_by_labels(merged, "ferrule_requests") == {("messages", "m", "200"): 2}
    assert values_by_labels(merged, "ferrule_event_loop_lag_seconds") == {(): 0.3}
    assert values_by_labels(merged, "ferrule_backend_healthy") == {("p", "a"): 0.0}
    (wait,) = [family for family in merged if family.name == "ferrule_queue_wait_seconds"]
    assert sum(wait.samples[0].counts or []) == 2
    assert values_by_labels(one.families(), "ferrule_requests") == {
        ("messages", "m", "200"): 1
    }  # merging leaves the workers' own unchanged


def test_counts_of_dead_workers_stay_and_their_gauges_go() -> None:
    dead, living = Metrics(), Metrics()
    for metrics in (dead, living):
        metrics.requests.inc("messages", "m", "200")
        metrics.streams.inc()
    aggregator = Aggregator()
    aggregator.retire(dead.families())
    aggregator.retire(dead.families())
    families = aggregator.merge_with([living.families()])
    assert values_by_labels(families, "ferrule_requests") == {("messages", "m", "200"): 3}
    assert values_by_labels(families, "ferrule_streams_active") == {(): 1}


def test_families_survive_serialisation() -> None:
    metrics = Metrics()
    metrics.first_token.observe(0.3, "m")
    families = metrics.families()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(families), type=list[Family]) == families


def test_prometheus_parses_the_text() -> None:
    metrics = Metrics()
    metrics.requests.inc("messages", 'a"b\n', "200")
    metrics.first_token.observe(0.3, "m")
    metrics.first_token.observe(9999, "m")
    read = {
        family.name: family
        for family in text_string_to_metric_families(render(metrics.families()).decode())
    }
    (sample,) = read["ferrule_requests"].samples
    assert (sample.name, sample.labels) == (
        "ferrule_requests_total",
        {"route": "messages", "model": 'a"b\n', "code": "200"},
    )
    buckets = {
        sample.labels["le"]: sample.value
        for sample in read["ferrule_time_to_first_token_seconds"].samples
        if "le" in sample.labels
    }
    assert (buckets["0.25"], buckets["0.5"], buckets["2560.0"], buckets["+Inf"]) == (0, 1, 1, 2)


def test_every_metric_has_its_prefix_and_a_help() -> None:
    for family in Metrics().families():
        assert family.name.startswith("ferrule_")
        assert family.help.endswith(".") or family.name == "ferrule_build_info"
