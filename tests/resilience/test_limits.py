"""Limits under load: exact over workers and replicas, whole again after whatever happened, and no
burden when their store is away."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.backend import Pause, Reset, ScriptedBackend, refusal, stream
from tests.doubles.frames import DONE, Canned, D, U
from tests.doubles.loop_thread import LoopThread
from tests.doubles.proxy import Ferrule, config_for, free_port
from tests.e2e.test_cases_limits import bearer, key_entry, write_keys
from tests.resilience.crowd import Crowd, Turn, crowd, percentile, until
from tests.resilience.slow_line import SlowLine

AT_ONCE = 4
PARALLEL = 40
WHOLE = stream(D({"content": "x"}), Pause(0.1), D({}, "stop"), DONE)
ENDLESS = stream(*[step for _ in range(200) for step in (D({"content": "x"}), Pause(0.05))])
WAYS_OUT: dict[str, Any] = {
    "complete": WHOLE,
    "refused": refusal(400, "no"),
    "failed": refusal(500, "no"),
    "broken": stream(D({"content": "x"}), Pause(0.05), Reset()),
    "silent": stream(Pause(3)),
    "aborted": ENDLESS,
}


class Redis:
    def __init__(self, folder: Path) -> None:
        binary = shutil.which("redis-server") or shutil.which("valkey-server")
        if binary is None:
            pytest.skip("neither redis-server nor valkey-server is installed")
        self.port = free_port()
        self._command = [
            binary,
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
            str(folder),
        ]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(5)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    server = Redis(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture(scope="module", params=["workers", "replicas"])
def several(
    request: pytest.FixtureRequest,
    new_proxy: Callable[..., Ferrule],
    shared_backend: ScriptedBackend,
    tmp_path_factory: pytest.TempPathFactory,
) -> list[Ferrule]:
    """Two workers of one machine; two replicas with a Redis."""
    keys = write_keys(tmp_path_factory.mktemp("keys"), key_entry("four", concurrency=AT_ONCE))
    quiet = {"interval_s": 60}  # a probe counts as a request at the backend
    pool = {
        "retries": 0,
        "timeouts": {"first_event_s": 1},
        "slots": 1000,
        "max_inflight": 1000,
        "health": quiet,
    }
    config = config_for(shared_backend.url, auth={"keys_file": keys}, pool=pool)
    if request.param == "workers":
        return [new_proxy({**config, "workers": 2})]
    store = request.getfixturevalue("redis")
    return [
        new_proxy({**config, "limits": {"store": f"redis://127.0.0.1:{store.port}/0"}})
        for _ in range(2)
    ]


async def forty(proxies: list[Ferrule], leave_after_s: float | None = None) -> list[Turn]:
    """Forty streams at once over all proxies, each on a connection of its own."""
    turns: list[Turn] = []
    for proxy in proxies:
        async with crowd(proxy) as clients:
            clients.http.headers.update(bearer("four"))
            work = [
                asyncio.create_task(clients.stream(str(n), 1))
                for n in range(PARALLEL // len(proxies))
            ]
            turns_here = clients.turns
            if leave_after_s is not None:
                await asyncio.wait(work, timeout=leave_after_s)
                for task in work:
                    task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            turns += turns_here
    return turns


async def at_once(proxies: list[Ferrule]) -> list[Turn]:
    halves = await asyncio.gather(*(forty([proxy]) for proxy in proxies))
    return [turn for half in halves for turn in half]


@pytest.mark.parametrize("name", WAYS_OUT)
async def test_never_more_than_four_and_all_four_again(
    several: list[Ferrule], backend: ScriptedBackend, name: str
) -> None:
    backend.play(WAYS_OUT[name])
    if name == "aborted":
        await asyncio.gather(*(forty([proxy], leave_after_s=0.6) for proxy in several))
    else:
        await at_once(several)
    assert backend.requests
    assert backend.most_inflight <= AT_ONCE
    await until(lambda: backend.inflight == 0, 5, "the backend to be idle")
    await all_four(several, backend)


async def all_four(proxies: list[Ferrule], backend: ScriptedBackend) -> None:
    """Exactly four are let in, however many ask."""
    backend.play(stream(D({"content": "x"}), Pause(0.8), D({}, "stop"), DONE))
    backend.most_inflight = 0
    turns = await at_once(proxies)
    assert sorted(turn.status for turn in turns) == [200] * AT_ONCE + [429] * (len(turns) - AT_ONCE)
    assert backend.most_inflight == AT_ONCE
    assert all(1 <= int(turn.headers["retry-after"]) <= 60 for turn in turns if turn.status == 429)


@pytest.mark.slow
async def test_a_killed_workers_slots_come_back(
    new_backend: Callable[..., ScriptedBackend], tmp_path: Path
) -> None:
    backend = new_backend()
    keys = write_keys(tmp_path, key_entry("four", concurrency=AT_ONCE))
    with Ferrule(
        config_for(
            backend.url, auth={"keys_file": keys}, workers=2, pool={"health": {"interval_s": 60}}
        ),
        tmp_path,
    ) as proxy:
        backend.play(ENDLESS)
        live = asyncio.create_task(forty([proxy]))
        await until(lambda: backend.inflight == AT_ONCE, 5, "four streams")
        for worker in (await asyncio.to_thread(proxy.status))["workers"]:
            os.kill(worker["pid"], signal.SIGKILL)
        await live
        await until(
            lambda: proxy.readyz() == 200 and len(proxy.status()["workers"]) == 2, 15, "new workers"
        )
        await all_four([proxy], backend)


@pytest.mark.slow
async def test_tokens_per_minute_with_streams(
    new_backend: Callable[..., ScriptedBackend], new_proxy: Callable[..., Ferrule], tmp_path: Path
) -> None:
    """1,200 a minute are 20 a second: 60 too many are forgiven after three seconds, and no
    sooner."""
    backend = new_backend()
    keys = write_keys(tmp_path, key_entry("t", tokens_per_minute=1200))
    proxy = new_proxy(config_for(backend.url, auth={"keys_file": keys}, workers=2))
    backend.play(stream(D({"content": "x"}), D({}, "stop"), U(800, 460), DONE))
    async with crowd(proxy) as clients:
        clients.http.headers.update(bearer("t"))
        assert (await clients.ask(stream=True)).is_good
        settled = time.monotonic()
        backend.play(Canned("x", prompt_tokens=1, completion_tokens=1))
        refused = await clients.ask(stream=True)
        assert refused.status == 429
        assert refused.headers["anthropic-ratelimit-tokens-remaining"] == "0"
        assert 3 <= int(refused.headers["retry-after"]) <= 5
        while (turn := await clients.ask(stream=True)).status == 429:
            await asyncio.sleep(0.05)
        assert turn.is_good
        assert 2.8 < time.monotonic() - settled < 5.5
        assert len(backend.requests) == 2, "what is refused is not sent"


# The store away


@pytest.fixture(params=["allow", "deny"])
def away(
    request: pytest.FixtureRequest,
    redis: Redis,
    loop_thread: LoopThread,
    new_backend: Callable[..., ScriptedBackend],
    tmp_path: Path,
) -> Iterator[tuple[Ferrule, SlowLine, str]]:
    line = SlowLine(loop_thread, redis.port)
    keys = write_keys(tmp_path, key_entry(f"m-{request.param}", requests_per_minute=1_000_000))
    limits = {"store": f"redis://127.0.0.1:{line.port}/0", "on_store_failure": request.param}
    with Ferrule(
        config_for(new_backend().url, auth={"keys_file": keys}, limits=limits), tmp_path
    ) as proxy:
        yield proxy, line, request.param
    line.close()


async def load(clients: Crowd, seconds: float) -> list[Turn]:
    """Twenty clients that ask one after the other."""
    until_s = time.monotonic() + seconds

    async def one() -> list[Turn]:
        turns = []
        while time.monotonic() < until_s:
            turns.append(await clients.ask())
            await asyncio.sleep(0.02)
        return turns

    return [turn for turns in await asyncio.gather(*(one() for _ in range(20))) for turn in turns]


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["slow", "stopped"])
async def test_a_store_that_is_away_delays_nobody(
    away: tuple[Ferrule, SlowLine, str], redis: Redis, trouble: str
) -> None:
    proxy, line, choice = away
    async with crowd(proxy) as clients:
        clients.http.headers.update(bearer(f"m-{choice}"))
        usual = await load(clients, 1.0)
        assert {turn.status for turn in usual} == {200}
        if trouble == "slow":
            line.delay_s = 2.0
        else:
            redis.stop()
        disturbed = await load(clients, 3.0)
        added = percentile([turn.took_s for turn in disturbed]) - percentile(
            [turn.took_s for turn in usual]
        )
        print(f"store {trouble}, {choice}: p99 {added * 1000:+.0f} ms")
        assert added <= 0.25, (trouble, choice, added)
        assert {turn.status for turn in disturbed[40:]} == {200 if choice == "allow" else 529}
        assert proxy.metric("limited_total", gate="store") > 0
        assert proxy.log().count("limits store unavailable") <= 2, "said once, not for each request"
        line.delay_s = 0.0
        if trouble == "stopped":
            redis.start()
        await until(
            lambda: (
                "limits store is back" in proxy.log()
                or not proxy.ask(headers=bearer(f"m-{choice}"))
            ),
            6,
            "its return",
        )
        again = await load(clients, 0.5)
        assert {turn.status for turn in again} == {200}
        assert all("anthropic-ratelimit-requests-limit" in turn.headers for turn in again)
