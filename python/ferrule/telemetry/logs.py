"""Sets up the process's log on standard error. Requests have a log of their own (accesslog)."""

from __future__ import annotations

import logging
import sys

LEVELS = ("debug", "info", "warning", "error")


def set_up(level: str) -> None:
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )
    # asyncio's debug log shows addresses and payload lengths of every connection.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
