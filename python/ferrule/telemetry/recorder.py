"""Counts and logs finished requests in batches: one by one would cost three times as much.

A batch waits for 20 ms at most; `post` is called before anybody reads the counts.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from ferrule.telemetry.accesslog import AccessLog
from ferrule.telemetry.metrics import Metrics
from ferrule.telemetry.request_record import OTHER, RequestRecord

POST_AFTER_S = 0.02
BATCH = 64
DROPPED_NAMES_MAX = 100
"""Clients name what is dropped, so the names past this many are counted as `other`."""


Alike = tuple[str, str, int, str | None, str | None, str | None, bool, bool]


class RequestRecorder:
    def __init__(self, metrics: Metrics, access_log: AccessLog) -> None:
        self._metrics = metrics
        self._access_log = access_log
        self._open: list[RequestRecord] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, record: RequestRecord) -> None:
        """Adds a record that no longer changes."""
        self._open.append(record)
        if len(self._open) >= BATCH:
            self.post()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(POST_AFTER_S, self.post)

    def post(self) -> None:
        """Counts and logs what has been added."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        records, self._open = self._open, []
        if records:
            alike: defaultdict[Alike, list[RequestRecord]] = defaultdict(list)
            for record in records:
                alike[
                    record.route,
                    record.label,
                    record.status,
                    record.pool,
                    record.branch,
                    record.end_reason,
                    record.stream,
                    record.has_outcome,
                ].append(record)
            for same in alike.values():
                self._count(same)
            self._access_log.write(records)

    def _count(self, alike: list[RequestRecord]) -> None:
        """Requests that go into the same series."""
        metrics, one, number = self._metrics, alike[0], len(alike)
        metrics.requests.inc(one.route, one.label, str(one.status), by=number)
        if one.branch and one.pool:
            metrics.decisions.inc(one.pool, one.branch, by=number)
        if one.has_outcome:
            metrics.tokens.inc(
                one.label, "input", by=sum([record.input_tokens for record in alike])
            )
            metrics.tokens.inc(
                one.label, "output", by=sum([record.output_tokens for record in alike])
            )
            metrics.tokens.inc(
                one.label, "cache_read", by=sum([record.cache_read_tokens for record in alike])
            )
        if one.stream and one.end_reason:
            metrics.stream_ends.inc(one.end_reason, by=number)
        metrics.duration.observe_all(
            [record.ended_at - record.received_at for record in alike], one.route
        )
        metrics.overhead.observe_all(
            [_overhead_s(record) for record in alike if record.sent_at], "request"
        )
        first_token = [
            record.first_event_at - record.received_at for record in alike if record.first_event_at
        ]
        metrics.first_token.observe_all(first_token, one.label)
        for record in alike:
            if record.queued_s:
                metrics.queue_wait.observe(record.queued_s)
            for parameter in record.dropped:
                metrics.dropped.inc(self._dropped_label(parameter))

    def _dropped_label(self, parameter: str) -> str:
        known = self._metrics.dropped.series
        return parameter if (parameter,) in known or len(known) < DROPPED_NAMES_MAX else OTHER


def _overhead_s(record: RequestRecord) -> float:
    """The proxy's own time until the request went out, without waiting for a slot or a
    connection."""
    return max(0.0, record.sent_at - record.received_at - record.queued_s - record.connected_s)
