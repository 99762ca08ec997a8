"""Simulates agent sessions on machines with prefix caches, to compare routing by session with other
policies.

Time and machines are a model (affinity_model.py); nothing is measured on engines. `ferrule.routing`
is real: the policy `ferrule` is the proxy's own balancer, and the others use its hashing.

    python bench/affinity.py [--minutes 30] [--out bench/results]
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.affinity_chart import draw_chart
from bench.affinity_model import Policy, Score, Simulation, World

from ferrule._core import rank
from ferrule.routing.backend import Backend, BackendSpec
from ferrule.routing.balancer import Attempt, Balancer, BalancerSettings
from ferrule.routing.health import HealthPolicy, Verdict
from ferrule.routing.selection import STRETCH

UNBOUNDED = 1_000_000
HOT_SHARE = 0.6
FANS = 6

Rule = Callable[[Sequence[Backend], Sequence[Backend]], Backend]
"""(backends in the session's rendezvous order, all backends by address) → the backend of a turn."""


class Results(msgspec.Struct):
    """`even`: each conversation is a session. `hot`: 60 % of the sessions are one user's, routed by
    session as the proxy does and by user for comparison. `fans`: a few sessions fan out into all
    conversations."""

    world: World
    even: list[Score]
    hot: list[Score]
    fans: list[Score]


class FerrulePolicy:
    """The proxy's own balancer."""

    def __init__(self, world: World) -> None:
        self.balancer = Balancer(
            "sim",
            BalancerSettings(
                slots=world.slots,
                max_inflight=UNBOUNDED,
                retries=0,
                health=HealthPolicy(interval_s=5, fall=2, rise=2),
            ),
        )
        self.balancer.update(
            [BackendSpec(f"http://10.0.0.{number}:8000") for number in range(world.machines)], 0.0
        )

    def start(self, key: bytes, now: float) -> Attempt:
        choice = self.balancer.select(key, frozenset(), now)
        assert choice is not None, "an unbounded pool always has a slot"
        return self.balancer.start(choice, key, now)

    def end(self, attempt: Attempt, now: float) -> None:
        self.balancer.end(attempt, Verdict.OK, now)


class RulePolicy:
    """The same backends, in the same rendezvous order for each session, chosen by another rule."""

    def __init__(self, world: World, rule: Rule) -> None:
        self._backends = FerrulePolicy(world).balancer.backends
        self._ranked = [(b.name, b.weight) for b in self._backends]
        self._orders: dict[bytes, list[Backend]] = {}
        self._rule = rule

    def start(self, key: bytes, now: float) -> Attempt:
        if key not in self._orders:
            self._orders[key] = [self._backends[i] for i in rank(key, self._ranked)]
        backend = self._rule(self._orders[key], self._backends)
        backend.inflight += 1
        return Attempt(backend, session=None, generation=0, is_trial=False, is_retry=False)

    def end(self, attempt: Attempt, now: float) -> None:
        attempt.backend.inflight -= 1


def make_round_robin() -> Rule:
    turns = itertools.count()
    return lambda order, backends: backends[next(turns) % len(backends)]


def make_two_choices(seed: int) -> Rule:
    rng = random.Random(seed)
    return lambda order, backends: min(rng.sample(backends, 2), key=lambda b: b.inflight)


def choose_rendezvous(order: Sequence[Backend], backends: Sequence[Backend]) -> Backend:
    return order[0]


def choose_textbook_bound(order: Sequence[Backend], backends: Sequence[Backend]) -> Backend:
    """Consistent hashing with bounded loads (Mirrokni et al. 2016): without a minimum bound, and
    without remembering where a session went."""
    bound = math.ceil(STRETCH * (sum(b.inflight for b in order) + 1) / len(order))
    return next(b for b in order if b.inflight < bound)


def key_by_session(number: int) -> bytes:
    return b"user-%d/session-%d" % (number, number)


def key_by_session_of_hot_user(number: int) -> bytes:
    return b"user-0/session-%d" % number if _is_hot(number) else key_by_session(number)


def key_by_hot_user(number: int) -> bytes:
    return b"user-0" if _is_hot(number) else b"user-%d" % number


def key_by_fan(number: int) -> bytes:
    return b"session-%d" % (number % FANS)


def _is_hot(number: int) -> bool:
    return number % 10 < HOT_SHARE * 10


def simulate(world: World) -> Results:
    policies: list[tuple[str, Policy]] = [
        ("round robin", RulePolicy(world, make_round_robin())),
        ("two choices", RulePolicy(world, make_two_choices(world.seed))),
        ("rendezvous", RulePolicy(world, choose_rendezvous)),
        ("textbook bound", RulePolicy(world, choose_textbook_bound)),
        ("ferrule", FerrulePolicy(world)),
    ]
    even = [Simulation(world, policy, key_by_session).run(name) for name, policy in policies]
    hot = [
        Simulation(world, RulePolicy(world, choose_rendezvous), key_by_hot_user).run(
            "rendezvous, by user"
        ),
        Simulation(world, FerrulePolicy(world), key_by_hot_user).run("ferrule, were it by user"),
        Simulation(world, FerrulePolicy(world), key_by_session_of_hot_user).run("ferrule"),
    ]
    fans = [
        Simulation(world, RulePolicy(world, choose_rendezvous), key_by_fan).run("rendezvous"),
        Simulation(world, RulePolicy(world, choose_textbook_bound), key_by_fan).run(
            "textbook bound"
        ),
        Simulation(world, FerrulePolicy(world), key_by_fan).run("ferrule"),
    ]
    return Results(world, even, hot, fans)


def find_missed_bars(results: Results) -> list[str]:
    """The targets that these results miss."""
    even = {score.policy: score for score in results.even}
    ours, robin, hot = even["ferrule"], even["round robin"], results.hot[-1]
    targets = [
        (ours.kv_hit_rate >= 0.95, f"KV hit rate {ours.kv_hit_rate:.1%} ≥ 95 %"),
        (robin.kv_hit_rate <= 0.45, f"round robin's KV hit rate {robin.kv_hit_rate:.1%} ≤ 45 %"),
        (ours.moved_turns <= 0.05, f"moved turns {ours.moved_turns:.1%} ≤ 5 %"),
        (
            hot.ttft_p95_s <= 2.0 * ours.ttft_p95_s,
            f"p95 with a hot user {hot.ttft_p95_s:.2f} s ≤ 2 × {ours.ttft_p95_s:.2f} s",
        ),
    ]
    return [text for is_met, text in targets if not is_met]


def render_table(scores: Sequence[Score]) -> str:
    header = f"{'policy':<26}{'KV hit':>9}{'moved':>9}{'TTFT p50':>11}{'TTFT p95':>11}{'turns':>9}"
    rows = [
        f"{s.policy:<26}{s.kv_hit_rate:>9.1%}{s.moved_turns:>9.1%}{s.ttft_p50_s:>9.2f} "
        f"s{s.ttft_p95_s:>9.2f} s{s.turns:>9}"
        for s in scores
    ]
    return "\n".join([header, *rows])


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulate routing policies under agent sessions.")
    parser.add_argument(
        "--minutes", type=float, default=World().minutes, help="simulated, after the warm-up"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).parent / "results",
        help="directory for affinity.json and affinity.svg",
    )
    options = parser.parse_args()
    world = World(minutes=options.minutes)
    results = simulate(world)
    print(
        f"A simulation: {world.sessions} agent sessions on {world.machines} machines, "
        f"{world.minutes:g} minutes.\n"
    )
    print(render_table(results.even))
    print(f"\n{HOT_SHARE:.0%} of the sessions belong to one user:\n\n{render_table(results.hot)}")
    print(f"\n{FANS} sessions fan out into all conversations:\n\n{render_table(results.fans)}\n")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "affinity.json").write_bytes(
        msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n"
    )
    (options.out / "affinity.svg").write_text(draw_chart(results.even))
    failures = find_missed_bars(results)
    print("\n".join(f"missed: {text}" for text in failures) or "All targets are met.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
