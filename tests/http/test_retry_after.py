"""`retry-after` in all its forms."""

import pytest

from ferrule.http.retry_after import parse_retry_after


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        (" 120 ", 120.0),
        ("0", 0.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 7.0),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 7.0),
        ("Sun Nov  6 08:49:37 1994", 7.0),
        ("Sun, 06 Nov 1994 08:49:00 GMT", 0.0),
        ("soon", 0.0),
        ("", 0.0),
        (None, 0.0),
        ("-1", 0.0),
        ("٣", 0.0),
        ("Sun, 99 Nov 1994 08:49:37 GMT", 0.0),
    ],
)
def test_j13_retry_after_is_seconds_or_an_http_date(value: str | None, seconds: float) -> None:
    assert parse_retry_after(value, wall_now=784111770.0) == seconds
