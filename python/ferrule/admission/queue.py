"""The queue of a full pool: bounded, first come first served, with a deadline for each waiter.

It knows nothing of pools: callers pass a function to try, and wake the queue when it may succeed.
Nothing polls.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TypeVar

from ferrule.errors import Failure

T = TypeVar("T")

RETRY_AFTER_MAX_S = 5


class Queue:
    """Up to `size` callers wait, each for up to `timeout_s`. Size 0: a full pool refuses at
    once."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self.size = size
        self.timeout_s = timeout_s
        # Insertion order is queue order; a dict makes leaving from the middle cheap.
        self._waiters: dict[asyncio.Event, None] = {}

    @property
    def depth(self) -> int:
        return len(self._waiters)

    async def wait_turn(self, try_take: Callable[[], T | None], *, skips_tried: bool = False) -> T:
        """The first result of `try_take`, not before earlier waiters got theirs. Raises Failure 529
        if the queue is full or the deadline passes.

        `skips_tried`: the caller may decline a slot; the next waiter is then woken. A cancelled
        caller leaves at once, and its wake-up is passed on.
        """
        if not self._waiters:
            taken = try_take()
            if taken is not None:
                return taken
        if len(self._waiters) >= self.size:
            raise self._make_refusal("All backends are busy and the queue is full.")
        return await self._wait_in_line(try_take, skips_tried)

    def wake(self) -> None:
        """A slot may be free: waiters try in order until one gets nothing."""
        if self._waiters:
            next(iter(self._waiters)).set()

    async def _wait_in_line(self, try_take: Callable[[], T | None], skips_tried: bool) -> T:
        turn = asyncio.Event()
        self._waiters[turn] = None
        try:
            async with asyncio.timeout(self.timeout_s):
                while True:
                    await turn.wait()
                    taken = try_take()
                    if taken is not None:
                        return taken
                    turn.clear()
                    if skips_tried:
                        self._wake_behind(turn)
        except TimeoutError:
            raise self._make_refusal("All backends are busy; no place came free in time.") from None
        finally:
            del self._waiters[turn]
            # This waiter may have been woken for a slot it did not take, or more than one slot may
            # be free: pass the wake-up on.
            self.wake()

    def _wake_behind(self, turn: asyncio.Event) -> None:
        line = iter(self._waiters)
        while next(line) is not turn:
            pass
        behind = next(line, None)
        if behind is not None:
            behind.set()

    def _make_refusal(self, message: str) -> Failure:
        return Failure(
            529,
            message,
            retry_after_s=math.ceil(min(self.timeout_s, RETRY_AFTER_MAX_S)),
        )
