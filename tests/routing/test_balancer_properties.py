"""Whatever happens to a pool in whatever order, these hold."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.routing.settings import balancer_settings

from ferrule.routing.backend import BackendSpec
from ferrule.routing.balancer import Attempt, Balancer
from ferrule.routing.health import BreakerState, ProbeStatus, Verdict

MAX_INFLIGHT = 5


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pool = Balancer("p", balancer_settings(slots=2, max_inflight=MAX_INFLIGHT))
        self.attempts: list[Attempt] = []

    @rule(numbers=st.sets(st.integers(0, 6)), weight=st.sampled_from([1.0, 2.0]))
    def update(self, numbers: set[int], weight: float) -> None:
        self.pool.update(
            [BackendSpec(f"http://h{number}:1", weight) for number in numbers], self.now
        )

    @rule(key=st.none() | st.sampled_from([b"a", b"b", b"c"]), data=st.data())
    def request(self, key: bytes | None, data: st.DataObject) -> None:
        names = [b.name for b in self.pool.backends]
        tried = frozenset(data.draw(st.sets(st.sampled_from(names)))) if names else frozenset()
        choice = self.pool.select(key, tried, self.now)
        able = [
            b
            for b in self.pool.backends
            if not b.is_draining
            and b.health.is_usable(self.now)
            and b.inflight < MAX_INFLIGHT
            and b.name not in tried
        ]
        assert (choice is None) == (not able)
        if choice is None:
            return
        assert choice.backend in able
        assert (choice.branch == "keyless") == (key is None)
        self.attempts.append(self.pool.start(choice, key, self.now))

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), verdict=st.sampled_from(Verdict), is_answered=st.booleans())
    def end(self, data: st.DataObject, verdict: Verdict, is_answered: bool) -> None:
        attempt = self.attempts.pop(data.draw(st.integers(0, len(self.attempts) - 1)))
        if is_answered:
            self.pool.record_success(attempt)
        self.pool.end(attempt, verdict, self.now)

    @rule(data=st.data(), result=st.sampled_from(ProbeStatus), count=st.integers(1, 3))
    def probe(self, data: st.DataObject, result: ProbeStatus, count: int) -> None:
        if self.pool.backends:
            backend = data.draw(st.sampled_from(list(self.pool.backends)))
            for _ in range(count):
                self.pool.record_probe(backend, result, self.now, 2.0)

    @rule(seconds=st.floats(0.0, 100.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def counts_are_of_what_is_in_flight(self) -> None:
        assert self.pool.inflight == len(self.attempts)
        for backend in self.pool.backends:
            assert backend.inflight == sum(a.backend is backend for a in self.attempts)
            assert backend.sessions >= 0

    @invariant()
    def at_most_half_is_ejected_by_passive_signs(self) -> None:
        members = [b for b in self.pool.backends if not b.is_draining]
        out = [
            b
            for b in members
            if b.health.is_up is not False and b.health.breaker is not BreakerState.CLOSED
        ]
        assert len(out) <= len(members) // 2

    @invariant()
    def names_are_unique(self) -> None:
        assert len({b.name for b in self.pool.backends}) == len(self.pool.backends)

    def teardown(self) -> None:
        for attempt in self.attempts:
            self.pool.end(attempt, Verdict.CLIENT_GONE, self.now)
        assert self.pool.inflight == 0
        assert all(b.inflight == 0 for b in self.pool.backends)
        assert self.pool.status(self.now).retries == 0


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
