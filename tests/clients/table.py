"""A pytest plugin, for the conftest that wants it: tests marked `cell(row, column)` end in a table
of what held."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

_cells: dict[tuple[str, str], str] = {}
_reasons: dict[str, str] = {}


def use(config: pytest.Config) -> None:
    """Called by a conftest's `pytest_configure`; more than one may ask for it."""
    if not config.pluginmanager.has_plugin("table"):
        config.pluginmanager.register(sys.modules[__name__], "table")
        config.addinivalue_line(
            "markers", "cell(row, column): where the result stands in the table"
        )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome = yield
    report: pytest.TestReport = outcome.get_result()  # type: ignore[attr-defined]
    cell = item.get_closest_marker("cell")
    if cell is None or (report.when != "call" and report.passed):
        return
    row, column = cell.args
    result = {"passed": "yes", "skipped": "skipped"}.get(report.outcome, "NO")
    # several tests may share a cell: the worst of them is shown
    _cells[row, column] = "NO" if _cells.get((row, column)) == "NO" else result
    if report.skipped and isinstance(report.longrepr, tuple):
        _reasons[row] = report.longrepr[2].removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _cells:
        return
    rows = list(dict.fromkeys(row for row, _ in _cells))
    columns = list(dict.fromkeys(column for _, column in _cells))
    across = len(rows) < len(columns)
    heads, sides = (rows, columns) if across else (columns, rows)
    terminalreporter.section("through ferrule")
    terminalreporter.write_line(f"{'':26s}" + "".join(f"{head:>14s}" for head in heads))
    for side in sides:
        keys = [(head, side) if across else (side, head) for head in heads]
        terminalreporter.write_line(
            f"{side:26s}" + "".join(f"{_cells.get(key, '-'):>14s}" for key in keys)
        )
    for row, reason in _reasons.items():
        terminalreporter.write_line(f"{row}: {reason}")
