"""The model behind `affinity.py`: agent sessions in a closed loop, on machines that prefill one
request at a time and keep a prefix cache.

A discrete-event simulation. Of routing it knows only the Policy protocol.
"""

from __future__ import annotations

import heapq
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from ferrule.routing.balancer import Attempt


class World(msgspec.Struct, frozen=True):
    """The load and the machines. Pairs are the bounds of a uniform distribution."""

    machines: int = 8
    slots: int = 64
    cache_tokens: int = 5_500_000
    prefill_tokens_per_s: float = 20_000.0
    token_s: float = 0.02
    sessions: int = 400
    common_tokens: int = 4_000
    """The part of the first prompt that all sessions share; cached on every machine."""
    opening_tokens: tuple[int, int] = (2_000, 12_000)
    result_tokens: tuple[int, int] = (400, 2_400)
    output_tokens: tuple[int, int] = (60, 500)
    turns: tuple[int, int] = (30, 80)
    tool_s: tuple[float, float] = (0.5, 8.0)
    human_s: tuple[float, float] = (20.0, 180.0)
    human_share: float = 0.05
    """Turns that are followed by a person reading, not by a tool."""
    minutes: float = 30.0
    warm_up_s: float = 300.0
    seed: int = 7


class Policy(Protocol):
    """Chooses the backend of a turn. `end` gets what `start` returned."""

    def start(self, key: bytes, now: float) -> Attempt: ...
    def end(self, attempt: Attempt, now: float) -> None: ...


class Score(msgspec.Struct):
    """A policy's results. `moved_turns`: share of turns on another machine than the session's turn
    before."""

    policy: str
    kv_hit_rate: float
    moved_turns: float
    ttft_p50_s: float
    ttft_p95_s: float
    turns: int


class Session(msgspec.Struct, eq=False):
    number: int
    key: bytes
    history_tokens: int
    turns_left: int
    backend: str = ""


class Turn(msgspec.Struct, eq=False):
    session: Session
    attempt: Attempt
    sent_at: float
    output_tokens: int


class Machine:
    """An engine: `slots` requests at once, prefill one at a time, and an LRU prefix cache."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.running = 0
        self.waiting: deque[Turn] = deque()
        self._prefill_free_at = 0.0
        self._cache: OrderedDict[int, int] = OrderedDict()
        self._cached_tokens = 0

    def count_cached_tokens(self, session: Session) -> int:
        """Tokens of the session's prompt that need no prefill."""
        return min(
            session.history_tokens,
            max(self._cache.get(session.number, 0), self.world.common_tokens),
        )

    def first_token_at(self, session: Session, now: float) -> float:
        """When prefill ends, plus one decoding step. Attention makes a token cost more, the more
        tokens precede it."""
        new_tokens = session.history_tokens - self.count_cached_tokens(session)
        cost_s = (
            new_tokens / self.world.prefill_tokens_per_s * (1.0 + session.history_tokens / 200_000)
        )
        self._prefill_free_at = max(now, self._prefill_free_at) + cost_s
        return self._prefill_free_at + self.world.token_s

    def cache_history(self, session: Session) -> None:
        self._cached_tokens += session.history_tokens - self._cache.pop(session.number, 0)
        self._cache[session.number] = session.history_tokens
        while self._cached_tokens > self.world.cache_tokens:
            # Blocks are freed from the end of the least recently used history.
            oldest, held = next(iter(self._cache.items()))
            freed = min(held, self._cached_tokens - self.world.cache_tokens)
            self._cached_tokens -= freed
            if freed == held:
                del self._cache[oldest]
            else:
                self._cache[oldest] = held - freed


class Simulation:
    """One policy under one load. A session waits for each response, then for a tool or a reader,
    and sends its next turn with the whole history."""

    def __init__(self, world: World, policy: Policy, key_of: Callable[[int], bytes]) -> None:
        self.world = world
        self._policy = policy
        self._key_of = key_of
        self._rng = random.Random(world.seed)
        self._machines: dict[str, Machine] = {}
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._scheduled = self._opened = 0
        self._ttfts: list[float] = []
        self._prompt_tokens = self._hit_tokens = self._moved = 0

    def run(self, name: str) -> Score:
        for _ in range(self.world.sessions):
            self._at(self._rng.uniform(0.0, self.world.warm_up_s / 2), self._open_session)
        ends_at = self.world.warm_up_s + self.world.minutes * 60
        while self._events and self._events[0][0] < ends_at:
            now, _, action = heapq.heappop(self._events)
            action(now)
        ttfts = sorted(self._ttfts)
        return Score(
            policy=name,
            kv_hit_rate=self._hit_tokens / self._prompt_tokens,
            moved_turns=self._moved / len(ttfts),
            ttft_p50_s=ttfts[len(ttfts) // 2],
            ttft_p95_s=ttfts[len(ttfts) * 95 // 100],
            turns=len(ttfts),
        )

    def _at(self, when: float, action: Callable[[float], None]) -> None:
        self._scheduled += 1
        heapq.heappush(self._events, (when, self._scheduled, action))

    def _open_session(self, now: float) -> None:
        world, rng = self.world, self._rng
        opening = world.common_tokens + rng.randint(*world.opening_tokens)
        session = Session(
            self._opened, self._key_of(self._opened), opening, rng.randint(*world.turns)
        )
        self._opened += 1
        self._start_turn(session, now)

    def _start_turn(self, session: Session, now: float) -> None:
        attempt = self._policy.start(session.key, now)
        turn = Turn(session, attempt, now, self._rng.randint(*self.world.output_tokens))
        machine = self._machines.setdefault(attempt.backend.name, Machine(self.world))
        if machine.running < self.world.slots:
            self._run(machine, turn, now)
        else:
            machine.waiting.append(turn)

    def _run(self, machine: Machine, turn: Turn, now: float) -> None:
        machine.running += 1
        session = turn.session
        hit_tokens = machine.count_cached_tokens(session)
        first_at = machine.first_token_at(session, now)
        if turn.sent_at >= self.world.warm_up_s:
            self._prompt_tokens += session.history_tokens
            self._hit_tokens += hit_tokens
            self._moved += session.backend not in ("", turn.attempt.backend.name)
            self._ttfts.append(first_at - turn.sent_at)
        session.backend = turn.attempt.backend.name
        self._at(
            first_at + turn.output_tokens * self.world.token_s,
            lambda at: self._end(machine, turn, at),
        )

    def _end(self, machine: Machine, turn: Turn, now: float) -> None:
        self._policy.end(turn.attempt, now)
        session = turn.session
        session.history_tokens += turn.output_tokens
        session.turns_left -= 1
        machine.cache_history(session)
        machine.running -= 1
        if machine.waiting:
            self._run(machine, machine.waiting.popleft(), now)
        if session.turns_left == 0:
            self._at(now, self._open_session)
            return
        session.history_tokens += self._rng.randint(*self.world.result_tokens)
        is_read = self._rng.random() < self.world.human_share
        pause_s = self._rng.uniform(*(self.world.human_s if is_read else self.world.tool_s))
        self._at(now + pause_s, lambda at: self._start_turn(session, at))
