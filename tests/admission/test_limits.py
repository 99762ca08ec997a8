"""The limiter: leases, 429s with their headers, and an unavailable store. What every store must do
is in stores/test_contract.py."""

from __future__ import annotations

import logging

import pytest

from ferrule.admission.keys import ANONYMOUS, Tenant
from ferrule.admission.limits import Lease, Limiter
from ferrule.admission.stores import StoreUnavailable
from ferrule.admission.stores.bucket import Decision
from ferrule.admission.stores.memory import MemoryStore
from ferrule.errors import Failure
from ferrule.http.response import failure_headers, rate_limit_headers

NOON = 1_800_014_400.0  # 2027-01-15T12:00:00Z


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        return NOON + self.now - 1000.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def refusals() -> list[str]:
    return []


@pytest.fixture
def limiter(clock: Clock, refusals: list[str]) -> Limiter:
    return Limiter(MemoryStore(), on_limited=refusals.append, clock=clock, wall_clock=clock.wall)


async def admit_refused(limiter: Limiter, tenant: Tenant, tokens: int = 1) -> Failure:
    with pytest.raises(Failure) as raised:
        await limiter.admit(tenant, tokens)
    return raised.value


async def test_h13_the_second_request_of_a_minute_gets_a_retry_after(
    limiter: Limiter, clock: Clock, refusals: list[str]
) -> None:
    tenant = Tenant(name="t", requests_per_minute=1)
    await (await limiter.admit(tenant, 1)).settle(1)
    clock.now += 12.5
    failure = await admit_refused(limiter, tenant)
    assert (failure.status, failure.kind, failure.is_admission) == (429, "rate_limit_error", True)
    assert dict(failure_headers(failure)) == {
        "anthropic-ratelimit-requests-limit": "1",
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": "2027-01-15T12:01:00Z",
        "retry-after": "48",
    }
    assert refusals == ["requests"]
    clock.now += 48
    await limiter.admit(tenant, 1)


@pytest.mark.parametrize(("tokens", "retry_after"), [(10, "1"), (11, "2"), (4000, "60")])
async def test_retry_after_is_a_whole_number_from_1_to_60(
    limiter: Limiter, tokens: int, retry_after: str
) -> None:
    tenant = Tenant(name="t", tokens_per_minute=60)
    lease = await limiter.admit(tenant, 51)
    await lease.settle(51 if tokens < 60 else tokens)
    assert str((await admit_refused(limiter, tenant, tokens)).retry_after_s) == retry_after


async def test_headers_of_an_admitted_request(limiter: Limiter) -> None:
    lease = await limiter.admit(
        Tenant(name="t", requests_per_minute=60, tokens_per_minute=1000, concurrency=4), 250
    )
    assert dict(rate_limit_headers(lease.rate_limits)) == {
        "anthropic-ratelimit-requests-limit": "60",
        "anthropic-ratelimit-requests-remaining": "59",
        "anthropic-ratelimit-requests-reset": "2027-01-15T12:00:01Z",
        "anthropic-ratelimit-tokens-limit": "1000",
        "anthropic-ratelimit-tokens-remaining": "750",
        "anthropic-ratelimit-tokens-reset": "2027-01-15T12:00:15Z",
    }


async def test_the_headers_are_those_of_the_admission_however_late_they_are_sent(
    limiter: Limiter, clock: Clock
) -> None:
    lease = await limiter.admit(Tenant(name="t", requests_per_minute=60), 0)
    clock.now += 300
    headers = dict(rate_limit_headers(lease.rate_limits))
    assert headers["anthropic-ratelimit-requests-reset"] == "2027-01-15T12:00:01Z"


async def test_a_tenant_without_limits_needs_no_store(clock: Clock) -> None:
    limiter = Limiter(SwitchableStore(), "deny", clock=clock)
    lease = await limiter.admit(ANONYMOUS, 10**9)
    await lease.settle(10**9)
    assert dict(rate_limit_headers(lease.rate_limits)) == {}


class SwitchableStore:
    """A store that can be switched off."""

    def __init__(self) -> None:
        self.is_down = True
        self.released = 0

    async def take(self, tenant: Tenant, tokens: int, now: float) -> Decision:
        if self.is_down:
            raise StoreUnavailable("timed out")
        return Decision(None, 0.0, 0.0, 0.0)

    def release(self, tenant: Tenant, ticket: str, extra_tokens: int, now: float) -> None:
        self.released += 1

    async def close(self) -> None:
        pass


LIMITED = Tenant(name="t", requests_per_minute=1)


async def test_m09_store_away_and_allow(
    clock: Clock, refusals: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    store = SwitchableStore()
    limiter = Limiter(store, "allow", on_limited=refusals.append, clock=clock)
    with caplog.at_level(logging.INFO):
        leases = [await limiter.admit(LIMITED, 1) for _ in range(3)]
        store.is_down = False
        leases.append(await limiter.admit(LIMITED, 1))
        for lease in leases:
            await lease.settle(1)
    assert refusals == ["store", "store", "store"]
    assert [record.getMessage() for record in caplog.records] == [
        "limits store unavailable (timed out); requests are admitted until it is back",
        "limits store is back",
    ]
    assert store.released == 1


async def test_m09_store_away_and_deny(clock: Clock, refusals: list[str]) -> None:
    limiter = Limiter(SwitchableStore(), "deny", on_limited=refusals.append, clock=clock)
    failure = await admit_refused(limiter, LIMITED)
    assert (failure.status, failure.kind, dict(failure_headers(failure)), failure.is_admission) == (
        529,
        "overloaded_error",
        {"retry-after": "1"},
        True,
    )
    assert refusals == ["store"]


async def test_a_lease_is_settled_once(clock: Clock) -> None:
    store = SwitchableStore()
    store.is_down = False
    lease: Lease = await Limiter(store, clock=clock).admit(LIMITED, 1)
    for _ in range(3):
        await lease.settle(7)
    assert store.released == 1
