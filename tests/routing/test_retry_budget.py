"""Retries stay a share of the traffic."""

import pytest

from ferrule.routing.retry_budget import RetryBudget


@pytest.mark.parametrize(
    ("under_way", "active", "allowed"),
    [
        (0, 1, True),
        (2, 1, True),
        (3, 1, False),
        (3, 15, False),
        (3, 16, True),
        (19, 100, True),
        (20, 100, False),
    ],
)
def test_a_fifth_of_active_requests_and_never_fewer_than_three(
    under_way: int, active: int, allowed: bool
) -> None:
    budget = RetryBudget(2)
    for _ in range(under_way):
        budget.start()
    assert budget.allows(0, active) is allowed


def test_what_ends_is_given_back() -> None:
    budget = RetryBudget(2)
    for _ in range(3):
        budget.start()
    assert not budget.allows(0, 1)
    budget.end()
    assert budget.allows(0, 1)


@pytest.mark.parametrize(
    ("retries", "made", "allowed"), [(2, 0, True), (2, 1, True), (2, 2, False), (0, 0, False)]
)
def test_j07_retries_of_one_request_are_bounded(retries: int, made: int, allowed: bool) -> None:
    assert RetryBudget(retries).allows(made, 1000) is allowed
