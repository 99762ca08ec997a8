"""Probes and the breaker of one backend, by a clock that the test turns."""

from itertools import pairwise

import msgspec
import pytest
from tests.routing.settings import HEALTH

from ferrule.routing.health import BreakerState, Health, HealthPolicy, ProbeStatus, Verdict

POLICY = HealthPolicy(interval_s=5.0, fall=2, rise=2, trip=3)


def health(policy: HealthPolicy = POLICY) -> Health:
    return Health("b", policy)


def fail(subject: Health, verdict: Verdict, now: float) -> bool:
    """A request of now fails; eject if due, as the pool does."""
    due = subject.wants_ejection(verdict, subject.generation)
    if due:
        subject.eject(verdict, now)
    return due


def probe(subject: Health, results: str, now: float = 0.0) -> None:
    for mark in results:
        subject.end_probe(
            {"+": ProbeStatus.OK, "-": ProbeStatus.FAILED, "b": ProbeStatus.BUSY}[mark], now, 1.0
        )


@pytest.mark.parametrize(
    ("results", "is_up"),
    [
        ("", None),
        ("+", True),
        ("-", False),
        ("+-", True),
        ("+--", False),
        ("+-+-", True),
        ("+--+", False),
        ("+--++", True),
        ("+--+-+", False),
        ("-++", True),
        ("+-b-", True),
        ("b", None),
        ("+--b", False),
    ],
)
def test_fall_and_rise(results: str, is_up: bool | None) -> None:
    subject = health()
    probe(subject, results)
    assert subject.is_up is is_up
    assert subject.is_usable(0.0) is (is_up is not False)


def test_probes_are_an_interval_apart_less_a_little() -> None:
    subject = health()
    asked: list[float] = []
    for tenth in range(1000):
        if subject.start_probe(tenth / 10):
            asked.append(tenth / 10)
            subject.end_probe(ProbeStatus.OK, tenth / 10)
    gaps = {round(b - a, 1) for a, b in pairwise(asked)}
    assert asked[0] == 0.0
    assert min(gaps) >= 4.0
    assert max(gaps) <= 5.1
    assert len(gaps) > 3


def test_jitter_differs_between_seeds_and_not_between_runs() -> None:
    def second(seed: int) -> float:
        subject = health(msgspec.structs.replace(HEALTH, seed=seed))
        subject.start_probe(0.0)
        return subject.next_probe_at

    assert second(1) == second(1)
    assert second(1) != second(2)


def test_recovery_takes_less_than_two_intervals() -> None:
    subject = health()
    probe(subject, "+--")
    now = 100.0
    subject.start_probe(now)
    subject.end_probe(ProbeStatus.FAILED, now)  # back an instant later
    while subject.is_up is False:
        now += 0.01
        if subject.start_probe(now):
            subject.end_probe(ProbeStatus.OK, now)
    assert now <= 100.0 + 2 * POLICY.interval_s


def test_j13_a_busy_probe_is_not_repeated_before_retry_after() -> None:
    subject = health()
    probe(subject, "+")
    assert subject.start_probe(10.0)
    subject.end_probe(ProbeStatus.BUSY, 10.0, 7.0)
    assert subject.is_up
    assert subject.is_usable(10.0)
    assert not subject.start_probe(16.9)
    assert fail(
        subject, Verdict.CONNECT_ERROR, 11.0
    )  # which otherwise brings the next probe forward
    assert not subject.start_probe(16.9)
    assert subject.start_probe(17.0)


def test_j13_retry_after_does_not_bring_a_probe_forward() -> None:
    subject = health()
    assert subject.start_probe(0.0)
    subject.end_probe(ProbeStatus.BUSY, 0.0, 0.0)
    assert not subject.start_probe(3.9)


def test_l01_a_refused_connection_ejects_at_once() -> None:
    subject = health()
    probe(subject, "+")
    assert fail(subject, Verdict.CONNECT_ERROR, 0.0)
    assert not subject.is_usable(0.9)
    assert subject.is_usable(1.0)


@pytest.mark.parametrize("verdict", [Verdict.SERVER_ERROR, Verdict.BROKEN])
def test_failures_in_a_row_eject(verdict: Verdict) -> None:
    subject = health()
    assert [fail(subject, verdict, 0.0) for _ in range(3)] == [False, False, True]
    assert subject.breaker is BreakerState.OPEN
    assert not subject.is_usable(4.9)
    assert subject.is_usable(5.0)


def test_a_success_starts_the_count_again() -> None:
    subject = health()
    for _ in range(10):
        assert not fail(subject, Verdict.SERVER_ERROR, 0.0)
        assert not fail(subject, Verdict.SERVER_ERROR, 0.0)
        assert not subject.succeed(subject.generation)
    assert subject.breaker is BreakerState.CLOSED


@pytest.mark.parametrize(
    "verdict", [Verdict.NEUTRAL, Verdict.CLIENT_GONE, Verdict.BUSY, Verdict.OK]
)
def test_i05_j09_what_is_not_the_backends_fault_never_moves_the_breaker(verdict: Verdict) -> None:
    subject = health()
    assert not any(fail(subject, verdict, 0.0) for _ in range(20))
    assert subject.breaker is BreakerState.CLOSED
    assert [fail(subject, Verdict.SERVER_ERROR, 0.0) for _ in range(3)] == [False, False, True]


def test_j11_fifty_failures_at_once_are_one_ejection() -> None:
    subject = health()
    generation = subject.generation
    for _ in range(50):
        if subject.wants_ejection(Verdict.BROKEN, generation):
            subject.eject(Verdict.BROKEN, 0.0)
    assert subject.reopens_at == 5.0
    # Stragglers that fail while the trial runs are not the trial.
    assert subject.start_request(5.0)
    assert not subject.wants_ejection(Verdict.BROKEN, generation)
    assert subject.succeed(subject.generation)


def test_a_success_from_before_the_ejection_does_not_readmit() -> None:
    subject = health()
    generation = subject.generation
    fail(subject, Verdict.CONNECT_ERROR, 0.0)
    assert not subject.succeed(generation)
    assert not subject.is_usable(0.5)


def test_half_open_lets_a_single_trial_through() -> None:
    subject = health()
    fail(subject, Verdict.CONNECT_ERROR, 0.0)
    assert not subject.start_request(0.5)
    assert subject.start_request(1.0)
    assert subject.breaker == "half_open"
    assert not subject.is_usable(1.0)
    subject.end_trial()
    assert subject.is_usable(1.0)
    assert subject.start_request(1.0)
    assert subject.succeed(subject.generation)
    assert subject.breaker == "closed"
    assert subject.is_usable(1.0)


def test_back_off_doubles_up_to_its_cap_and_starts_again_after_a_success() -> None:
    subject = health()
    now, lengths = 0.0, []
    fail(subject, Verdict.SERVER_ERROR, now)
    fail(subject, Verdict.SERVER_ERROR, now)
    for _ in range(7):
        assert fail(subject, Verdict.SERVER_ERROR, now)
        lengths.append(subject.reopens_at - now)
        now = subject.reopens_at
        assert subject.start_request(now)
    assert lengths == [5, 10, 20, 40, 60, 60, 60]
    assert subject.succeed(subject.generation)
    fail(subject, Verdict.CONNECT_ERROR, now)
    assert subject.reopens_at - now == 1.0


def test_probes_bring_back_what_could_not_be_reached() -> None:
    subject = health()
    probe(subject, "+++")
    fail(subject, Verdict.CONNECT_ERROR, 0.0)
    probe(subject, "+")
    assert subject.breaker == "open"
    probe(subject, "+")
    assert subject.breaker == "closed"


def test_probes_do_not_bring_back_what_is_draining() -> None:
    subject = health()
    probe(subject, "+")
    assert fail(subject, Verdict.DRAINING, 0.0)
    probe(subject, "+++++")  # vLLM's /health stays 200 meanwhile
    assert not subject.is_usable(4.9)


def test_a_backend_that_was_down_and_is_up_again_has_no_past() -> None:
    subject = health()
    probe(subject, "+")
    fail(subject, Verdict.DRAINING, 0.0)
    probe(subject, "--++")
    assert subject.is_usable(0.0)
    assert subject.breaker is BreakerState.CLOSED


def test_starting_over_forgets_everything() -> None:
    subject = health()
    probe(subject, "--")
    generation = subject.generation
    subject.start_over()
    assert subject.is_up is None
    assert subject.start_probe(0.0)
    assert not subject.wants_ejection(Verdict.CONNECT_ERROR, generation)
