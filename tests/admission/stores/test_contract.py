"""The rules that every store must keep."""

from __future__ import annotations

import asyncio

import pytest
from tests.admission.stores.conftest import Replicas

from ferrule.admission.keys import Tenant
from ferrule.admission.limits import Lease, Limiter
from ferrule.errors import Failure
from ferrule.http.response import rate_limit_headers


async def try_admit(limiter: Limiter, tenant: Tenant, tokens: int = 1) -> tuple[int, Lease | None]:
    try:
        return 200, await limiter.admit(tenant, tokens)
    except Failure as failure:
        return failure.status, None


@pytest.mark.parametrize(
    "settled_tokens", [60, 7, 0], ids=["complete", "aborted", "no_backend_reached"]
)
async def test_m01_a_slot_comes_back_on_every_way_out(
    replicas: Replicas, settled_tokens: int
) -> None:
    tenant = Tenant(name="t", concurrency=1)
    for _ in range(5):
        lease = await replicas.limiter.admit(tenant, 10)
        assert (await try_admit(replicas.limiter, tenant))[0] == 429
        await lease.settle(settled_tokens)
    assert replicas.refusals == ["concurrency"] * 5


async def test_m03_leases_of_refused_requests_hold_nothing(replicas: Replicas) -> None:
    tenant = Tenant(name="t", concurrency=1)
    for _ in range(20):
        await (await replicas.limiter.admit(tenant, 1)).settle(0)
    assert (await try_admit(replicas.limiter, tenant))[0] == 200


async def test_m05_concurrency_is_exact_across_replicas(replicas: Replicas) -> None:
    tenant = Tenant(name="t", concurrency=4)
    running = most = admitted = 0

    async def client(limiter: Limiter) -> None:
        nonlocal running, most, admitted
        lease = (await try_admit(limiter, tenant))[1]
        if lease is None:
            return
        admitted += 1
        running += 1
        most = max(most, running)
        for _ in range(3):
            await asyncio.sleep(0)
        running -= 1
        await lease.settle(1)

    for _ in range(3):
        await asyncio.gather(*(client(next(replicas.any_limiter)) for _ in range(40)))
    assert most == 4
    assert admitted >= 12
    leases = [await next(replicas.any_limiter).admit(tenant, 1) for _ in range(4)]
    assert (await try_admit(next(replicas.any_limiter), tenant))[0] == 429
    for lease in leases:
        await lease.settle(1)


async def test_m07_streamed_tokens_count(replicas: Replicas) -> None:
    tenant = Tenant(name="t", tokens_per_minute=50)
    stream = await replicas.limiter.admit(tenant, 10)
    replicas.pass_time(45, tenant)
    await stream.settle(70)
    assert (await try_admit(next(replicas.any_limiter), tenant))[0] == 429
    assert replicas.refusals == ["tokens"]
    replicas.pass_time(13, tenant)
    assert (await try_admit(next(replicas.any_limiter), tenant))[0] == 429
    replicas.pass_time(1, tenant)
    assert (await try_admit(next(replicas.any_limiter), tenant))[0] == 200


async def test_requests_refill_continuously(replicas: Replicas) -> None:
    tenant = Tenant(name="t", requests_per_minute=6)
    assert [(await try_admit(next(replicas.any_limiter), tenant))[0] for _ in range(7)] == [
        200
    ] * 6 + [429]
    replicas.pass_time(9, tenant)
    assert (await try_admit(replicas.limiter, tenant))[0] == 429
    replicas.pass_time(1, tenant)
    assert (await try_admit(replicas.limiter, tenant))[0] == 200
    assert (await try_admit(replicas.limiter, tenant))[0] == 429


async def test_refusals_cost_nothing(replicas: Replicas) -> None:
    tenant = Tenant(name="t", requests_per_minute=60, tokens_per_minute=6000, concurrency=1)
    lease = await replicas.limiter.admit(tenant, 100)
    for _ in range(100):
        assert (await try_admit(replicas.limiter, tenant, 100))[0] == 429
    await lease.settle(100)
    headers = dict(rate_limit_headers((await replicas.limiter.admit(tenant, 100)).rate_limits))
    assert int(headers["anthropic-ratelimit-requests-remaining"]) >= 58
    assert int(headers["anthropic-ratelimit-tokens-remaining"]) >= 5800


async def test_a_refund_is_available_to_the_next(replicas: Replicas) -> None:
    tenant = Tenant(name="t", tokens_per_minute=100)
    lease = await replicas.limiter.admit(tenant, 100)
    assert (await try_admit(replicas.limiter, tenant, 90))[0] == 429
    await lease.settle(0)
    assert (await try_admit(replicas.limiter, tenant, 90))[0] == 200


async def test_keys_do_not_share(replicas: Replicas) -> None:
    for name in ("a", "b"):
        assert (await try_admit(replicas.limiter, Tenant(name=name, requests_per_minute=1)))[
            0
        ] == 200
        assert (await try_admit(replicas.limiter, Tenant(name=name, requests_per_minute=1)))[
            0
        ] == 429


async def test_a_request_larger_than_a_bucket_passes_when_it_is_full(replicas: Replicas) -> None:
    tenant = Tenant(name="t", tokens_per_minute=50)
    lease = await replicas.limiter.admit(tenant, 500)
    await lease.settle(25)
    assert (await try_admit(replicas.limiter, tenant, 500))[0] == 429
    replicas.pass_time(31, tenant)
    assert (await try_admit(replicas.limiter, tenant, 500))[0] == 200


async def test_a_changed_limit_holds_at_once(replicas: Replicas) -> None:
    before, after = Tenant(name="t", concurrency=3), Tenant(name="t", concurrency=1)
    leases = [await replicas.limiter.admit(before, 1) for _ in range(2)]
    await leases[0].settle(1)
    assert (await try_admit(replicas.limiter, after))[0] == 429
    await leases[1].settle(1)
    assert (await try_admit(replicas.limiter, after))[0] == 200
