"""Collects what translation dropped: names for the `x-ferrule-dropped` header and lines for the
log, each once and in order."""

from __future__ import annotations

import re

NAMES_MAX = 32
"""A request can hold thousands of unknown names; more would not fit a header."""

_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Diagnostics:
    """For one request. Names come from clients, so only plain ones reach a header or a log."""

    def __init__(self) -> None:
        self.dropped: tuple[str, ...] = ()
        self.warnings: tuple[str, ...] = ()

    def drop(self, name: str) -> None:
        """Records that something the client may rely on was left out."""
        self.dropped = _with(self.dropped, _plain(name))

    def warn(self, name: str, why: str) -> None:
        self.warnings = _with(self.warnings, f"{_plain(name)}: {why}")


def _with(diagnostics: tuple[str, ...], loss: str) -> tuple[str, ...]:
    return (
        diagnostics
        if len(diagnostics) >= NAMES_MAX or loss in diagnostics
        else (*diagnostics, loss)
    )


def _plain(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else "unknown"
