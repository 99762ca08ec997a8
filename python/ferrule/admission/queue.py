"""Who waits for a place in a full pool: a bounded line, first come first served, each for a bounded
time.

It knows nothing of pools: the caller says how to try, and wakes the line when trying may succeed.
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
    """`size` may wait, each up to `timeout_s`. Size 0: nobody waits."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self.size = size
        self.timeout_s = timeout_s
        # In the order of the line; leaving from its middle is cheap
        self._waiters: dict[asyncio.Event, None] = {}

    @property
    def depth(self) -> int:
        return len(self._waiters)

    async def wait_turn(self, try_take: Callable[[], T | None], *, skips_tried: bool = False) -> T:
        """What `try_take` gives once it gives something, never before those who came earlier.
        Failure 529 when full or too late.

        `skips_tried`: it does not take every place, so one that it leaves is offered to the next in
        line. A caller that is cancelled leaves the line at once; a wake that was meant for it goes
        on to the next.
        """
        if not self._waiters:
            taken = try_take()
            if taken is not None:
                return taken
        if len(self._waiters) >= self.size:
            raise self._refusal("All backends are busy and the queue is full.")
        return await self._in_line(try_take, skips_tried)

    def wake(self) -> None:
        """A place may be free: the first in line tries, and after it the next, until one gets
        nothing."""
        if self._waiters:
            next(iter(self._waiters)).set()

    async def _in_line(self, try_take: Callable[[], T | None], skips_tried: bool) -> T:
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
            raise self._refusal("All backends are busy; no place came free in time.") from None
        finally:
            del self._waiters[turn]
            # Whoever leaves may have been woken for a place it did not take, and more than one may
            # be free
            self.wake()

    def _wake_behind(self, turn: asyncio.Event) -> None:
        line = iter(self._waiters)
        while next(line) is not turn:
            pass
        behind = next(line, None)
        if behind is not None:
            behind.set()

    def _refusal(self, message: str) -> Failure:
        return Failure(
            529,
            message,
            retry_after_s=math.ceil(min(self.timeout_s, RETRY_AFTER_MAX_S)),
        )
