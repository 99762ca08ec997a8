"""Freshness: a list is reported if it differs, and its age counts from its last confirmation."""

from ferrule.discovery.watcher import Freshness
from ferrule.routing.backend import BackendSpec

A, B = BackendSpec("http://a:1"), BackendSpec("http://b:1")


def test_a_list_is_reported_if_it_differs_in_more_than_order() -> None:
    received: list[list[BackendSpec]] = []
    freshness = Freshness(lambda: 0.0)
    for specs in ([], [], [B, A], [A, B], [A], [BackendSpec("http://a:1", 2.0)], []):
        freshness.accept(specs, received.append)
    assert received == [[], [A, B], [A], [BackendSpec("http://a:1", 2.0)], []]


def test_age_is_that_of_the_last_confirmation() -> None:
    now = [10.0]
    freshness = Freshness(lambda: now[0])
    ages = []
    now[0] = 13.0
    ages.append(freshness.age_s())
    freshness.accept([A], lambda specs: None)
    now[0] = 14.0
    ages.append(freshness.age_s())
    freshness.confirm()
    ages.append(freshness.age_s())
    assert ages == [3.0, 1.0, 0.0]
