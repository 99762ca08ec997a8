"""Counters shared by all replicas, in Redis. One ordered stream of commands per process, so that a
released slot is free for the next request.

Slots are leases, renewed while their request runs, so that those of a dead replica expire. A slow
reply marks the store as down; from then on only a background probe waits for Redis, and marks it as
up again.
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
from ferrule.admission.stores.bucket import Decision, LimitName
from ferrule.admission.stores.lua import SCRIPT

ROUND_TRIP_S = 0.1
"""A request waits for at most two round trips: the current one and its own."""
BATCH_COMMANDS = 64
"""About 8 ms of work for both sides, so that a timeout is Redis' fault and not the batch size's."""
PROBE_EVERY_S = 1.0
LEASE_S = 30.0
"""Renewed every third of it."""
KEY_PREFIX = "ferrule:limits:"


class _Command(NamedTuple):
    tenant: str
    arguments: tuple[str | int | float, ...]
    ticket: str = ""
    decision: asyncio.Future[Decision] | None = None
    """Set for `take` only."""


class RedisStore:
    """`url` as redis-py takes it. Connects at the first `take`."""

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
        self._sequence = itertools.count()
        self._tenant_by_ticket: dict[str, str] = {}
        """The leases to renew; tenants by name."""
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
        ticket = f"{self._replica}:{next(self._sequence)}"
        decision: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        limits = (
            tenant.requests_per_minute or 0,
            tenant.tokens_per_minute or 0,
            tenant.concurrency or 0,
        )
        self._enqueue(
            _Command(
                tenant.name, ("take", self._lease_s, ticket, tokens, *limits), ticket, decision
            )
        )
        try:
            return await decision
        except asyncio.CancelledError:
            if ticket in self._tenant_by_ticket:  # the reply came as the caller left
                self.release(tenant, ticket, -tokens, now)
            raise

    def release(self, tenant: Tenant, ticket: str, extra_tokens: int, now: float) -> None:
        self._tenant_by_ticket.pop(ticket, None)
        self._enqueue(
            self._build_release(tenant.name, ticket, tenant.tokens_per_minute or 0, extra_tokens)
        )

    async def close(self) -> None:
        """Sends outstanding releases first, unless Redis is down."""
        self._is_closing = True
        self._has_work.set()
        if self._writer is not None:
            if self._is_down:
                self._writer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._writer
        await self._client.aclose()

    # The stream of commands

    def _enqueue(self, command: _Command) -> None:
        self._outbox.append(command)
        self._has_work.set()
        self._ensure_writer()

    def _ensure_writer(self) -> None:
        if self._writer is None or (self._writer.done() and not self._is_closing):
            self._writer = asyncio.get_running_loop().create_task(
                self._write(), name="limits-store"
            )

    def _build_release(
        self, tenant: str, ticket: str, tokens_per_minute: int = 0, extra_tokens: int = 0
    ) -> _Command:
        return _Command(
            tenant, ("give", self._lease_s, ticket, tokens_per_minute, extra_tokens), ticket
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
                self._outbox += self._build_renewals()
            if self._outbox:
                await self._send_batch(self._pop_batch())

    def _pop_batch(self) -> list[_Command]:
        batch, self._outbox = self._outbox[:BATCH_COMMANDS], self._outbox[BATCH_COMMANDS:]
        return batch

    def _build_renewals(self) -> list[_Command]:
        tickets: dict[str, list[str]] = {}
        for ticket, tenant in self._tenant_by_ticket.items():
            tickets.setdefault(tenant, []).append(ticket)
        return [_Command(tenant, ("renew", self._lease_s, *own)) for tenant, own in tickets.items()]

    async def _send_batch(self, batch: list[_Command]) -> None:
        try:
            async with asyncio.timeout(ROUND_TRIP_S):
                results = await self._run_batch(batch)
        except TimeoutError:
            self._fail_batch(batch, "timed out")
        except (RedisError, OSError) as error:
            self._fail_batch(batch, type(error).__name__)
        except BaseException:
            self._fail_batch(batch, "stopped")
            raise
        else:
            for command, result in zip(batch, results, strict=True):
                self._deliver(command, result)

    async def _run_batch(self, batch: list[_Command]) -> list[Any]:
        if not self._sha:
            self._sha = await self._client.script_load(SCRIPT)
        results = await self._run_pipeline(batch)
        if any(isinstance(result, NoScriptError) for result in results):
            # Redis was restarted and has lost the script, so none of the batch ran.
            self._sha = await self._client.script_load(SCRIPT)
            results = await self._run_pipeline(batch)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    async def _run_pipeline(self, batch: list[_Command]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipeline:
            for command in batch:
                name = f"{KEY_PREFIX}{{{command.tenant}}}"
                pipeline.evalsha(self._sha, 2, name, f"{name}:slots", *cast(Any, command.arguments))
            return await pipeline.execute(raise_on_error=False)

    def _deliver(self, command: _Command, result: list[str]) -> None:
        if command.decision is None:
            return
        refused_by, wait_s, requests_debt_s, tokens_debt_s = result
        is_taken = not refused_by
        if command.decision.done():
            # The caller is gone: release what it took.
            if is_taken:
                self._enqueue(self._build_release(command.tenant, command.ticket))
            return
        if is_taken:
            self._tenant_by_ticket[command.ticket] = command.tenant
        command.decision.set_result(
            Decision(
                cast(LimitName, refused_by) if refused_by else None,
                float(wait_s),
                float(requests_debt_s),
                float(tokens_debt_s),
                command.ticket,
            )
        )

    # Outages

    def _fail_batch(self, batch: list[_Command], reason: str) -> None:
        """The fate of the batch is unknown: waiters get an error, and its tickets are released once
        Redis is back."""
        self._is_down = True
        unsent = batch + self._outbox
        for command in unsent:
            if command.decision is not None and not command.decision.done():
                command.decision.set_exception(StoreUnavailable(reason))
        self._outbox = [
            self._build_release(command.tenant, command.ticket)
            for command in unsent
            if command.ticket
        ]

    async def _probe(self) -> None:
        with contextlib.suppress(TimeoutError, RedisError, OSError):
            async with asyncio.timeout(ROUND_TRIP_S):
                # A write: a read-only replica answers reads but cannot keep counters
                await self._client.set(f"{KEY_PREFIX}probe", 1, px=1000)
                self._is_down = False
                self._has_work.set()
