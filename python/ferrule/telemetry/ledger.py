"""Requests that are over, counted and logged a batch at a time: done one by one between other work it would cost three times as much.

Nothing waits longer than a moment, and whoever looks at the counts has the ledger brought up to date first.
"""

from __future__ import annotations

import asyncio

from ferrule.telemetry.accesslog import AccessLog
from ferrule.telemetry.metrics import Metrics
from ferrule.telemetry.record import OTHER, Record

POST_AFTER_S = 0.02
BATCH = 64
DROPPED_NAMES_MAX = 100
"""Clients name what is dropped, so the names past this many are counted as `other`."""


class Ledger:
    def __init__(self, metrics: Metrics, access_log: AccessLog) -> None:
        self._metrics = metrics
        self._access_log = access_log
        self._open: list[Record] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, record: Record) -> None:
        """Takes a record that no longer changes."""
        self._open.append(record)
        if len(self._open) >= BATCH:
            self.post()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(POST_AFTER_S, self.post)

    def post(self) -> None:
        """Brings counts and log up to date."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        records, self._open = self._open, []
        if records:
            for record in records:
                self._count(record)
            self._access_log.write(records)

    def _count(self, record: Record) -> None:
        metrics = self._metrics
        metrics.requests.inc(record.route, record.label, str(record.status))
        metrics.duration.observe(record.ended_at - record.received_at, record.route)
        if record.sent_at:
            waited = record.queued_s + record.connected_s
            metrics.overhead.observe(max(0.0, record.sent_at - record.received_at - waited), "request")
        if record.first_event_at:
            metrics.first_token.observe(record.first_event_at - record.received_at, record.label)
        if record.queued_s:
            metrics.queue_wait.observe(record.queued_s)
        if record.branch and record.pool:
            metrics.decisions.inc(record.pool, record.branch)
        if record.has_outcome:
            metrics.tokens.inc(record.label, "input", by=record.input_tokens)
            metrics.tokens.inc(record.label, "output", by=record.output_tokens)
            metrics.tokens.inc(record.label, "cache_read", by=record.cache_read_tokens)
        for parameter in record.dropped:
            metrics.dropped.inc(self._dropped_label(parameter))
        if record.stream and record.end_reason:
            metrics.stream_ends.inc(record.end_reason)

    def _dropped_label(self, parameter: str) -> str:
        known = self._metrics.dropped.series
        return parameter if (parameter,) in known or len(known) < DROPPED_NAMES_MAX else OTHER
