"""Models, paths and keys that clients make up do not add series."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import aiohttp
import pytest
from tests.doubles.backend import ScriptedBackend
from tests.doubles.proxy import Ferrule, config_for

WAVES, WAVE = 20, 500
"""10,000 requests: half with a random model, half with a random path."""


def read_series(proxy: Ferrule) -> set[str]:
    return {f"{name}{sorted(labels.items())}" for name, labels, _ in proxy.samples()}


async def send_random(session: aiohttp.ClientSession, number: int) -> int:
    dice = random.Random(number)
    name = "".join(dice.choices("abcdefghijklmnopqrstuvwxyz0123456789-_/.", k=dice.randint(1, 60)))
    if number % 2:
        body = {"model": name, "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
        async with session.post(
            "/v1/messages", json=body, headers={"x-api-key": name.replace("/", "")}
        ) as answer:
            return answer.status
    async with session.request(dice.choice(["GET", "POST", "DELETE"]), f"/p{name}") as answer:
        return answer.status


async def send_wave(address: str, first: int) -> set[int]:
    async with aiohttp.ClientSession(
        f"http://{address}", connector=aiohttp.TCPConnector(limit=50)
    ) as session:
        return set(
            await asyncio.gather(
                *(send_random(session, number) for number in range(first, first + WAVE))
            )
        )


@pytest.mark.timeout(120)
async def test_random_models_and_paths_add_no_series(
    new_proxy: Callable[..., Ferrule], new_backend: Callable[..., ScriptedBackend]
) -> None:
    proxy = await asyncio.to_thread(new_proxy, config_for(new_backend().url))
    await asyncio.to_thread(proxy.message)
    statuses = await send_wave(proxy.listen, 0)
    before = await asyncio.to_thread(read_series, proxy)
    for number in range(1, WAVES):
        statuses |= await send_wave(proxy.listen, number * WAVE)
    assert await asyncio.to_thread(read_series, proxy) == before
    assert statuses >= {404}
    assert not any(status >= 500 for status in statuses)
