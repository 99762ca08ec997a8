"""Engines that live as long as the run, because their start takes half a minute, and the proxy in
front of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.clients import table
from tests.doubles.proxy import Ferrule
from tests.engines.servers import LlamaServer, Vllm


def pytest_configure(config: pytest.Config) -> None:
    table.use(config)


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    server = Vllm(tmp_path_factory.mktemp("vllm"))
    try:
        server.wait_until_up()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def second_vllm(vllm: Vllm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    server = Vllm(tmp_path_factory.mktemp("vllm"))
    try:
        server.wait_until_up()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    server = LlamaServer(tmp_path_factory.mktemp("llama"))
    try:
        server.wait_until_up()
        yield server
    finally:
        server.stop()


def vllm_config(*backends: str, **pool: Any) -> dict[str, Any]:
    """`tiny` leaves a thinking budget to the engine, `tiny-edge` has it held by the proxy."""
    models = [
        {"id": "tiny", "pool": "p", "thinking_budget": "engine", "aliases": ["claude-*"]},
        {"id": "tiny-edge", "pool": "p", "upstream": "tiny", "thinking_budget": "edge"},
    ]
    pools = {"p": {"backends": list(backends), "system_first": True, **pool}}
    return {"dialect": "anthropic", "drain_grace_s": 30, "pools": pools, "models": models}


@pytest.fixture(scope="module")
def proxy(vllm: Vllm, new_proxy: Callable[..., Ferrule]) -> Ferrule:
    return new_proxy(vllm_config(vllm.url))
