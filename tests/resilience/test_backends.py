"""Machines under a proxy under load: killed, all gone, restarted one after the other, closing
connections in the wrong moment."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable

import pytest
from tests.doubles.backend import ScriptedBackend
from tests.doubles.frames import Canned
from tests.doubles.proxy import Ferrule, config_for
from tests.resilience.crowd import SESSION, Crowd, bad, crowd, until
from tests.resilience.engines import Sim

LIVE_STREAMS = 200
PROBE_S = 2.0
HEALTH = {"interval_s": PROBE_S, "timeout_s": 1}
WIDE = {"slots": 1000, "max_inflight": 1000}


async def test_one_of_three_killed_under_200_live_streams(
    new_sim: Callable[..., Sim], new_proxy: Callable[..., Ferrule]
) -> None:
    sims = [new_sim(tokens_per_second=25) for _ in range(3)]
    proxy = new_proxy(config_for(*(sim.url for sim in sims), pool={"health": HEALTH, **WIDE}))
    async with crowd(proxy) as clients:
        live = [asyncio.create_task(clients.stream(f"live-{n}", 125)) for n in range(LIVE_STREAMS)]
        await until(
            lambda: (
                all(turn.moments for turn in clients.turns) and len(clients.turns) == LIVE_STREAMS
            ),
            10,
            "all streams to run",
        )
        homes = {turn.backend for turn in clients.turns}
        assert len(homes) == 3
        await asyncio.to_thread(sims[0].kill)
        new = await asyncio.gather(*(clients.stream(f"new-{n}", 2) for n in range(60)))
        assert bad(new) == []
        turns = await asyncio.gather(*live)
        ends = {
            home: Counter(turn.last_event for turn in turns if turn.backend == home)
            for home in homes
        }
        lost = [home for home in homes if "error" in ends[home]]
        assert len(lost) == 1, ends
        assert [set(ends[home]) for home in homes - {lost[0]}] == [{"message_stop"}] * 2, ends
        assert set(ends[lost[0]]) == {"error"}, ends
        await asyncio.to_thread(sims[0].start)
        begin = time.monotonic()
        await until(
            lambda: proxy.metric("backend_healthy") == 3, 15, "the killed one to be used again"
        )
        took_s = time.monotonic() - begin
        print(f"used again {took_s:.2f} s after its return, at a probe every {PROBE_S:.0f} s")
        assert took_s <= 2 * PROBE_S
        later = await asyncio.gather(*(clients.stream(f"later-{n}", 2) for n in range(60)))
        assert bad(later) == []
        assert {turn.backend for turn in later} == homes


@pytest.mark.slow
async def test_all_backends_down_then_back(
    new_sim: Callable[..., Sim], new_proxy: Callable[..., Ferrule]
) -> None:
    sims = [new_sim() for _ in range(2)]
    pool = {"health": {"interval_s": 1, "timeout_s": 0.5}, "queue": {"size": 16, "timeout_s": 1}}
    proxy = new_proxy(config_for(*(sim.url for sim in sims), pool=pool))
    async with crowd(proxy) as clients:
        for sim in sims:
            await asyncio.to_thread(sim.kill)
        for streamed in (True, False):
            refused = await asyncio.gather(*(clients.ask(stream=streamed) for _ in range(40)))
            assert {turn.status for turn in refused} == {529}
            assert all(int(turn.headers["retry-after"]) >= 1 for turn in refused)
            assert max(turn.took_s for turn in refused) < 4
        await asyncio.to_thread(proxy.wait_for_readyz, 503, 5)
        for sim in sims:
            await asyncio.to_thread(sim.start)
        await asyncio.to_thread(proxy.wait_for_readyz, 200, 5)
        assert bad(await asyncio.gather(*(clients.stream(f"s{n}", 2) for n in range(40)))) == []


@pytest.mark.slow
async def test_rolling_restart_of_draining_backends(
    new_sim: Callable[..., Sim], new_proxy: Callable[..., Ferrule]
) -> None:
    sims = [new_sim(tokens_per_second=40, drain_s=10) for _ in range(3)]
    proxy = new_proxy(
        config_for(
            *(sim.url for sim in sims), pool={"health": {"interval_s": 1, "timeout_s": 1}, **WIDE}
        )
    )
    is_over = asyncio.Event()

    async def sessions_of(clients: Crowd, n: int) -> None:
        for turn in itertools.count():
            if is_over.is_set():
                return
            session = f"rolling-{n}-{turn // 4}"
            await clients.stream(session, 20)
            await clients.ask(
                headers={SESSION: session}, messages=[{"role": "user", "content": "[[tokens:1]]"}]
            )

    def states() -> list[str]:
        return [backend["state"] for backend in proxy.status()["pools"][0]["backends"]]

    async with crowd(proxy) as clients:
        sessions = [asyncio.create_task(sessions_of(clients, n)) for n in range(40)]
        for sim in sims:
            await asyncio.to_thread(sim.drain)
            await until(lambda: "down" in states(), 10, "the drained one to be missed")
            await asyncio.to_thread(sim.start)
            await until(lambda: proxy.metric("backend_healthy") == 3, 10, "the restarted one")
        is_over.set()
        await asyncio.gather(*sessions)
        assert bad(clients.turns) == []
        assert len(clients.turns) > 300


GAPS_S = [4.90, 4.95, 4.98, 4.99, 5.0, 5.0, 5.01, 5.02, 5.05, 5.1]


@pytest.mark.slow
async def test_a_backend_that_closes_idle_connections(
    new_backend: Callable[..., ScriptedBackend], new_proxy: Callable[..., Ferrule]
) -> None:
    """500 requests at gaps of 4.9 to 5.1 s where idle connections end at 5 s; and 3,000 more at a
    backend that is quicker to close them than the proxy is to give them up."""
    usual, hasty = new_backend(), new_backend()
    usual.keep_alive_s, hasty.keep_alive_s = 5.0, 0.5
    for backend in (usual, hasty):
        backend.play(Canned("Hi", prompt_tokens=1))
    proxies = [new_proxy(config_for(backend.url, pool=WIDE)) for backend in (usual, hasty)]

    async def paced(clients: Crowd, gap_s: float, count: int, offset_s: float) -> None:
        await asyncio.sleep(offset_s)
        for n in range(count):
            due = time.monotonic() + gap_s
            await clients.ask(stream=bool(n % 2))
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async with crowd(proxies[0]) as slow, crowd(proxies[1]) as quick:
        async with asyncio.TaskGroup() as group:
            for n in range(100):
                group.create_task(paced(slow, GAPS_S[n % 10], 5, n / 200))
                group.create_task(paced(quick, GAPS_S[n % 10] / 10, 30, n / 200))
        assert len(slow.turns) == 500
        assert bad([turn for turn in slow.turns if turn.status != 200]) == []
        assert [
            turn for turn in (*slow.turns, *quick.turns) if turn.status != 200 or turn.failure
        ] == []
