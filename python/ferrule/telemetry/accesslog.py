"""Writes one line per finished request: JSON, or a short line on a terminal. Never a prompt or a
key."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import lru_cache
from time import gmtime, localtime, strftime
from typing import TextIO

import msgspec

from ferrule.telemetry.request_record import RequestRecord

NAME_CHARS_MAX = 200


class _Line(msgspec.Struct, gc=False):
    """Durations in seconds."""

    time: str
    request_id: str
    route: str
    status: int
    model: str | None
    tenant: str | None
    pool: str | None
    backend: str | None
    branch: str | None
    stream: bool
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    duration_s: float
    first_event_s: float | None
    queued_s: float
    stop_reason: str | None
    end_reason: str | None
    error: str | None
    dropped: tuple[str, ...] | None


class AccessLog:
    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._format = _format_text if self._out.isatty() else _format_json

    def write(self, records: Iterable[RequestRecord]) -> None:
        """Writes all lines at once: one write per line would be a notable part of a request's
        cost."""
        text = self._format(records)
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError):
            pass  # the reader of the log is gone; keep serving


def _format_json(records: Iterable[RequestRecord]) -> str:
    return _encode_lines([_build_line(record) for record in records]).decode("utf-8", "replace")


def _build_line(record: RequestRecord) -> _Line:
    """Passes the fields by position, in the order above: by keyword it would take twice as
    long."""
    wall_s, received_at = record.received_unix_s, record.received_at
    return _Line(
        f"{_format_utc(int(wall_s))}.{int(wall_s * 1000) % 1000:03d}Z",
        record.request_id,
        record.route,
        record.status,
        record.model[:NAME_CHARS_MAX] if record.model else None,
        record.tenant,
        record.pool,
        record.backend,
        record.branch,
        record.stream,
        record.input_tokens,
        record.output_tokens,
        record.cache_read_tokens,
        round(record.ended_at - received_at, 6),
        round(record.first_event_at - received_at, 6) if record.first_event_at else None,
        round(record.queued_s, 6) if record.queued_s else 0.0,
        record.stop_reason,
        record.end_reason,
        record.error,
        record.dropped or None,
    )


def _format_text(records: Iterable[RequestRecord]) -> str:
    return "".join(f"{_format_short(record)}\n" for record in records)


def _format_short(record: RequestRecord) -> str:
    outcome = f"{record.status} {record.route}"
    target = (
        f"{record.model or '-'} → {record.backend} ({record.branch})"
        if record.backend
        else record.model or "-"
    )
    tokens = (
        f"{record.input_tokens}+{record.cache_read_tokens} in, {record.output_tokens} out"
        if record.has_outcome
        else ""
    )
    reason = record.error or record.stop_reason or ""
    clock = strftime("%H:%M:%S", localtime(record.received_unix_s))
    duration = f"{record.ended_at - record.received_at:.3f} s"
    return f"{clock} {outcome:22} {target} {tokens} {duration} {reason} {record.request_id}"


_encode_lines = msgspec.json.Encoder().encode_lines


@lru_cache(maxsize=4)
def _format_utc(second: int) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S", gmtime(second))
