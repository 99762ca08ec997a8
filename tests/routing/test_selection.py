"""The choice itself: home, spill, failover, keyless, and the bounds between them."""

import pytest
from tests.routing.settings import HEALTH

from ferrule.routing.backend import Backend
from ferrule.routing.health import Health
from ferrule.routing.selection import AFFINITY, LoadBounds, by_session, keyless

LIMITS = LoadBounds(slots=4, max_inflight=10)
NONE: frozenset[str] = frozenset()


def backends(*inflight: int, weights: tuple[float, ...] = ()) -> list[Backend]:
    return [
        Backend(
            name,
            f"http://{name}",
            weights[i] if weights else 1.0,
            Health(name, HEALTH),
            inflight=inflight[i],
        )
        for i, name in enumerate("abcdefgh"[: len(inflight)])
    ]


@pytest.mark.parametrize(
    ("inflight", "unusable", "tried", "chosen", "branch"),
    [
        pytest.param((0, 0, 0), "", "", "a", "home", id="idle"),
        pytest.param((4, 0, 0), "", "", "a", "home", id="at-slots-is-not-past-them"),
        pytest.param((5, 0, 0), "", "", "b", "spill", id="past-slots"),
        pytest.param((5, 5, 0), "", "", "c", "spill", id="next-is-past-too"),
        pytest.param((5, 4, 3), "", "", "a", "home", id="past-slots-but-at-1.25-of-the-mean"),
        pytest.param((6, 4, 4), "", "", "b", "spill", id="past-1.25-of-the-mean"),
        pytest.param((6, 6, 6), "", "", "a", "home", id="all-equally-past-slots"),
        pytest.param((0, 0, 0), "a", "", "b", "failover", id="home-is-down"),
        pytest.param((0, 9, 0), "a", "", "c", "failover", id="home-is-down-and-next-is-past"),
        pytest.param((0, 0, 0), "", "a", "b", "failover", id="home-was-tried"),
        pytest.param((0, 0, 0), "b", "a", "c", "failover", id="home-tried-next-down"),
        pytest.param((10, 9, 9), "", "", "b", "spill", id="home-is-full"),
        pytest.param((0, 9, 8), "", "a", "c", "failover", id="all-untried-are-past-the-bound"),
    ],
)
def test_session_branches(
    inflight: tuple[int, ...], unusable: str, tried: str, chosen: str, branch: str
) -> None:
    order = backends(*inflight)
    for backend in order:
        backend.is_usable = backend.name not in unusable
    choice = by_session(order, order[0], frozenset(tried), LIMITS)
    assert choice is not None
    assert (choice.backend.name, choice.branch, choice.is_retry) == (chosen, branch, bool(tried))


@pytest.mark.parametrize(
    ("inflight", "unusable", "tried"),
    [((10, 10), "", ""), ((0, 0), "ab", ""), ((0, 0), "a", "b"), ((0, 10), "a", "")],
)
def test_nobody_has_room(inflight: tuple[int, ...], unusable: str, tried: str) -> None:
    order = backends(*inflight)
    for backend in order:
        backend.is_usable = backend.name not in unusable
    assert by_session(order, order[0], frozenset(tried), LIMITS) is None
    assert keyless(order, frozenset(tried), LIMITS) is None


def test_a_session_that_is_away_stays_there_below_the_bound() -> None:
    order = backends(0, 0, 3)
    choice = by_session(order, order[2], NONE, LIMITS)
    assert choice is not None
    assert (choice.backend.name, choice.branch) == ("c", "spill")


def test_a_session_whose_place_is_past_the_bound_takes_the_first_of_its_own_order() -> None:
    order = backends(0, 0, 5)
    choice = by_session(order, order[2], NONE, LIMITS)
    assert choice is not None
    assert (choice.backend.name, choice.branch) == ("a", "home")


def test_the_mean_is_shared_by_weight() -> None:
    # 8 in flight, two thirds of them due to a: 1.25 × 16/3 = 6.67 there, 3.3 (and 4 slots) at b.
    heavy = backends(6, 2, weights=(2.0, 1.0))
    choice = by_session(heavy, heavy[0], NONE, LIMITS)
    assert choice is not None
    assert choice.backend.name == "a"
    light = list(reversed(backends(3, 5, weights=(2.0, 1.0))))
    choice = by_session(light, light[0], NONE, LIMITS)
    assert choice is not None
    assert choice.backend.name == "a"


@pytest.mark.parametrize(
    ("inflight", "weights", "chosen"),
    [((3, 1, 2), (), "b"), ((2, 1, 1), (), "b"), ((2, 2), (1.0, 4.0), "b"), ((0, 0, 0), (), "a")],
)
def test_keyless_takes_the_least_loaded_for_its_weight(
    inflight: tuple[int, ...], weights: tuple[float, ...], chosen: str
) -> None:
    choice = keyless(backends(*inflight, weights=weights), NONE, LIMITS)
    assert choice is not None
    assert (choice.backend.name, choice.branch, AFFINITY[choice.branch]) == (
        chosen,
        "keyless",
        "none",
    )
