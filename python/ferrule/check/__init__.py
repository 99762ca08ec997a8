"""`ferrule check`: surveys the backends, reports what the proxy will do, and lists problems with
their paths.

Backends generate no tokens unless `--probe` is given.
"""

from __future__ import annotations

import sys

from ferrule.check.admission import check_store, find_unused_keys, read_keys
from ferrule.check.problems import find_problems
from ferrule.check.report import render
from ferrule.check.survey import run_survey
from ferrule.config import Config


async def run(config: Config, *, probes: bool = False) -> int:
    """Prints problems and warnings to standard error, then the report to standard output. Returns
    the exit status: 1 for problems, 0 otherwise, warnings included. Raises ConfigError."""
    tenants, problems = read_keys(config)
    survey = await run_survey(config, probes=probes, progress=_progress)
    problems += [*await check_store(config), *find_problems(config, survey)]
    for problem in problems:
        print(f"ferrule check: {problem}", file=sys.stderr)
    for warning in [] if tenants is None else find_unused_keys(config, tenants, survey.catalog):
        print(f"ferrule check: warning: {warning}", file=sys.stderr)
    print(render(config, survey))
    return 1 if problems else 0


def _progress(text: str) -> None:
    """Rewrites one line on a terminal; prints nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
