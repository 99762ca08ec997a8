"""`ferrule check`: surveys the backends, reports what the proxy will do, and lists problems with
their paths.

Nothing is generated unless a probe is asked for.
"""

from __future__ import annotations

import sys

from ferrule.check.admission import read_keys, store_trouble, unused_keys
from ferrule.check.problems import find_problems
from ferrule.check.report import render
from ferrule.check.survey import run_survey
from ferrule.config import Config


async def run(config: Config, *, probes: bool = False) -> int:
    """Prints problems and warnings on standard error and then the report on standard output.
    Returns the exit status; warnings leave it at 0. Raises ConfigError."""
    tenants, found = read_keys(config)
    survey = await run_survey(config, probes=probes, progress=_progress)
    found += [*await store_trouble(config), *find_problems(config, survey)]
    for problem in found:
        print(f"ferrule check: {problem}", file=sys.stderr)
    for warning in [] if tenants is None else unused_keys(config, tenants, survey.catalog):
        print(f"ferrule check: warning: {warning}", file=sys.stderr)
    print(render(config, survey))
    return 1 if found else 0


def _progress(text: str) -> None:
    """One line that replaces itself on a terminal; elsewhere nothing, since nobody watches it."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
