"""The proxy's own processes under load: ended, reloaded, killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.doubles.backend import ScriptedBackend
from tests.doubles.proxy import Ferrule, config_for
from tests.e2e.test_cases_limits import bearer, key_entry, write_keys
from tests.resilience.crowd import SESSION, Crowd, bad, crowd, until
from tests.resilience.engines import Sim

LIVE_STREAMS = 200
WIDE = {"slots": 1000, "max_inflight": 1000}


async def running(clients: Crowd, count: int, tokens: int) -> list[asyncio.Task[object]]:
    """Starts streams and waits until all have begun."""
    live = [asyncio.create_task(clients.stream(f"live-{n}", tokens)) for n in range(count)]
    await until(
        lambda: len(clients.turns) >= count and all(turn.moments for turn in clients.turns),
        10,
        "all streams to run",
    )
    return live  # type: ignore[return-value]


@pytest.mark.parametrize("workers", [1, 2])
async def test_sigterm_with_200_live_streams(steady_sim: Sim, tmp_path: Path, workers: int) -> None:
    with Ferrule(
        config_for(steady_sim.url, pool=WIDE, workers=workers, drain_grace_s=20), tmp_path
    ) as proxy:
        async with crowd(proxy) as clients:
            live = await running(clients, LIVE_STREAMS, 80)
            proxy.signal(signal.SIGTERM)
            await until(lambda: proxy.readyz() == 503, 0.5, "/readyz 503 at once")
            assert "draining" in (await asyncio.to_thread(proxy.admin_get, "/readyz")).text
            assert (await asyncio.to_thread(proxy.admin_get, "/livez")).status == 200
            late = await asyncio.gather(*(clients.stream(f"late-{n}", 2) for n in range(20)))
            assert {turn.failure for turn in late} == {None}, "no connection is refused or cut"
            assert {turn.status for turn in late} <= {200, 529}
            await asyncio.gather(*live)
            assert bad(clients.turns[:LIVE_STREAMS]) == []
        assert await asyncio.to_thread(proxy.process.wait, 5) == 0


@pytest.mark.parametrize("by", ["signal", "change"])
async def test_reload_touches_no_stream(
    steady_sim: Sim, new_backend: Callable[..., ScriptedBackend], tmp_path: Path, by: str
) -> None:
    """Other backends, other keys, other bounds, twice; the key and the backend of the running
    streams are gone."""
    other = new_backend()
    keys = write_keys(tmp_path, key_entry("old"))

    def configured(url: str, **pool: object) -> dict[str, object]:
        return config_for(url, pool={**WIDE, **pool}, workers=2, auth={"keys_file": keys})

    with Ferrule(configured(steady_sim.url), tmp_path) as proxy:
        async with crowd(proxy) as clients:
            clients.http.headers.update(bearer("old"))
            live = await running(clients, 100, 70)
            write_keys(tmp_path, key_entry("new"))
            proxy.write_config(configured(other.url, slots=7))
            if by == "signal":
                proxy.signal(signal.SIGHUP)
            await until(lambda: proxy.ask(headers=bearer("new")).status == 200, 4, "the new key")
            await until(
                lambda: all(proxy.ask(headers=bearer("old")).status == 401 for _ in range(16)),
                4,
                "the old key's end in every worker",
            )
            proxy.write_config({"pools": {}})
            proxy.signal(signal.SIGHUP)
            await until(lambda: "pools" in proxy.log(), 4, "the refusal of a bad file")
            assert {
                turn.status
                for turn in await asyncio.gather(
                    *(clients.ask(headers=bearer("new")) for _ in range(8))
                )
            } == {200}
            await asyncio.gather(*live)
            assert bad(clients.turns[:100]) == []
        await until(
            lambda: proxy.metric("backend_healthy") == 1, 5, "the drained backend to be forgotten"
        )


async def test_a_killed_worker_is_replaced_under_load(steady_sim: Sim, tmp_path: Path) -> None:
    """Its own streams end; the others', the counts and the concurrency slots do not suffer."""
    keys = write_keys(tmp_path, key_entry("four", concurrency=4), key_entry("free"))
    with Ferrule(
        config_for(steady_sim.url, pool=WIDE, workers=2, auth={"keys_file": keys}), tmp_path
    ) as proxy:
        async with crowd(proxy) as clients:
            clients.http.headers.update(bearer("free"))
            four = [
                asyncio.create_task(clients.stream(f"four-{n}", 80, headers=bearer("four")))
                for n in range(4)
            ]
            live = await running(clients, 60, 80)
            assert (await clients.ask(headers=bearer("four"))).status == 429
            before = await asyncio.to_thread(counted, proxy)
            status = await asyncio.to_thread(proxy.status)
            victim = status["workers"][0]
            os.kill(victim["pid"], signal.SIGKILL)
            await until(lambda: len(pids(proxy) - {victim["pid"]}) == 2, 10, "a new worker")
            await until(lambda: proxy.readyz() == 200, 5, "readiness")
            after = await asyncio.to_thread(counted, proxy)
            assert all(after[name] >= before[name] for name in before), (before, after)
            await asyncio.gather(*four, *live)
            ended = [turn for turn in clients.turns if turn.failure is not None]
            assert len(ended) == victim["streams_active"]
            assert (
                bad(turn for turn in clients.turns if turn.status == 200 and turn.failure is None)
                == []
            )
            refilled = await asyncio.gather(
                *(clients.stream(f"again-{n}", 10, headers=bearer("four")) for n in range(12))
            )
            assert sorted(turn.status for turn in refilled) == [200] * 4 + [429] * 8
        await until(lambda: counted(proxy)["requests"] > before["requests"], 5, "counts that go on")
        proxy.wait_for_metric("streams_active", 0)
        proxy.wait_for_metric("backend_inflight", 0)


def counted(proxy: Ferrule) -> dict[str, float]:
    return {
        "requests": proxy.metric("requests_total"),
        "tokens": proxy.metric("tokens_total"),
        "ends": proxy.metric("stream_end_total"),
    }


def pids(proxy: Ferrule) -> set[int]:
    return {worker["pid"] for worker in json.loads(proxy.admin_get("/status").text)["workers"]}


@pytest.mark.slow
async def test_a_worker_that_dies_again_and_again(steady_sim: Sim, tmp_path: Path) -> None:
    with Ferrule(config_for(steady_sim.url, workers=2), tmp_path) as proxy:
        before = 0.0
        for n in range(2):
            for worker in await asyncio.to_thread(pids, proxy):
                os.kill(worker, signal.SIGKILL)
            await until(
                lambda: len(pids(proxy)) == 2 and proxy.readyz() == 200, 15, "two new workers"
            )
            assert (
                proxy.ask(
                    headers={SESSION: str(n)},
                    messages=[{"role": "user", "content": "[[tokens:1]]"}],
                ).status
                == 200
            )
            now = await asyncio.to_thread(proxy.metric, "requests_total")
            assert now == before + 1
            before = now
