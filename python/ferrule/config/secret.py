"""Strings that must not be shown: a backend's key, a password inside a URL.

Only `reveal` returns the text; repr, str, logs and tracebacks with locals show stars.
"""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

import msgspec


class Secret(msgspec.Struct, frozen=True):
    text: str

    def reveal(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __str__(self) -> str:
        return "***"


def redact(url: str) -> str:
    """The URL with its credentials replaced by stars. Of text that is not a URL, everything before
    the last `@` is replaced."""
    if "@" not in url:
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return "***@" + url.rpartition("@")[2]
    if "@" not in parts.netloc:
        return url if parts.netloc else "***@" + url.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc="***@" + parts.netloc.rpartition("@")[2]))
