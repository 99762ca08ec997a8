"""One line per request, once it is settled: JSON for machines, a short line for people on a terminal. No prompt, no key, ever."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import TextIO

import orjson

from ferrule.telemetry.record import Record

FLUSH_AFTER_S = 0.05
FLUSH_LINES = 64


class AccessLog:
    """Lines are written together, a moment later: a write per request would be a good part of its cost."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._is_for_people = self._out.isatty()
        self._lines: list[str] = []
        self._timer: asyncio.TimerHandle | None = None

    def write(self, record: Record, now: float) -> None:
        """`now`: seconds, monotonic."""
        self._lines.append(_for_people(record, now) if self._is_for_people else _for_machines(record, now))
        if len(self._lines) >= FLUSH_LINES:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_AFTER_S, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, []
        if lines:
            try:
                self._out.write("\n".join(lines) + "\n")
                self._out.flush()
            except (OSError, ValueError):  # nobody reads the log any more: that is no reason to stop serving
                self._lines = []


def _for_machines(record: Record, now: float) -> str:
    line = {
        "time": datetime.fromtimestamp(record.at, UTC).isoformat(timespec="milliseconds"),
        "request_id": record.request_id,
        "route": record.route,
        "status": record.status,
        "model": record.model[:200] if record.model else None,
        "tenant": record.tenant,
        "pool": record.pool,
        "backend": record.backend,
        "branch": record.branch,
        "stream": record.stream,
        "input_tokens": record.input_tokens,
        "output_tokens": record.output_tokens,
        "cache_read_tokens": record.cache_read_tokens,
        "duration_s": round(now - record.received_at, 6),
        "first_event_s": round(record.first_event_at - record.received_at, 6) if record.first_event_at else None,
        "queued_s": round(record.queued_s, 6),
        "stop_reason": record.stop_reason,
        "end_reason": record.end_reason,
        "error": record.error,
        "dropped": record.dropped or None,
    }
    return orjson.dumps(line).decode()


def _for_people(record: Record, now: float) -> str:
    clock = datetime.fromtimestamp(record.at).strftime("%H:%M:%S")
    what = f"{record.status} {record.route}"
    where = f"{record.model or '-'} → {record.backend} ({record.branch})" if record.backend else record.model or "-"
    tokens = f"{record.input_tokens}+{record.cache_read_tokens} in, {record.output_tokens} out" if record.has_outcome else ""
    ending = record.error or record.stop_reason or ""
    return f"{clock} {what:22} {where} {tokens} {now - record.received_at:.3f} s {ending} {record.request_id}"
