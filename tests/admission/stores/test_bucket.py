"""The arithmetic of limits, exactly: refill, refusals, debts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.admission.keys import Tenant
from ferrule.admission.stores import bucket
from ferrule.admission.stores.bucket import Counters


def test_a_bucket_holds_one_minute_and_refills_continuously() -> None:
    tenant, counters = Tenant(name="t", requests_per_minute=6), Counters()
    assert [bucket.take(counters, tenant, 0, now=100.0).refused_by for _ in range(7)] == [
        None
    ] * 6 + ["requests"]
    assert bucket.take(counters, tenant, 0, now=100.0).wait_s == pytest.approx(10.0)
    assert bucket.take(counters, tenant, 0, now=109.9).refused_by == "requests"
    assert bucket.take(counters, tenant, 0, now=110.0).refused_by is None
    assert bucket.take(counters, tenant, 0, now=110.0).refused_by == "requests"


@pytest.mark.parametrize("limit", [1, 3, 7, 60, 600, 999_983])
def test_a_whole_minute_can_be_taken_at_once(limit: int) -> None:
    tenant, counters = Tenant(name="t", tokens_per_minute=limit), Counters()
    for _ in range(min(limit, 1000)):
        assert bucket.take(counters, tenant, max(1, limit // 1000), now=5.0).refused_by is None


def test_refusals_cost_nothing() -> None:
    tenant = Tenant(name="t", requests_per_minute=1, tokens_per_minute=10, concurrency=1)
    counters = Counters()
    bucket.take(counters, tenant, 5, now=0.0)
    before = (counters.requests_full_at, counters.tokens_full_at, counters.inflight)
    for _ in range(100):
        assert bucket.take(counters, tenant, 5, now=0.0).refused_by == "requests"
    assert (counters.requests_full_at, counters.tokens_full_at, counters.inflight) == before


def test_the_longest_wait_is_reported() -> None:
    tenant, counters = (
        Tenant(name="t", requests_per_minute=2, tokens_per_minute=100, concurrency=1),
        Counters(),
    )
    bucket.take(counters, tenant, 90, now=0.0)
    decision = bucket.take(counters, tenant, 60, now=0.0)
    assert (decision.refused_by, decision.wait_s) == ("tokens", pytest.approx(30.0))
    decision = bucket.take(counters, tenant, 1, now=0.0)
    assert (decision.refused_by, decision.wait_s) == ("concurrency", 1.0)


def test_a_request_larger_than_a_bucket_needs_a_full_one() -> None:
    tenant, counters = Tenant(name="t", tokens_per_minute=50), Counters()
    assert bucket.take(counters, tenant, 500, now=0.0).refused_by is None
    decision = bucket.take(counters, tenant, 1, now=0.0)
    assert decision.wait_s == pytest.approx(541.2)
    bucket.release(counters, tenant, -475, now=0.0)
    assert bucket.take(counters, tenant, 500, now=29.9).refused_by == "tokens"
    assert bucket.take(counters, tenant, 500, now=30.0).refused_by is None


def test_a_settlement_after_a_long_stream_counts_from_its_end() -> None:
    tenant, counters = Tenant(name="t", tokens_per_minute=50), Counters()
    bucket.take(counters, tenant, 10, now=0.0)
    bucket.release(counters, tenant, 50, now=100.0)
    assert bucket.take(counters, tenant, 1, now=100.0).wait_s == pytest.approx(1.2)


def test_a_refund_never_overfills() -> None:
    tenant, counters = Tenant(name="t", tokens_per_minute=60), Counters()
    bucket.take(counters, tenant, 10, now=0.0)
    bucket.release(counters, tenant, -10, now=500.0)
    assert bucket.take(counters, tenant, 60, now=500.0).refused_by is None
    assert bucket.take(counters, tenant, 1, now=500.0).refused_by == "tokens"


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 40)), max_size=60))
def test_no_window_lets_more_than_two_minutes_worth_through(steps: list[tuple[float, int]]) -> None:
    tenant, counters = Tenant(name="t", tokens_per_minute=40), Counters()
    now = 0.0
    taken: list[tuple[float, int]] = []
    for pause_s, tokens in steps:
        now += pause_s
        if bucket.take(counters, tenant, tokens, now).refused_by is None:
            bucket.release(counters, tenant, 0, now)
            taken.append((now, tokens))
    for start, _ in taken:
        assert sum(tokens for at, tokens in taken if start <= at < start + 60) <= 2 * 40
