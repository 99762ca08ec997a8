"""The stack for each module of client tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.clients import table
from tests.clients.stack import Stack
from tests.doubles.loop_thread import LoopThread
from tests.doubles.proxy import Ferrule


def pytest_configure(config: pytest.Config) -> None:
    table.use(config)


@pytest.fixture(scope="module")
def stack(loop_thread: LoopThread, new_proxy: Callable[..., Ferrule]) -> Iterator[Stack]:
    made = Stack(loop_thread, new_proxy)
    yield made
    made.stop()
