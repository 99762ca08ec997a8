"""Many clients at once, in one loop: each turn is kept with its status, bytes and moments; nothing
is raised, nothing tried again."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from tests.doubles.events import read_events
from tests.doubles.proxy import REQ, Ferrule

SESSION = "x-claude-code-session-id"


@dataclass
class Turn:
    """One request and what came of it. `failure`: the connection's, if it had one. `moments`: of
    each read, monotonic."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes = b""
    failure: str | None = None
    began: float = 0.0
    ended: float = 0.0
    moments: list[float] = field(default_factory=list)

    @property
    def took_s(self) -> float:
        return self.ended - self.began

    @property
    def backend(self) -> str:
        return self.headers["x-ferrule-backend"]

    @property
    def is_good(self) -> bool:
        """A 200 that was told to its end."""
        if self.status != 200 or self.failure is not None:
            return False
        return (
            not self.headers["content-type"].startswith("text/event-stream")
            or self.last_event == "message_stop"
        )

    @property
    def last_event(self) -> str:
        return read_events(self.raw)[-1].name


class Crowd:
    """Clients of one proxy. `turns` are all that were begun, whether they are over or not."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.http = http
        self.turns: list[Turn] = []

    async def ask(
        self, path: str = "/v1/messages", headers: dict[str, str] | None = None, **overrides: Any
    ) -> Turn:
        turn = Turn(began=time.monotonic())
        self.turns.append(turn)
        try:
            async with self.http.post(path, json=REQ(**overrides), headers=headers) as answer:
                turn.status, turn.headers = (
                    answer.status,
                    {name.lower(): value for name, value in answer.headers.items()},
                )
                async for data in answer.content.iter_any():
                    turn.moments.append(time.monotonic())
                    turn.raw += data
        except (aiohttp.ClientError, OSError, TimeoutError) as failure:
            turn.failure = repr(failure)
        turn.ended = time.monotonic()
        return turn

    async def stream(self, session: str, tokens: int, **overrides: Any) -> Turn:
        """A streamed turn of a session, of so many tokens."""
        overrides.setdefault(
            "messages", [{"role": "user", "content": f"[[tokens:{tokens}]] {session}"}]
        )
        headers = {SESSION: session, **overrides.pop("headers", {})}
        return await self.ask(headers=headers, stream=True, max_tokens=tokens + 8, **overrides)


@asynccontextmanager
async def crowd(proxy: Ferrule) -> AsyncIterator[Crowd]:
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(
        f"http://{proxy.listen}", connector=aiohttp.TCPConnector(limit=0), timeout=timeout
    ) as http:
        yield Crowd(http)


async def until(condition: Callable[[], Any], timeout_s: float, what: str) -> None:
    """Polls without holding up the loop; blocking conditions run beside it."""
    deadline = time.monotonic() + timeout_s
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain for {what}"
        await asyncio.sleep(0.02)


def bad(turns: Iterable[Turn]) -> list[tuple[int, str | None, bytes]]:
    """What is wrong with turns that should all have been good; empty if nothing is."""
    return [(turn.status, turn.failure, turn.raw[-200:]) for turn in turns if not turn.is_good]


def percentile(values: Sequence[float], share: float = 0.99) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def gaps(turns: Iterable[Turn]) -> list[float]:
    """Seconds between one read and the next, over all turns."""
    return [
        later - earlier for turn in turns for earlier, later in itertools.pairwise(turn.moments)
    ]


async def best_of(tries: int, measure: Callable[[], Awaitable[float]], bar: float) -> list[float]:
    """Measures until the bar is met. Another load on the machine makes a number worse, never
    better."""
    measured: list[float] = []
    while len(measured) < tries:
        measured.append(await measure())
        if measured[-1] < bar:
            break
    return measured
