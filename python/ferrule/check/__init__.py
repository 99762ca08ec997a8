"""`ferrule check`: asks every backend what it can do, says what the proxy will therefore do, and what is wrong, each with its place.

Nothing is generated unless a probe is asked for.
"""

from __future__ import annotations

import sys

from ferrule.check.findings import problems
from ferrule.check.inquiry import inquire
from ferrule.check.report import report
from ferrule.config import Config


async def run(config: Config, *, probes: bool = False) -> int:
    """Prints the report on standard output and problems on standard error. Returns the exit status. Raises ConfigError."""
    inquiry = await inquire(config, probes=probes, progress=_progress)
    print(report(config, inquiry))
    found = problems(config, inquiry)
    for problem in found:
        print(f"ferrule check: {problem}", file=sys.stderr)
    return 1 if found else 0


def _progress(text: str) -> None:
    """One line that replaces itself on a terminal; elsewhere nothing, since nobody watches it."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
