"""Redis slow, down or restarted, and replicas that die. The server is real; the faults are
injected."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from tests.admission.stores.conftest import RedisServer

from ferrule.admission.keys import Tenant
from ferrule.admission.limits import Limiter
from ferrule.admission.stores import StoreUnavailable
from ferrule.admission.stores.redis import KEY_PREFIX, RedisStore
from ferrule.errors import Failure

TENANT = Tenant(name="t", requests_per_minute=1000, tokens_per_minute=100_000, concurrency=4)
SLOTS = f"{KEY_PREFIX}{{t}}:slots"
PROBE_EVERY_S = 0.02


async def wait_until_up(store: RedisStore) -> None:
    while True:
        try:
            decision = await store.take(TENANT, 1, 0.0)
        except StoreUnavailable:
            await asyncio.sleep(PROBE_EVERY_S)
        else:
            store.release(TENANT, decision.ticket, 0, 0.0)
            return


@pytest.mark.parametrize("on_failure", ["allow", "deny"])
async def test_m09_a_hanging_redis_costs_a_bounded_wait(
    redis_server: RedisServer, on_failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = RedisStore(redis_server.url, probe_every_s=PROBE_EVERY_S)
    refusals: list[str] = []
    limiter = Limiter(
        store, "allow" if on_failure == "allow" else "deny", on_limited=refusals.append
    )
    loop = asyncio.get_running_loop()
    await (await limiter.admit(TENANT, 1)).settle(1)
    waits: list[float] = []

    async def client() -> int:
        began = loop.time()
        try:
            await (await limiter.admit(TENANT, 1)).settle(1)
            return 200
        except Failure as failure:
            return failure.status
        finally:
            waits.append(loop.time() - began)

    redis_server.hang()
    try:
        with caplog.at_level(logging.WARNING, logger="ferrule"):
            statuses = await asyncio.gather(*(client() for _ in range(50)))
            statuses += [await client() for _ in range(50)]
    finally:
        redis_server.resume()
    assert set(statuses) == {200 if on_failure == "allow" else 529}
    assert refusals == ["store"] * 100
    assert max(waits) < 0.25
    assert sorted(waits)[49] < 0.01
    assert len(caplog.records) == 1
    assert "127.0.0.1" not in caplog.text
    await wait_until_up(store)
    await (await limiter.admit(TENANT, 1)).settle(1)
    assert "limits store is back" in caplog.text
    await limiter.close()


async def test_m09_redis_down_from_the_start(redis_server: RedisServer) -> None:
    store = RedisStore("redis://127.0.0.1:1/0")
    with pytest.raises(StoreUnavailable, match="ConnectionError"):
        await store.take(TENANT, 1, 0.0)
    with pytest.raises(StoreUnavailable, match="waiting"):
        await store.take(TENANT, 1, 0.0)
    await store.close()


async def test_a_hang_leaves_no_slot_taken(redis_server: RedisServer) -> None:
    store = RedisStore(redis_server.url, probe_every_s=PROBE_EVERY_S)
    held = await store.take(TENANT, 1, 0.0)
    redis_server.hang()
    lost = await asyncio.gather(
        *(store.take(TENANT, 1, 0.0) for _ in range(3)), return_exceptions=True
    )
    assert [type(error) for error in lost] == [StoreUnavailable] * 3
    store.release(TENANT, held.ticket, 0, 0.0)
    redis_server.resume()
    await wait_until_up(store)
    await store.close()
    assert redis_server.client.zcard(SLOTS) == 0


async def test_a_restarted_redis_gets_the_script_and_the_leases_again(
    redis_server: RedisServer,
) -> None:
    store = RedisStore(redis_server.url, lease_s=0.3)
    held = await store.take(TENANT, 1, 0.0)
    redis_server.client.script_flush()
    redis_server.client.flushall()
    assert (await store.take(TENANT, 1, 0.0)).refused_by is None
    while held.ticket not in redis_server.client.zrange(SLOTS, 0, -1):
        await asyncio.sleep(0.01)
    await store.close()


async def test_slots_of_a_dead_replica_expire_and_those_of_a_live_one_are_renewed(
    redis_server: RedisServer,
) -> None:
    dead, living = RedisStore(redis_server.url), RedisStore(redis_server.url, lease_s=0.3)
    for _ in range(3):
        await dead.take(TENANT, 1, 0.0)
    held = await living.take(TENANT, 1, 0.0)
    assert (await living.take(TENANT, 1, 0.0)).refused_by == "concurrency"
    first = redis_server.client.zscore(SLOTS, held.ticket)
    while redis_server.client.zscore(SLOTS, held.ticket) == first:
        await asyncio.sleep(0.01)
    await dead.close()
    for ticket in redis_server.client.zrange(SLOTS, 0, -1):
        if ticket != held.ticket:
            assert (
                25 < redis_server.client.zscore(SLOTS, ticket) - redis_server.client.time()[0] <= 31
            )
            redis_server.client.zincrby(SLOTS, -60, ticket)
    assert [(await living.take(TENANT, 1, 0.0)).refused_by for _ in range(4)] == [
        None,
        None,
        None,
        "concurrency",
    ]
    await living.close()


async def test_leases_are_renewed_under_load_too(redis_server: RedisServer) -> None:
    store = RedisStore(redis_server.url, lease_s=0.3)
    tenant = Tenant(name="t", concurrency=1000)
    held = await store.take(tenant, 1, 0.0)
    first = redis_server.client.zscore(SLOTS, held.ticket)

    async def client() -> None:
        while redis_server.client.zscore(SLOTS, held.ticket) == first:
            decision = await store.take(tenant, 1, 0.0)
            store.release(tenant, decision.ticket, 0, 0.0)

    await asyncio.gather(*(client() for _ in range(100)))
    assert redis_server.client.zscore(SLOTS, held.ticket) > first
    await store.close()


async def test_a_cancelled_take_gives_its_slot_back(redis_server: RedisServer) -> None:
    store = RedisStore(redis_server.url)
    taking = asyncio.ensure_future(store.take(TENANT, 1, 0.0))
    await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert (await store.take(TENANT, 1, 0.0)).refused_by is None
    await store.close()
    assert redis_server.client.zcard(SLOTS) == 1


async def test_a_take_cancelled_as_its_decision_arrives_gives_its_slot_back(
    redis_server: RedisServer,
) -> None:
    store = RedisStore(redis_server.url)
    taking = asyncio.ensure_future(store.take(TENANT, 1, 0.0))
    deliver = store._deliver

    def deliver_and_cancel(*arguments: Any) -> None:
        deliver(*arguments)
        taking.cancel()

    store._deliver = deliver_and_cancel  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await taking
    store._deliver = deliver  # type: ignore[method-assign]
    await store.close()
    assert redis_server.client.zcard(SLOTS) == 0


async def test_keys_expire_once_they_no_longer_matter(
    redis_server: RedisServer,
) -> None:
    store = RedisStore(redis_server.url)
    decision = await store.take(Tenant(name="t", requests_per_minute=60), 1, 0.0)
    store.release(TENANT, decision.ticket, 0, 0.0)
    await store.close()
    assert 0 < redis_server.client.pttl(f"{KEY_PREFIX}{{t}}") <= 2000
    assert redis_server.client.exists(SLOTS) == 0


async def test_a_server_that_refuses_writes_is_down(redis_server: RedisServer) -> None:
    store = RedisStore(redis_server.url, probe_every_s=PROBE_EVERY_S)
    redis_server.client.replicaof("127.0.0.1", "1")
    try:
        with pytest.raises(StoreUnavailable):
            await store.take(TENANT, 1, 0.0)
        await asyncio.sleep(3 * PROBE_EVERY_S)
        with pytest.raises(StoreUnavailable, match="waiting"):
            await store.take(TENANT, 1, 0.0)
    finally:
        redis_server.client.replicaof("NO", "ONE")
    await wait_until_up(store)
    await store.close()
