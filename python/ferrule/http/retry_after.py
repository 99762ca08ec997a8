"""Reads a backend's `retry-after`: a number of seconds, or an HTTP date (RFC 9110 10.2.3)."""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime


def parse_retry_after(value: str | None, wall_now: float) -> float:
    """Seconds to wait; 0 if the header is absent or unreadable. `wall_now`: Unix seconds."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, date.timestamp() - wall_now)
