"""A pool over time: membership, the story of requests, ejections, recovery."""

import msgspec
import pytest
from tests.routing.settings import HEALTH, balancer_settings

from ferrule.routing.backend import Backend, BackendSpec
from ferrule.routing.balancer import Attempt, Balancer
from ferrule.routing.health import ProbeStatus, Verdict

NONE: frozenset[str] = frozenset()


def urls(count: int) -> list[str]:
    return [f"http://10.0.0.{number}:8000" for number in range(1, count + 1)]


def make(count: int = 3, **settings: int) -> Balancer:
    pool = Balancer("rocm", balancer_settings(**settings))  # type: ignore[arg-type]
    pool.update([BackendSpec(url) for url in urls(count)], 0.0)
    for backend in pool.backends:
        pool.record_probe(backend, ProbeStatus.OK, 0.0)
    return pool


def at(
    pool: Balancer, key: bytes | None, now: float = 0.0, tried: frozenset[str] = NONE
) -> tuple[str, str] | None:
    choice = pool.select(key, tried, now)
    return None if choice is None else (choice.backend.name, choice.branch)


def begin(
    pool: Balancer, key: bytes | None, now: float = 0.0, tried: frozenset[str] = NONE
) -> Attempt:
    choice = pool.select(key, tried, now)
    assert choice is not None
    return pool.start(choice, key, now)


def homes(pool: Balancer, count: int) -> dict[bytes, str]:
    found = {}
    for number in range(count):
        choice = pool.select(b"session-%d" % number, NONE, 0.0)
        assert choice is not None
        found[b"session-%d" % number] = choice.backend.name
    return found


def key_at(pool: Balancer, backend: Backend) -> bytes:
    return next(key for key, name in homes(pool, 200).items() if name == backend.name)


# Where sessions live


def test_five_thousand_sessions_spread_evenly_over_eight_backends() -> None:
    counts: dict[str, int] = {}
    for name in homes(make(8), 5000).values():
        counts[name] = counts.get(name, 0) + 1
    assert len(counts) == 8
    assert max(counts.values()) / (5000 / 8) <= 1.10


def test_removing_a_backend_moves_exactly_its_sessions() -> None:
    pool = make(8)
    before = homes(pool, 5000)
    gone = pool.backends[3].name
    pool.update([BackendSpec(url) for url in urls(8) if url != pool.backends[3].url], 1.0)
    after = homes(pool, 5000)
    assert {key for key in before if before[key] != after[key]} == {
        key for key in before if before[key] == gone
    }


def test_adding_a_backend_moves_a_ninth_and_all_of_it_there() -> None:
    pool = make(8)
    before = homes(pool, 5000)
    pool.update([BackendSpec(url) for url in urls(9)], 1.0)
    after = homes(pool, 5000)
    moved = {after[key] for key in before if before[key] != after[key]}
    count = sum(before[key] != after[key] for key in before)
    assert moved == {pool.backends[8].name}
    assert 5000 / 9 * 0.85 <= count <= 5000 / 9 * 1.15


def test_every_worker_and_replica_finds_the_same_home() -> None:
    one, other = make(8, seed=1, workers=2), make(8, seed=2)
    other.update([BackendSpec(url) for url in reversed(urls(8))], 1.0)
    assert homes(one, 500) == homes(other, 500)


def test_a_weight_of_two_draws_twice_the_sessions() -> None:
    pool = make(2)
    pool.update([BackendSpec(urls(2)[0], weight=2.0), BackendSpec(urls(2)[1])], 0.0)
    heavy = pool.backends[0].name
    assert 1900 <= sum(name == heavy for name in homes(pool, 3000).values()) <= 2100


def test_one_user_with_many_sessions_spreads() -> None:
    pool = make(4)
    counts: dict[str, int] = {}
    for number in range(400):
        name = begin(pool, b"tenant\0user-1\0session-%d" % number).backend.name
        counts[name] = counts.get(name, 0) + 1
    assert max(counts.values()) <= 1.25 * 100 + 1


def test_k11_the_same_key_has_the_same_home_turn_after_turn() -> None:
    pool = make(8)
    turns = set()
    for turn in range(20):
        attempt = begin(pool, b"opening", turn * 100.0)
        turns.add(attempt.backend.name)
        pool.end(attempt, Verdict.OK, turn * 100.0 + 50)
    assert len(turns) == 1


def test_l07_without_a_key_load_decides_and_nobody_shares_a_home() -> None:
    pool = make(4)
    names = [begin(pool, None).backend.name for _ in range(8)]
    assert sorted(names) == sorted(2 * [b.name for b in pool.backends])
    assert at(pool, None) is not None
    assert pool.status(0.0).sessions == 0


def test_workers_part_on_keyless_ties() -> None:
    first = {
        choice[0] for seed in range(20) if (choice := at(make(4, seed=seed), None)) is not None
    }
    assert len(first) > 1


# Spill


def test_l03_past_the_bound_a_session_spills_and_stays_until_idle() -> None:
    pool = make(4, slots=2)
    home = pool.backends[0]
    key = key_at(pool, home)
    crowd = [
        begin(pool, b"session-%d" % number)
        for number in range(200)
        if at(pool, b"session-%d" % number) == (home.name, "home")
    ]
    assert home.inflight == 3  # two slots; the third found both taken, not passed
    spilled = begin(pool, key)
    assert spilled.backend is not home
    assert at(pool, key) == (spilled.backend.name, "spill")
    for attempt in crowd:
        pool.end(attempt, Verdict.OK, 10.0)
    # Home has room again, but the cache is where it went.
    assert at(pool, key, 10.0) == (spilled.backend.name, "spill")
    pool.end(spilled, Verdict.OK, 20.0)
    assert at(pool, key, 79.0) == (spilled.backend.name, "spill")
    assert at(pool, key, 80.0) == (home.name, "home")


def test_max_inflight_is_never_passed() -> None:
    pool = make(2, slots=2, max_inflight=3)
    attempts = [begin(pool, b"session-%d" % number) for number in range(6)]
    assert [b.inflight for b in pool.backends] == [3, 3]
    assert at(pool, b"more") is None
    assert at(pool, None) is None
    assert pool.has_untried(NONE, 0.0)
    pool.end(attempts[0], Verdict.OK, 0.0)
    assert at(pool, b"more") is not None


def test_workers_divide_the_bounds() -> None:
    pool = make(1, slots=3, max_inflight=5, workers=2)
    for number in range(3):
        begin(pool, b"%d" % number)
    assert at(pool, b"more") is None


# Failures


def test_l01_a_dead_backend_is_skipped_after_its_first_connect_failure() -> None:
    pool = make(3)
    dead = pool.backends[1]
    key = key_at(pool, dead)
    pool.end(begin(pool, key), Verdict.CONNECT_ERROR, 0.0)
    second = at(pool, key, 0.1, frozenset({dead.name}))
    assert second is not None
    assert second[1] == "failover"
    for number in range(300):
        choice = at(pool, b"session-%d" % number, 0.5)
        assert choice is not None
        assert choice[0] != dead.name
    assert at(pool, key, 0.9) == second


def test_j09_four_hundreds_leave_a_backend_healthy() -> None:
    pool = make(3)
    key = key_at(pool, pool.backends[0])
    for _ in range(20):
        pool.end(begin(pool, key), Verdict.NEUTRAL, 0.0)
    assert at(pool, key) == (pool.backends[0].name, "home")
    assert all(b.healthy for b in pool.status(0.0).backends)


def test_i05_clients_that_leave_move_no_breaker() -> None:
    pool = make(3)
    for number in range(20):
        attempt = begin(pool, b"k")
        if number % 2:
            pool.record_success(attempt)
        pool.end(attempt, Verdict.CLIENT_GONE, float(number))
    assert {(b.breaker, b.healthy, b.inflight) for b in pool.status(20.0).backends} == {
        ("closed", True, 0)
    }


def test_j11_fifty_requests_that_fail_at_once_are_one_ejection() -> None:
    pool = make(3)
    backend = pool.backends[0]
    key = key_at(pool, backend)
    attempts = [begin(pool, key) for _ in range(50)]
    for attempt in attempts:
        pool.end(attempt, Verdict.BROKEN, 1.0)
    assert backend.health.reopens_at == 1.0 + 5.0
    assert backend.inflight == 0


def test_a_trial_is_single_and_its_first_event_readmits() -> None:
    pool = make(3)
    backend = pool.backends[0]
    key = key_at(pool, backend)
    pool.end(begin(pool, key), Verdict.CONNECT_ERROR, 0.0)
    assert at(pool, key, 0.99) != (backend.name, "home")
    trial = begin(pool, key, 1.0)
    assert (trial.backend, trial.is_trial) == (backend, True)
    second = at(pool, key, 1.0)
    assert second is not None
    assert second[0] != backend.name
    pool.record_success(trial)
    assert at(pool, key, 1.0) == (backend.name, "home")
    pool.end(
        trial, Verdict.BROKEN, 2.0
    )  # that stream's end is not held against the backend it readmitted
    assert at(pool, key, 2.0) == (backend.name, "home")


@pytest.mark.parametrize("verdict", [Verdict.CLIENT_GONE, Verdict.NEUTRAL, Verdict.BUSY])
def test_a_trial_that_says_nothing_is_followed_by_another(verdict: Verdict) -> None:
    pool = make(3)
    backend = pool.backends[0]
    key = key_at(pool, backend)
    pool.end(begin(pool, key), Verdict.CONNECT_ERROR, 0.0)
    pool.end(begin(pool, key, 1.0), verdict, 1.1)
    again = begin(pool, key, 1.2)
    assert (again.backend, again.is_trial) == (backend, True)


def test_a_trial_that_fails_doubles_the_back_off() -> None:
    pool = make(3)
    backend = pool.backends[0]
    key = key_at(pool, backend)
    pool.end(begin(pool, key), Verdict.CONNECT_ERROR, 0.0)
    pool.end(begin(pool, key, 1.0), Verdict.CONNECT_ERROR, 1.0)
    assert backend.health.reopens_at == 3.0


@pytest.mark.parametrize(("members", "out"), [(1, 0), (2, 1), (3, 1), (4, 2), (8, 4)])
def test_at_most_half_a_pool_is_ejected_by_passive_signs(members: int, out: int) -> None:
    pool = make(members)
    for backend in pool.backends:
        choice = pool.select(
            None, frozenset(b.name for b in pool.backends if b is not backend), 0.0
        )
        assert choice is not None
        pool.end(pool.start(choice, None, 0.0), Verdict.CONNECT_ERROR, 0.0)
    assert sum(not b.healthy for b in pool.status(0.0).backends) == out


def test_a_shrinking_pool_spares_half() -> None:
    pool = make(4)
    for backend in pool.backends[:2]:
        backend.health.eject(Verdict.SERVER_ERROR, 0.0)
    pool.update([BackendSpec(url) for url in urls(2)], 1.0)
    assert sum(b.healthy for b in pool.status(1.0).backends) == 1


def test_a_draining_backend_is_out_although_its_probes_succeed() -> None:
    pool = make(3)
    backend = pool.backends[0]
    key = key_at(pool, backend)
    pool.end(begin(pool, key), Verdict.DRAINING, 0.0)
    for _ in range(5):
        pool.record_probe(backend, ProbeStatus.OK, 1.0)
    choice = at(pool, key, 4.0)
    assert choice is not None
    assert choice[1] == "failover"


def test_j15_all_down_and_back_without_a_restart() -> None:
    pool = make(2)
    for backend in pool.backends:
        for _ in range(2):
            pool.record_probe(backend, ProbeStatus.FAILED, 10.0)
    assert at(pool, b"k", 10.0) is None
    assert at(pool, None, 10.0) is None
    assert not pool.has_untried(NONE, 10.0)
    assert not pool.is_ready(10.0)
    for _ in range(2):
        pool.record_probe(pool.backends[0], ProbeStatus.OK, 15.0)
    assert pool.is_ready(15.0)
    assert at(pool, b"k", 15.0) is not None


def test_l11_a_pool_without_backends_is_not_ready() -> None:
    pool = Balancer("empty", balancer_settings())
    assert not pool.is_ready(0.0)
    assert at(pool, b"k") is None
    assert at(pool, None) is None
    pool.update([], 0.0)
    assert not pool.is_ready(0.0)


def test_a_backend_not_probed_yet_may_be_tried_but_makes_nothing_ready() -> None:
    pool = Balancer("rocm", balancer_settings())
    pool.update([BackendSpec("http://h:1")], 0.0)
    assert at(pool, b"k") is not None
    assert not pool.is_ready(0.0)
    assert pool.due_probes(0.0) == list(pool.backends)
    assert pool.due_probes(0.0) == []
    pool.record_probe(pool.backends[0], ProbeStatus.OK, 0.1)
    assert pool.is_ready(0.1)


# Retries


def test_j07_retries_are_bounded_per_request() -> None:
    pool = make(5, retries=2)
    tried: frozenset[str] = NONE
    made = 0
    attempt = begin(pool, b"k")
    while True:
        pool.end(attempt, Verdict.SERVER_ERROR, 0.0)
        tried |= {attempt.backend.name}
        if not pool.may_retry(made, Verdict.SERVER_ERROR):
            break
        made += 1
        attempt = begin(pool, b"k", tried=tried)
    assert (made, len(tried)) == (2, 3)


def test_a_retry_goes_on_in_the_sessions_own_order() -> None:
    pool = make(5)
    first = begin(pool, b"k")
    second = begin(pool, b"k", tried=frozenset({first.backend.name}))
    without_first = make(5)
    without_first.update([BackendSpec(b.url) for b in pool.backends if b is not first.backend], 1.0)
    assert at(without_first, b"k") == (second.backend.name, "home")


def test_retries_are_budgeted_over_the_pool() -> None:
    pool = make(5, retries=2)
    home = begin(pool, b"k").backend.name
    retries = []
    while pool.may_retry(0, Verdict.BROKEN):
        retries.append(begin(pool, b"k", tried=frozenset({home})))
    assert len(retries) == 3
    pool.end(retries[0], Verdict.OK, 0.0)
    assert pool.may_retry(0, Verdict.BROKEN)
    assert pool.status(0.0).retries == 2


def test_a_retry_that_has_its_first_event_is_a_request_like_any_other() -> None:
    pool = make(5)
    home = begin(pool, b"k").backend.name
    retries = [begin(pool, b"k", tried=frozenset({home})) for _ in range(3)]
    assert not pool.may_retry(0, Verdict.BROKEN)
    pool.record_success(retries[0])
    assert pool.may_retry(0, Verdict.BROKEN)
    pool.end(retries[0], Verdict.OK, 0.0)
    assert pool.status(0.0).retries == 2


@pytest.mark.parametrize("verdict", [Verdict.CONNECT_ERROR, Verdict.DRAINING])
def test_where_no_work_was_done_only_the_requests_own_bound_holds(verdict: Verdict) -> None:
    pool = make(5, retries=2)
    home = begin(pool, b"k").backend.name
    for _ in range(10):
        begin(pool, b"k", tried=frozenset({home}))
    assert pool.may_retry(1, verdict)
    assert not pool.may_retry(2, verdict)
    assert not pool.may_retry(0, Verdict.BROKEN)


# Membership


def test_a_removed_backend_drains_and_is_gone_with_its_last_request() -> None:
    pool = make(3)
    leaving = pool.backends[0]
    key = key_at(pool, leaving)
    attempt = begin(pool, key)
    pool.update([BackendSpec(url) for url in urls(3)[1:]], 1.0)
    assert [b.name for b in pool.status(1.0).backends if b.draining] == [leaving.name]
    choice = at(pool, key, 1.0)
    assert choice is not None
    assert choice[0] != leaving.name
    assert leaving not in pool.due_probes(100.0)
    pool.end(attempt, Verdict.OK, 2.0)
    assert leaving not in pool.backends
    assert len(pool.backends) == 2


def test_an_idle_removed_backend_is_gone_at_once() -> None:
    pool = make(3)
    pool.update([BackendSpec(url) for url in urls(3)[1:]], 1.0)
    assert len(pool.backends) == 2


def test_a_session_that_went_to_a_removed_backend_leaves_it() -> None:
    pool = make(3)
    home = begin(pool, b"k").backend
    away = begin(pool, b"k", tried=frozenset({home.name}))
    pool.end(away, Verdict.OK, 0.0)
    assert at(pool, b"k", 1.0) == (away.backend.name, "spill")
    pool.update([BackendSpec(b.url) for b in pool.backends if b is not away.backend], 1.0)
    assert at(pool, b"k", 1.0) == (home.name, "home")


def test_who_stays_keeps_name_health_and_sessions() -> None:
    pool = make(3)
    before = {b.name: b for b in pool.backends}
    pool.backends[0].health.eject(Verdict.DRAINING, 0.0)
    pool.update([BackendSpec(url, weight=3.0) for url in urls(3)], 1.0)
    assert {b.name: b for b in pool.backends} == before
    assert not pool.status(1.0).backends[0].healthy
    assert pool.backends[0].weight == 3.0


def test_a_backend_that_comes_back_while_draining_is_probed_afresh() -> None:
    pool = make(2)
    leaving = pool.backends[0]
    attempt = begin(pool, key_at(pool, leaving))
    pool.update([BackendSpec(urls(2)[1])], 1.0)
    pool.update([BackendSpec(url) for url in urls(2)], 2.0)
    assert leaving in pool.due_probes(2.0)
    pool.end(attempt, Verdict.CONNECT_ERROR, 3.0)
    assert not leaving.is_draining
    assert leaving.is_usable


def test_settings_change_under_way() -> None:
    pool = make(1, slots=1, max_inflight=1, retries=0)
    attempt = begin(pool, b"k")
    assert at(pool, b"other") is None
    pool.change(
        balancer_settings(
            slots=2, max_inflight=2, retries=1, health=msgspec.structs.replace(HEALTH, fall=1)
        )
    )
    assert at(pool, b"other") is not None
    assert pool.may_retry(0, Verdict.BROKEN)
    assert pool.backends[0].inflight == 1
    pool.record_probe(pool.backends[0], ProbeStatus.FAILED, 0.0)
    assert at(pool, b"other") is None
    pool.end(attempt, Verdict.OK, 0.0)


def test_the_same_address_twice_is_one_backend() -> None:
    pool = Balancer("p", balancer_settings())
    pool.update([BackendSpec("http://h:1"), BackendSpec("http://h:1/")], 0.0)
    assert len(pool.backends) == 1


def test_status_shows_no_credentials() -> None:
    pool = Balancer("p", balancer_settings(health=HEALTH))
    pool.update([BackendSpec("http://user:secret@h:1")], 0.0)
    status = pool.status(0.0).backends[0]
    assert (status.url, status.probe, status.breaker) == ("http://h:1", "unknown", "closed")


# Giving back


def test_ending_twice_gives_back_once() -> None:
    pool = make(1)
    attempt = begin(pool, b"k")
    pool.end(attempt, Verdict.OK, 0.0)
    pool.end(attempt, Verdict.CONNECT_ERROR, 0.0)
    assert pool.backends[0].inflight == 0
    assert pool.inflight == 0
    assert pool.status(0.0).backends[0].sessions == 1
