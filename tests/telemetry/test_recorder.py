"""What a request that is over adds to the counts, and when."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pytest
from tests.app_state import until

from ferrule.telemetry.accesslog import AccessLog
from ferrule.telemetry.metrics import Metrics
from ferrule.telemetry.recorder import BATCH, DROPPED_NAMES_MAX, RequestRecorder
from ferrule.telemetry.request_record import RequestRecord


def record(**members: object) -> RequestRecord:
    made = RequestRecord("req_1", "messages", 100.0)
    made.status, made.ended_at = 200, 103.0
    for name, value in members.items():
        setattr(made, name, value)
    return made


class Book:
    def __init__(self) -> None:
        self.metrics, self.out = Metrics(), io.StringIO()
        self.recorder = RequestRecorder(self.metrics, AccessLog(self.out))

    @property
    def lines(self) -> int:
        return self.out.getvalue().count("\n")


@pytest.fixture
async def book() -> Book:
    return Book()


async def test_a_request_is_posted_after_a_moment(book: Book) -> None:
    book.recorder.add(record())
    assert book.lines == 0
    await until(lambda: book.lines == 1)
    assert book.metrics.requests.series == {("messages", "other", "200"): 1}


async def test_many_are_posted_at_once(book: Book) -> None:
    for _ in range(BATCH):
        book.recorder.add(record())
    assert book.lines == BATCH


async def test_whoever_looks_has_it_up_to_date_and_nothing_is_posted_twice(book: Book) -> None:
    book.recorder.add(record())
    book.recorder.post()
    book.recorder.post()
    assert book.lines == 1
    assert json.loads(book.out.getvalue())["request_id"] == "req_1"


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
    ("members", "look", "expected"),
    COUNTS,
    ids=[" ".join(case[0]) or "duration" for case in COUNTS],
)
async def test_counts(
    book: Book, members: dict[str, object], look: Callable[[Metrics], object], expected: object
) -> None:
    book.recorder.add(record(**members))
    book.recorder.post()
    assert look(book.metrics) == expected


def test_tokens_are_counted_as_limits_count_them() -> None:
    assert (
        record(input_tokens=7, output_tokens=3, cache_read_tokens=2, has_usage=True).tokens(100)
        == 12
    )
    assert record(output_tokens=3).tokens(100) == 103
    assert record().tokens(100) == 0


async def test_names_that_clients_made_up_make_no_series_without_end(book: Book) -> None:
    for number in range(2 * DROPPED_NAMES_MAX):
        book.recorder.add(record(dropped=(f"name_{number}",)))
    book.recorder.add(record(dropped=("name_0",)))
    book.recorder.post()
    counted = book.metrics.dropped.series
    assert len(counted) == DROPPED_NAMES_MAX + 1
    assert (counted[("name_0",)], counted[("other",)]) == (2, DROPPED_NAMES_MAX)
