"""The process's log: on standard error, at the given level, and silent about connections."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from ferrule.telemetry.logs import LEVELS, set_up


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.mark.parametrize("level", LEVELS)
def test_levels(level: str) -> None:
    set_up(level)
    assert logging.getLogger("ferrule.x").getEffectiveLevel() == getattr(logging, level.upper())


def test_it_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("debug")
    logging.getLogger("ferrule.x").info("hello")
    logging.getLogger("asyncio").info("127.0.0.1")
    output = capsys.readouterr()
    assert output.out == ""
    assert "INFO ferrule.x: hello" in output.err
    assert "127.0.0.1" not in output.err
