"""Metrics, logs and memory: numbers that are right, bounded, and back at zero."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.doubles.backend import Pause, Reply, Reset, ScriptedBackend, refusal, stream
from tests.doubles.frames import DONE, ROLE_DELTA, Canned, D
from tests.doubles.proxy import Ferrule, config_for
from tests.e2e.test_cases_limits import bearer, key_entry, write_keys


@pytest.fixture(scope="module")
def shared_counted(
    new_proxy: Callable[..., Ferrule],
    shared_backend: ScriptedBackend,
    tmp_path_factory: pytest.TempPathFactory,
) -> Ferrule:
    keys = write_keys(
        tmp_path_factory.mktemp("keys"), key_entry("a"), key_entry("slow", requests_per_minute=1)
    )
    return new_proxy(
        config_for(shared_backend.url, auth={"keys_file": keys}, workers=2, pool={"retries": 0})
    )


@pytest.fixture
def counted(shared_counted: Ferrule, backend: ScriptedBackend) -> Ferrule:
    """Two workers, with keys."""
    return shared_counted


def test_q03_gauges_return_to_zero_on_every_way_out(
    counted: Ferrule, backend: ScriptedBackend
) -> None:
    counted.ask()
    for _ in range(2):
        counted.ask(headers=bearer("slow"))
    counted.ask(headers=bearer("a"), messages=[])
    for play in (
        refusal(500),
        Reply([Reset()], sends_head=False),
        stream(D({"content": "x"}), Reset()),
        Canned("x"),
    ):
        backend.play(play)
        counted.ask(headers=bearer("a"), stream=True)
    backend.play(stream(D({"content": "x"}), Pause(5)))
    with counted.open_stream(headers=bearer("a")) as answer:
        answer.read_some()
        answer.reset()
    for gauge in ("streams_active", "backend_inflight", "queue_depth"):
        counted.wait_for_metric(gauge, 0)


def test_q07_series_stay_bounded(counted: Ferrule) -> None:
    def count() -> int:
        return len(counted.samples())

    for n in range(3):
        counted.ask(headers=bearer("a"), model=f"first-{n}")
        counted.client.get(f"/first/{n}")
    before = count()
    with ThreadPoolExecutor(8) as threads:
        list(
            threads.map(lambda n: counted.ask(headers=bearer("a"), model=f"random-{n}"), range(250))
        )
        list(threads.map(lambda n: counted.client.get(f"/random/{n}", bearer("a")), range(250)))
        list(threads.map(lambda n: counted.client.request(f"M{n}", "/v1/messages"), range(20)))
    assert count() <= before + 8
    text = counted.admin_get("/metrics").text
    assert "random-" not in text
    assert 'model="other"' in text


def test_q09_times_to_and_between_tokens(counted: Ferrule, backend: ScriptedBackend) -> None:
    def sums() -> dict[str, tuple[float, float]]:
        names = ("time_to_first_token_seconds", "time_per_output_token_seconds")
        return {
            name: (
                counted.metric(f"{name}_sum", model="m"),
                counted.metric(f"{name}_count", model="m"),
            )
            for name in names
        }

    before = sums()
    tokens = [step for n in range(10) for step in (Pause(0.05), D({"content": f"w{n} "}))]
    backend.play(stream(Pause(0.1), D(ROLE_DELTA), Pause(0.6), *tokens, D({}, "stop"), DONE))
    assert counted.stream(headers=bearer("a")).message
    counted.wait_for_metric(
        "time_to_first_token_seconds_count", before["time_to_first_token_seconds"][1] + 1, model="m"
    )
    after = sums()
    first = after["time_to_first_token_seconds"][0] - before["time_to_first_token_seconds"][0]
    assert 0.7 < first < 1.0, "the role chunk is no token"
    per_token = (
        after["time_per_output_token_seconds"][0] - before["time_per_output_token_seconds"][0]
    )
    observed = (
        after["time_per_output_token_seconds"][1] - before["time_per_output_token_seconds"][1]
    )
    assert observed >= 1
    assert 0.04 < per_token / observed < 0.08


def test_requests_are_counted_by_route_model_and_code(counted: Ferrule) -> None:
    for path in ("/v1/messages", "/v1/chat/completions"):
        before = counted.metric("requests_total", model="m", code="200")
        counted.ask(path, headers=bearer("a"))
        counted.wait_for_metric("requests_total", before + 1, model="m", code="200")
    routes = {
        labels["route"]
        for name, labels, _ in counted.samples()
        if name == "ferrule_requests_total" and labels["model"] == "m"
    }
    assert len(routes) == 2


NAMES = [
    "requests_total",
    "request_duration_seconds_bucket",
    "time_to_first_token_seconds_bucket",
    "time_per_output_token_seconds_bucket",
    "proxy_overhead_seconds_bucket",
    "streams_active",
    "stream_end_total",
    "tokens_total",
    "routing_decisions_total",
    "backend_requests_total",
    "backend_inflight",
    "backend_healthy",
    "queue_depth",
    "limited_total",
    "discovery_age_seconds",
    "build_info",
]


def test_the_names_that_dashboards_rely_on(counted: Ferrule) -> None:
    counted.stream(headers=bearer("a"))
    present = {name for name, _, _ in counted.samples()}
    assert [name for name in NAMES if f"ferrule_{name}" not in present] == []
    assert {
        labels["le"]
        for name, labels, _ in counted.samples()
        if name == "ferrule_time_to_first_token_seconds_bucket"
    } >= {"+Inf"}


def test_p01_labels_hold_no_address(counted: Ferrule, backend: ScriptedBackend) -> None:
    labels = "\n".join(
        line for line in counted.admin_get("/metrics").text.splitlines() if not line.startswith("#")
    )
    assert not re.search(rf"127\.0\.0\.1|:{backend.port}\b|sk-", labels)


def test_the_access_log_tells_each_request_once(counted: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(Canned("x", prompt_tokens=1000, cached_tokens=900, completion_tokens=5))
    answer = counted.stream(headers=bearer("a"))
    wanted = answer.headers["request-id"]
    deadline = time.monotonic() + 3
    while not (lines := [line for line in counted.log_lines() if line["request_id"] == wanted]):
        assert time.monotonic() < deadline, counted.log()[-2000:]
        time.sleep(0.05)
    (line,) = lines
    text = json.dumps(line)
    assert line["tenant"] == "a"
    assert line["model"] == "m"
    assert line["status"] == 200
    for number in ("100", "900", "5", "end_turn", "complete"):
        assert number in text


def test_status_shows_all_workers(counted: Ferrule) -> None:
    status = json.dumps(counted.status())
    for word in ("p", "healthy", "workers"):
        assert word in status


def test_q05_large_errors_leave_nothing_behind(counted: Ferrule, backend: ScriptedBackend) -> None:
    big = Reply(
        [b'{"error":{"message":"' + b"x" * 1_000_000 + b'"}}'],
        429,
        [("content-type", "application/json")],
        framing="length",
    )
    backend.play(big)
    with ThreadPoolExecutor(8) as threads:
        refused = list(threads.map(lambda _: counted.ask(headers=bearer("a")).status, range(100)))
        assert set(refused) == {429}
        backend.play(Canned("x"))
        assert {
            answer.status
            for answer in threads.map(lambda _: counted.ask(headers=bearer("a")), range(100))
        } == {200}
    counted.wait_for_metric("backend_inflight", 0)
