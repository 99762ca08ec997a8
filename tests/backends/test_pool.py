"""One pool, alive: who is in it, what is learnt of them, and what a reload changes."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import pytest
from tests.app_state import config_of, running_pool, until
from tests.doubles.backend import ScriptedBackend, whole
from tests.doubles.proxy import free_port

from ferrule.backends.pool import DISCOVER_MODELS_EVERY_S, BackendPool
from ferrule.catalog import DiscoveredModels, ListedModel


def names(pool: BackendPool) -> list[str]:
    return [backend.name for backend in pool.balancer.backends]


async def test_it_becomes_ready_and_tells_what_it_offers_once(backend: ScriptedBackend) -> None:
    received: list[tuple[str, DiscoveredModels]] = []
    async with running_pool(
        config_of(backend.url), lambda pool, discovered: received.append((pool, discovered))
    ) as pool:
        await until(lambda: received)
        assert pool.is_ready(monotonic())
        assert received == [("p", pool.discovered)]
        assert pool.discovered.models == (ListedModel("m", 32768, 1),)
        asked = len(backend.others)
        pool.sweep(monotonic() + DISCOVER_MODELS_EVERY_S + 10)
        await until(lambda: len(backend.others) > asked)
        assert len(received) == 1


async def test_a_backend_that_is_down_is_not_asked_further(backend: ScriptedBackend) -> None:
    backend.routes["GET", "/health"] = whole({}, 503)
    async with running_pool(config_of(backend.url)) as pool:
        assert {seen.target for seen in backend.others} == {"/health"}
        assert not pool.is_ready(monotonic())


async def test_it_says_why_a_backend_is_down_and_when_it_is_back(
    backend: ScriptedBackend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ferrule.backends.pool")
    backend.routes["GET", "/health"] = whole({}, 503)
    async with running_pool(
        config_of(backend.url.replace("http://", "http://user:secret@"))
    ) as pool:
        (shown,) = pool.view(monotonic()).backends
        assert (shown.state, shown.reason) == ("down", "GET /health: HTTP 503")
        backend.routes["GET", "/health"] = whole({})
        for later_s in (100, 200):
            pool.sweep(monotonic() + later_s)
            await until(lambda: not any(member.has_probe for member in pool._entries.values()))
        (shown,) = pool.view(monotonic()).backends
        assert (shown.state, shown.reason) == ("up", None)
    received = [(record.levelname, record.message) for record in caplog.records]
    name = f"backend {shown.name} ({backend.url})"
    assert received == [
        ("WARNING", f"{name} is down: GET /health: HTTP 503"),
        ("INFO", f"{name} is up"),
    ]


async def test_models_of_all_its_backends(
    backend: ScriptedBackend, new_backend: Callable[..., ScriptedBackend]
) -> None:
    other = new_backend(model="n", max_model_len=5)
    async with running_pool(config_of(backend.url, other.url)) as pool:
        await until(lambda: len(pool.discovered.models) == 2)
        assert {listed.id for listed in pool.discovered.models} == {"m", "n"}


async def test_show_puts_gauges_and_a_vanished_backend_takes_its_own_along(
    backend: ScriptedBackend,
) -> None:
    there, gone = backend.url, f"http://127.0.0.1:{free_port()}"
    async with running_pool(config_of(there, gone)) as pool:
        await until(lambda: pool.is_ready(monotonic()))
        pool.update_gauges(monotonic())
        assert {labels[1] for labels in pool.metrics.backend_healthy.series} == set(names(pool))
        kept = next(one.name for one in pool.balancer.backends if one.url == there)
        pool.change(config_of(there).pools["p"])
        await until(lambda: names(pool) == [kept])
        assert {labels[1] for labels in pool.metrics.backend_healthy.series} == {kept}


async def test_a_reload_keeps_what_stays(backend: ScriptedBackend) -> None:
    async with running_pool(config_of(backend.url)) as pool:
        await until(lambda: pool.is_ready(monotonic()))
        upstream = pool.connections(pool.balancer.backends[0])
        pool.change(
            config_of(backend.url, pool={"slots": 7, "queue": {"size": 3, "timeout_s": 4}}).pools[
                "p"
            ]
        )
        assert pool.is_ready(monotonic())
        assert pool.connections(pool.balancer.backends[0]) is upstream
        assert (pool.queue.size, pool.queue.timeout_s) == (3, 4)
        assert pool.view(monotonic()).backends[0].slots == 7


async def test_a_new_key_is_used_from_now_on(backend: ScriptedBackend) -> None:
    async with running_pool(config_of(backend.url, pool={"api_key": "old"})) as pool:
        await until(lambda: pool.is_ready(monotonic()))
        member = pool.balancer.backends[0]
        lent = await pool.connections(member).connect()
        old = pool.connections(member)
        pool.change(config_of(backend.url, pool={"api_key": "new"}).pools["p"])
        assert b"Bearer new" in pool.connections(member).request_head("/", 0)
        assert (await pool.client(member).get("/health", 1.0)).status == 200
        assert backend.others[-1].header("authorization") == "Bearer new"
        old.give_back(lent)
        assert not lent.is_open


async def test_what_the_page_shows(backend: ScriptedBackend) -> None:
    address = backend.url.replace("http://", "http://user:secret@")
    async with running_pool(config_of(address)) as pool:
        await until(lambda: pool.is_ready(monotonic()))
        view = pool.view(monotonic())
        (shown,) = view.backends
        assert (view.name, view.queue_depth, view.discovery_age_s) == ("p", 0, 0.0)
        assert (shown.address, shown.state, shown.healthy, shown.breaker) == (
            backend.url,
            "up",
            True,
            "closed",
        )


@pytest.mark.parametrize("age_s", [1.0, 100.0])
async def test_a_stale_list_is_not_ready(
    backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch, age_s: float
) -> None:
    async with running_pool(config_of(backend.url)) as pool:
        await until(lambda: pool.is_ready(monotonic()))
        monkeypatch.setattr(pool.watcher, "age_s", lambda: age_s)
        monkeypatch.setattr(pool.watcher, "stale_after_s", 50.0)
        assert pool.is_ready(monotonic()) is (age_s < 50)
