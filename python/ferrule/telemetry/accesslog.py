"""One line per request, once it is settled: JSON for machines, a short line for people on a terminal. No prompt, no key, ever."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import lru_cache
from time import gmtime, localtime, strftime
from typing import TextIO

import msgspec

from ferrule.telemetry.record import Record

NAME_CHARS_MAX = 200


class _Line(msgspec.Struct):
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
        self._format = _for_people if self._out.isatty() else _for_machines

    def write(self, records: Iterable[Record]) -> None:
        """Several lines in one write: a write for each would be a good part of a request's cost."""
        text = "".join(f"{self._format(record)}\n" for record in records)
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError):
            pass  # nobody reads the log any more, which is no reason to stop serving


def _for_machines(record: Record) -> str:
    line = _Line(
        time=f"{_utc(int(record.at))}.{int(record.at * 1000) % 1000:03d}Z",
        request_id=record.request_id,
        route=record.route,
        status=record.status,
        model=record.model[:NAME_CHARS_MAX] if record.model else None,
        tenant=record.tenant,
        pool=record.pool,
        backend=record.backend,
        branch=record.branch,
        stream=record.stream,
        input_tokens=record.input_tokens,
        output_tokens=record.output_tokens,
        cache_read_tokens=record.cache_read_tokens,
        duration_s=round(record.ended_at - record.received_at, 6),
        first_event_s=round(record.first_event_at - record.received_at, 6) if record.first_event_at else None,
        queued_s=round(record.queued_s, 6),
        stop_reason=record.stop_reason,
        end_reason=record.end_reason,
        error=record.error,
        dropped=record.dropped or None,
    )
    return _encode(line).decode("utf-8", "replace")


def _for_people(record: Record) -> str:
    what = f"{record.status} {record.route}"
    where = f"{record.model or '-'} → {record.backend} ({record.branch})" if record.backend else record.model or "-"
    tokens = f"{record.input_tokens}+{record.cache_read_tokens} in, {record.output_tokens} out" if record.has_outcome else ""
    ending = record.error or record.stop_reason or ""
    took = f"{record.ended_at - record.received_at:.3f} s"
    return f"{strftime('%H:%M:%S', localtime(record.at))} {what:22} {where} {tokens} {took} {ending} {record.request_id}"


_encode = msgspec.json.Encoder().encode


@lru_cache(maxsize=4)
def _utc(second: int) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S", gmtime(second))
