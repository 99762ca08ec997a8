"""Counters shared by all replicas, in Redis. One ordered stream of commands per process, so that a
released slot is free for the next request.

Slots are leases: renewed while their request runs, so those of a replica that died lapse by
themselves. An answer that takes too long switches the store off; only a probe in the background
then waits, and switches it on again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from typing import Any, NamedTuple, cast

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from ferrule.admission.keys import Tenant
from ferrule.admission.stores import StoreUnavailable
from ferrule.admission.stores.bucket import Decision, Gate
from ferrule.admission.stores.lua import SCRIPT

ROUND_TRIP_S = 0.1
"""A request waits for at most two round trips: the one under way, and its own."""
BATCH_COMMANDS = 64
"""Some 8 ms of work for both sides, so that a deadline passed means the server and not the size of
the batch."""
PROBE_EVERY_S = 1.0
LEASE_S = 30.0
"""Renewed three times as often."""
KEY_PREFIX = "ferrule:limits:"


class _Command(NamedTuple):
    tenant: str
    arguments: tuple[str | int | float, ...]
    ticket: str = ""
    answer: asyncio.Future[Decision] | None = None
    """Set for a take alone."""


class RedisStore:
    """`url` as redis-py takes it. Opens nothing before the first take."""

    def __init__(
        self, url: str, *, lease_s: float = LEASE_S, probe_every_s: float = PROBE_EVERY_S
    ) -> None:
        self._client = redis.Redis.from_url(
            url,
            socket_timeout=ROUND_TRIP_S,
            socket_connect_timeout=ROUND_TRIP_S,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
        )
        self._lease_s = lease_s
        self._probe_every_s = probe_every_s
        self._sha = ""
        self._replica = uuid.uuid4().hex
        self._numbers = itertools.count()
        self._held: dict[str, str] = {}
        """Tenant's name by ticket: what is renewed."""
        self._outbox: list[_Command] = []
        self._has_work = asyncio.Event()
        self._is_down = False
        self._is_closing = False
        self._writer: asyncio.Task[None] | None = None

    async def take(self, tenant: Tenant, tokens: int, now: float) -> Decision:
        """`now` is ignored: Redis' clock counts."""
        self._ensure_writer()
        if self._is_down:
            raise StoreUnavailable("waiting for it to come back")
        ticket = f"{self._replica}:{next(self._numbers)}"
        answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        limits = (
            tenant.requests_per_minute or 0,
            tenant.tokens_per_minute or 0,
            tenant.concurrency or 0,
        )
        self._send(
            _Command(tenant.name, ("take", self._lease_s, ticket, tokens, *limits), ticket, answer)
        )
        try:
            return await answer
        except asyncio.CancelledError:
            if ticket in self._held:  # the reply came as the caller left
                self.give_back(tenant, ticket, -tokens, now)
            raise

    def give_back(self, tenant: Tenant, ticket: str, more_tokens: int, now: float) -> None:
        self._held.pop(ticket, None)
        self._send(self._release(tenant.name, ticket, tenant.tokens_per_minute or 0, more_tokens))

    async def close(self) -> None:
        """What was given back is still sent, unless the store is away."""
        self._is_closing = True
        self._has_work.set()
        if self._writer is not None:
            if self._is_down:
                self._writer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._writer
        await self._client.aclose()

    # One stream of commands

    def _send(self, command: _Command) -> None:
        self._outbox.append(command)
        self._has_work.set()
        self._ensure_writer()

    def _ensure_writer(self) -> None:
        if self._writer is None or (self._writer.done() and not self._is_closing):
            self._writer = asyncio.get_running_loop().create_task(
                self._write(), name="limits-store"
            )

    def _release(
        self, tenant: str, ticket: str, tokens_per_minute: int = 0, more_tokens: int = 0
    ) -> _Command:
        return _Command(
            tenant, ("give", self._lease_s, ticket, tokens_per_minute, more_tokens), ticket
        )

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        renew_at = loop.time() + self._lease_s / 3
        while self._outbox or not self._is_closing:
            if self._is_down:
                if self._is_closing:
                    return
                await asyncio.sleep(self._probe_every_s)
                await self._probe()
                continue
            if not self._outbox:
                self._has_work.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(renew_at):
                        await self._has_work.wait()
            if loop.time() >= renew_at:
                renew_at = loop.time() + self._lease_s / 3
                self._outbox += self._renewals()
            if self._outbox:
                await self._send_batch(self._next_batch())

    def _next_batch(self) -> list[_Command]:
        batch, self._outbox = self._outbox[:BATCH_COMMANDS], self._outbox[BATCH_COMMANDS:]
        return batch

    def _renewals(self) -> list[_Command]:
        tickets: dict[str, list[str]] = {}
        for ticket, tenant in self._held.items():
            tickets.setdefault(tenant, []).append(ticket)
        return [
            _Command(tenant, ("renew", self._lease_s, *held)) for tenant, held in tickets.items()
        ]

    async def _send_batch(self, batch: list[_Command]) -> None:
        try:
            async with asyncio.timeout(ROUND_TRIP_S):
                results = await self._run(batch)
        except TimeoutError:
            self._lose(batch, "timed out")
        except (RedisError, OSError) as error:
            self._lose(batch, type(error).__name__)
        except BaseException:
            self._lose(batch, "stopped")
            raise
        else:
            for command, result in zip(batch, results, strict=True):
                self._answer(command, result)

    async def _run(self, batch: list[_Command]) -> list[Any]:
        if not self._sha:
            self._sha = await self._client.script_load(SCRIPT)
        results = await self._pipelined(batch)
        if any(isinstance(result, NoScriptError) for result in results):
            # Redis was restarted and has lost the script, so none of the batch ran
            self._sha = await self._client.script_load(SCRIPT)
            results = await self._pipelined(batch)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    async def _pipelined(self, batch: list[_Command]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipeline:
            for command in batch:
                name = f"{KEY_PREFIX}{{{command.tenant}}}"
                pipeline.evalsha(self._sha, 2, name, f"{name}:slots", *cast(Any, command.arguments))
            return await pipeline.execute(raise_on_error=False)

    def _answer(self, command: _Command, result: list[str]) -> None:
        if command.answer is None:
            return
        refused_by, wait_s, requests_debt_s, tokens_debt_s = result
        is_taken = not refused_by
        if command.answer.done():
            # the caller is gone: release what it took
            if is_taken:
                self._send(self._release(command.tenant, command.ticket))
            return
        if is_taken:
            self._held[command.ticket] = command.tenant
        limit = cast(Gate, refused_by) if refused_by else None
        command.answer.set_result(
            Decision(
                limit, float(wait_s), float(requests_debt_s), float(tokens_debt_s), command.ticket
            )
        )

    # Outages

    def _lose(self, batch: list[_Command], reason: str) -> None:
        """The fate of the batch is unknown: waiters get an error, and its tickets are released once
        Redis is back."""
        self._is_down = True
        waiting = batch + self._outbox
        for command in waiting:
            if command.answer is not None and not command.answer.done():
                command.answer.set_exception(StoreUnavailable(reason))
        self._outbox = [
            self._release(command.tenant, command.ticket) for command in waiting if command.ticket
        ]

    async def _probe(self) -> None:
        with contextlib.suppress(TimeoutError, RedisError, OSError):
            async with asyncio.timeout(ROUND_TRIP_S):
                # A write, since a server may answer and still refuse to keep anything
                await self._client.set(f"{KEY_PREFIX}probe", 1, px=1000)
                self._is_down = False
                self._has_work.set()
