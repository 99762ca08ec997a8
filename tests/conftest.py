"""Fixtures that every test may ask for: doubles that live as long as the run, and the proxy as a
process for a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.backend import ScriptedBackend
from tests.doubles.loop_thread import LoopThread
from tests.doubles.proxy import Ferrule, config_for


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[LoopThread]:
    threads = LoopThread()
    yield threads
    threads.close()


@pytest.fixture(scope="module")
def new_backend(loop_thread: LoopThread) -> Iterator[Callable[..., ScriptedBackend]]:
    """Makes scripted backends that end with the module."""
    made: list[ScriptedBackend] = []

    def make(**options: Any) -> ScriptedBackend:
        made.append(ScriptedBackend(loop_thread, **options))
        return made[-1]

    yield make
    for backend in made:
        backend.stop()


@pytest.fixture(scope="module")
def new_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Ferrule]]:
    """Starts proxies that end with the module, and must then end with status 0."""
    made: list[Ferrule] = []

    def make(config: dict[str, Any] | None, **options: Any) -> Ferrule:
        folder: Path = tmp_path_factory.mktemp("ferrule")
        made.append(Ferrule(config, folder, **options))
        return made[-1]

    yield make
    for proxy in reversed(made):
        proxy.stop()


@pytest.fixture(scope="session")
def shared_backend(loop_thread: LoopThread) -> Iterator[ScriptedBackend]:
    backend = ScriptedBackend(loop_thread)
    yield backend
    backend.stop()


@pytest.fixture
def backend(shared_backend: ScriptedBackend) -> ScriptedBackend:
    """The one backend behind `proxy`, its script and record cleared."""
    shared_backend.reset()
    return shared_backend


@pytest.fixture(scope="session")
def shared_proxy(
    tmp_path_factory: pytest.TempPathFactory, shared_backend: ScriptedBackend
) -> Iterator[Ferrule]:
    with Ferrule(config_for(shared_backend.url), tmp_path_factory.mktemp("ferrule")) as running:
        yield running


@pytest.fixture
def proxy(shared_proxy: Ferrule, backend: ScriptedBackend) -> Ferrule:
    """The proxy of most tests: dialect `anthropic`, `backend` behind it. For tests that leave
    nothing behind in it."""
    return shared_proxy
