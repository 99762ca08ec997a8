"""The stack for each module of client tests, and the table that ends `make test-clients`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.clients.stack import Stack
from tests.doubles.loop_thread import LoopThread
from tests.doubles.proxy import Ferrule

_cells: dict[tuple[str, str], str] = {}
_reasons: dict[str, str] = {}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cell(client, scenario): where the result stands in the table")


@pytest.fixture(scope="module")
def stack(loop_thread: LoopThread, new_proxy: Callable[..., Ferrule]) -> Iterator[Stack]:
    made = Stack(loop_thread, new_proxy)
    yield made
    made.stop()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome = yield
    report: pytest.TestReport = outcome.get_result()  # type: ignore[attr-defined]
    cell = item.get_closest_marker("cell")
    if cell is None or (report.when != "call" and report.passed):
        return
    client, scenario = cell.args
    _cells[client, scenario] = {"passed": "yes", "skipped": "skipped"}.get(report.outcome, "NO")
    if report.skipped and isinstance(report.longrepr, tuple):
        _reasons[client] = report.longrepr[2].removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _cells:
        return
    clients = list(dict.fromkeys(client for client, _ in _cells))
    scenarios = list(dict.fromkeys(scenario for _, scenario in _cells))
    terminalreporter.section("real clients through ferrule")
    terminalreporter.write_line(f"{'':24s}" + "".join(f"{scenario:>11s}" for scenario in scenarios))
    for client in clients:
        terminalreporter.write_line(f"{client:24s}" + "".join(f"{_cells.get((client, one), '-'):>11s}" for one in scenarios))
    for client, reason in _reasons.items():
        terminalreporter.write_line(f"{client}: {reason}")
