"""Counts and logs finished requests in batches: one at a time would cost three times as much.

A batch waits for 20 ms at most. `flush` must be called before the counts are read.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from ferrule.telemetry.accesslog import AccessLog
from ferrule.telemetry.metrics import Metrics
from ferrule.telemetry.request_record import OTHER, RequestRecord

FLUSH_AFTER_S = 0.02
BATCH_RECORDS = 64
DROPPED_NAMES_MAX = 100
"""Clients choose the names of dropped parameters; names past this many are counted as `other`."""

SeriesKey = tuple[str, str, int, str | None, str | None, str | None, bool, bool]
"""What `flush` groups by: records that are equal in it count into the same series."""


class RequestRecorder:
    def __init__(self, metrics: Metrics, access_log: AccessLog) -> None:
        self._metrics = metrics
        self._access_log = access_log
        self._pending: list[RequestRecord] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, record: RequestRecord) -> None:
        """Adds a record that no longer changes."""
        self._pending.append(record)
        if len(self._pending) >= BATCH_RECORDS:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_AFTER_S, self.flush)

    def flush(self) -> None:
        """Counts and logs the records added so far."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        records, self._pending = self._pending, []
        if records:
            groups: defaultdict[SeriesKey, list[RequestRecord]] = defaultdict(list)
            for record in records:
                groups[
                    record.route,
                    record.label,
                    record.status,
                    record.pool,
                    record.branch,
                    record.end_reason,
                    record.stream,
                    record.has_outcome,
                ].append(record)
            for group in groups.values():
                self._count(group)
            self._access_log.write(records)

    def _count(self, group: list[RequestRecord]) -> None:
        """Counts records that share a SeriesKey."""
        metrics, first, number = self._metrics, group[0], len(group)
        metrics.requests.inc(first.route, first.label, str(first.status), by=number)
        if first.branch and first.pool:
            metrics.decisions.inc(first.pool, first.branch, by=number)
        if first.has_outcome:
            metrics.tokens.inc(
                first.label, "input", by=sum([record.input_tokens for record in group])
            )
            metrics.tokens.inc(
                first.label, "output", by=sum([record.output_tokens for record in group])
            )
            metrics.tokens.inc(
                first.label, "cache_read", by=sum([record.cache_read_tokens for record in group])
            )
        if first.stream and first.end_reason:
            metrics.stream_ends.inc(first.end_reason, by=number)
        metrics.duration.observe_all(
            [record.ended_at - record.received_at for record in group], first.route
        )
        metrics.overhead.observe_all(
            [_overhead_s(record) for record in group if record.sent_at], "request"
        )
        first_token = [
            record.first_event_at - record.received_at for record in group if record.first_event_at
        ]
        metrics.first_token.observe_all(first_token, first.label)
        for record in group:
            if record.queued_s:
                metrics.queue_wait.observe(record.queued_s)
            for parameter in record.dropped:
                metrics.dropped.inc(self._label_dropped(parameter))

    def _label_dropped(self, parameter: str) -> str:
        known = self._metrics.dropped.series
        return parameter if (parameter,) in known or len(known) < DROPPED_NAMES_MAX else OTHER


def _overhead_s(record: RequestRecord) -> float:
    """The proxy's own time until the request was sent, excluding waits for a slot and a
    connection."""
    return max(0.0, record.sent_at - record.received_at - record.queued_s - record.connected_s)
