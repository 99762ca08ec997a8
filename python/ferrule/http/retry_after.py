"""How long a backend asks to be left alone: `retry-after` is a number of seconds, or an HTTP date
(RFC 9110 10.2.3)."""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime


def parse_retry_after(value: str | None, wall_now: float) -> float:
    """From the header's value (None: absent) to seconds; 0 for what cannot be read. `wall_now`:
    seconds since 1970."""
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
