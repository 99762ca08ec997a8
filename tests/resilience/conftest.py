"""Engines that end with their test, and proxies whose backends they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.resilience.engines import Sim


@pytest.fixture
def new_sim() -> Iterator[Callable[..., Sim]]:
    made: list[Sim] = []

    def make(**options: Any) -> Sim:
        made.append(Sim(**options))
        return made[-1]

    yield make
    for sim in made:
        sim.kill()


@pytest.fixture(scope="module")
def steady_sim() -> Iterator[Sim]:
    """Twenty tokens a second."""
    sim = Sim(tokens_per_second=20)
    yield sim
    sim.kill()
