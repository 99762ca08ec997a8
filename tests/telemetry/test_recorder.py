"""What a finished request adds to the counts, and when."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pytest
from tests.app_state import until

from ferrule.telemetry.accesslog import AccessLog
from ferrule.telemetry.metrics import Metrics
from ferrule.telemetry.recorder import BATCH_RECORDS, DROPPED_NAMES_MAX, RequestRecorder
from ferrule.telemetry.request_record import RequestRecord


def make_record(**members: object) -> RequestRecord:
    record = RequestRecord("req_1", "messages", 100.0)
    record.status, record.ended_at = 200, 103.0
    for name, value in members.items():
        setattr(record, name, value)
    return record


class Setup:
    def __init__(self) -> None:
        self.metrics, self.out = Metrics(), io.StringIO()
        self.recorder = RequestRecorder(self.metrics, AccessLog(self.out))

    @property
    def lines(self) -> int:
        return self.out.getvalue().count("\n")


@pytest.fixture
async def setup() -> Setup:
    return Setup()


async def test_a_request_is_recorded_after_a_moment(setup: Setup) -> None:
    setup.recorder.add(make_record())
    assert setup.lines == 0
    await until(lambda: setup.lines == 1)
    assert setup.metrics.requests.series == {("messages", "other", "200"): 1}


async def test_a_full_batch_is_recorded_at_once(setup: Setup) -> None:
    for _ in range(BATCH_RECORDS):
        setup.recorder.add(make_record())
    assert setup.lines == BATCH_RECORDS


async def test_flush_records_what_is_pending_once(setup: Setup) -> None:
    setup.recorder.add(make_record())
    setup.recorder.flush()
    setup.recorder.flush()
    assert setup.lines == 1
    assert json.loads(setup.out.getvalue())["request_id"] == "req_1"


COUNTS: list[tuple[dict[str, object], Callable[[Metrics], object], object]] = [
    ({}, lambda m: m.duration.buckets("messages").snapshot()[1], 3.0),
    (
        {"sent_at": 100.5, "queued_s": 0.1, "connected_s": 0.1},
        lambda m: round(m.overhead.buckets("request").snapshot()[1], 6),
        0.3,
    ),
    (
        {"sent_at": 100.1, "queued_s": 0.5},
        lambda m: m.overhead.buckets("request").snapshot()[1],
        0.0,
    ),
    (
        {"first_event_at": 101.0, "label": "m"},
        lambda m: m.first_token.buckets("m").snapshot()[1],
        1.0,
    ),
    ({"first_event_at": 0.0, "label": "m"}, lambda m: m.first_token.series, {}),
    ({"queued_s": 0.25}, lambda m: m.queue_wait.buckets().snapshot()[1], 0.25),
    ({"pool": "p", "branch": "home"}, lambda m: m.decisions.series, {("p", "home"): 1}),
    ({"dropped": ("top_p",)}, lambda m: m.dropped.series, {("top_p",): 1}),
    (
        {"stream": True, "end_reason": "complete"},
        lambda m: m.stream_ends.series,
        {("complete",): 1},
    ),
    ({"stream": False, "end_reason": "client_gone"}, lambda m: m.stream_ends.series, {}),
    (
        {
            "has_outcome": True,
            "label": "m",
            "input_tokens": 7,
            "output_tokens": 3,
            "cache_read_tokens": 2,
        },
        lambda m: m.tokens.series,
        {("m", "input"): 7, ("m", "output"): 3, ("m", "cache_read"): 2},
    ),
    ({"has_outcome": False, "input_tokens": 7}, lambda m: m.tokens.series, {}),
]


@pytest.mark.parametrize(
    ("members", "read", "expected"),
    COUNTS,
    ids=[" ".join(case[0]) or "duration" for case in COUNTS],
)
async def test_counts(
    setup: Setup, members: dict[str, object], read: Callable[[Metrics], object], expected: object
) -> None:
    setup.recorder.add(make_record(**members))
    setup.recorder.flush()
    assert read(setup.metrics) == expected


def test_tokens_are_counted_as_limits_count_them() -> None:
    assert (
        make_record(input_tokens=7, output_tokens=3, cache_read_tokens=2, has_usage=True).tokens(
            100
        )
        == 12
    )
    assert make_record(output_tokens=3).tokens(100) == 103
    assert make_record().tokens(100) == 0


async def test_the_names_of_dropped_parameters_are_bounded(setup: Setup) -> None:
    for number in range(2 * DROPPED_NAMES_MAX):
        setup.recorder.add(make_record(dropped=(f"name_{number}",)))
    setup.recorder.add(make_record(dropped=("name_0",)))
    setup.recorder.flush()
    counted = setup.metrics.dropped.series
    assert len(counted) == DROPPED_NAMES_MAX + 1
    assert (counted[("name_0",)], counted[("other",)]) == (2, DROPPED_NAMES_MAX)
