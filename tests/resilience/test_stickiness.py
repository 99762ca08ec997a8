"""One session, one backend: whatever the route, the form of the answer, the worker or the
replica."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.doubles.backend import ScriptedBackend
from tests.doubles.proxy import Ferrule, config_for
from tests.resilience.crowd import SESSION

UUID = "3f0c3f5e-7a34-4c8b-9d2e-0123456789a"
SESSIONS = 12
ROUNDS = 3
WIDE = {"slots": 1000, "max_inflight": 1000}

BackendPool = tuple[list[Ferrule], list[ScriptedBackend]]


@pytest.fixture(scope="module")
def replicas(
    new_backend: Callable[..., ScriptedBackend], new_proxy: Callable[..., Ferrule]
) -> BackendPool:
    """Two replicas with two workers each, over the same four backends."""
    backends = [new_backend() for _ in range(4)]
    config = config_for(*(backend.url for backend in backends), pool=WIDE, workers=2)
    shuffled = config_for(*(backend.url for backend in reversed(backends)), pool=WIDE, workers=2)
    return [new_proxy(config), new_proxy(shuffled)], backends


def by_header(n: int) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
    return {SESSION: f"{UUID}{n:x}"}, {}, {}


def by_user(n: int) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
    user = json.dumps({"device_id": "d" * 64, "session_id": f"{UUID}{n:x}"})
    return {}, {"metadata": {"user_id": user}}, {"user": user}


def by_opening(n: int) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
    opening = {"messages": [{"role": "user", "content": f"opening {n}"}]}
    return {}, opening, opening


@pytest.mark.parametrize("keyed", [by_header, by_user, by_opening])
def test_one_session_one_backend(replicas: BackendPool, keyed: Callable[[int], Any]) -> None:
    proxies, backends = replicas
    homes = set()
    for n in range(SESSIONS):
        headers, messages, chat = keyed(n)
        for backend in backends:
            backend.reset()
        with ThreadPoolExecutor(12) as threads:
            asked = [
                threads.submit(ask, proxy, headers, messages, chat)
                for proxy in proxies
                for _ in range(ROUNDS)
            ]
            assert [done.result() for done in asked] == [[200] * 5] * len(asked)
        served = [len(backend.requests) for backend in backends]
        counted = [
            len([seen for seen in backend.others if seen.target == "/tokenize"])
            for backend in backends
        ]
        assert sorted(served) == [0, 0, 0, 4 * ROUNDS * 2]
        assert sorted(counted) == [0, 0, 0, ROUNDS * 2]
        assert served.index(max(served)) == counted.index(max(counted))
        homes.add(served.index(max(served)))
    assert len(homes) >= 3, "sessions are spread"


def ask(
    proxy: Ferrule, headers: Mapping[str, str], messages: dict[str, Any], chat: dict[str, Any]
) -> list[int]:
    """Every request on a connection of its own, so that it may come to either worker."""
    return [
        proxy.ask(headers=headers, **messages).status,
        proxy.ask(headers=headers, stream=True, **messages).status,
        proxy.ask("/v1/chat/completions", headers=headers, **chat).status,
        proxy.ask("/v1/chat/completions", headers=headers, stream=True, **chat).status,
        proxy.ask("/v1/messages/count_tokens", headers=headers, **messages).status,
    ]
