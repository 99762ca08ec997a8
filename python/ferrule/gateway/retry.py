"""Getting one request answered by a pool: choose a backend, send, wait for the first event; whatever fails before it, try the next.

Nothing of a failed attempt reaches the client. What the attempts came to is left in the exchange; what cannot be mended is raised.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from time import monotonic, time

import msgspec

from ferrule import _core
from ferrule._core import Exchange
from ferrule.backends.connections import ConnectFailed
from ferrule.backends.pool import Fleet
from ferrule.errors import Failure
from ferrule.http.retry_after import seconds_of
from ferrule.routing.backend import Backend
from ferrule.routing.balancer import Attempt
from ferrule.routing.health import Verdict
from ferrule.routing.selection import AFFINITY, Choice
from ferrule.telemetry.request_record import Record

NO_BACKEND_WAIT_S = 10.0
"""How long a request waits for a pool none of whose backends can be used, at most."""
RETRY_AFTER_CAP_S = 60
NO_BACKEND = "No backend can take the request at the moment."


class Sending(msgspec.Struct):
    """What is sent, and on whose behalf. `head` makes the client's head once the backend is known."""

    path: str
    body: bytes
    key: bytes | None
    head: Callable[[str, str], bytes]
    extra_headers: str = ""


class _Judgement(msgspec.Struct, frozen=True):
    """What an attempt came to: for the backend's health, and for the client (None: the reply is told, or its body is there)."""

    verdict: Verdict
    failure: Failure | None = None
    may_retry: bool = False
    code: str = "200"


_CLIENT_GONE = _Judgement(Verdict.CLIENT_GONE, code="client_gone")
_ANSWERED = _Judgement(Verdict.OK)
_NO_WORD = _Judgement(Verdict.NEUTRAL)


async def dispatch(fleet: Fleet, exchange: Exchange, sending: Sending, record: Record) -> None:
    """Raises Failure when no backend could answer. What then is told, and how, depends on `exchange.is_committed`."""
    tried: set[str] = set()
    retries = 0
    while True:
        taken = _take(fleet, sending.key, tried) if fleet.queue.depth == 0 else None
        choice, attempt = taken or await _turn(fleet, sending.key, tried, record)
        judgement = _CLIENT_GONE
        try:
            record.chosen(choice)
            if attempt.is_trial or attempt.is_retry:
                exchange.on_first_event(partial(fleet.pool.answered, attempt))
            exchange.set_head(sending.head(choice.backend.name, AFFINITY[choice.branch]))
            judgement = await _attempt(fleet, choice.backend, exchange, sending, record)
        finally:
            fleet.pool.end(attempt, judgement.verdict, monotonic())
            fleet.metrics.backend_requests.inc(fleet.name, choice.backend.name, judgement.code)
            fleet.queue.wake()
        if judgement.failure is None:
            return
        tried.add(choice.backend.name)
        may_retry = judgement.may_retry and fleet.pool.may_retry(retries, judgement.verdict)
        if not may_retry or not fleet.pool.has_untried(tried, monotonic()):
            raise judgement.failure
        retries += 1
        fleet.metrics.retries.inc(judgement.verdict.value)


def _take(fleet: Fleet, key: bytes | None, tried: set[str]) -> tuple[Choice, Attempt] | None:
    """A backend and a place on it, if there is one now."""
    now = monotonic()
    choice = fleet.pool.choose(key, tried, now)
    return None if choice is None else (choice, fleet.pool.start(choice, key, now))


async def _turn(fleet: Fleet, key: bytes | None, tried: set[str], record: Record) -> tuple[Choice, Attempt]:
    """Waits in the pool's queue while all are full."""
    take = partial(_take, fleet, key, tried)
    began = monotonic()
    try:
        if fleet.pool.has_untried(tried, began):
            return await fleet.queue.wait_turn(take, is_choosy=bool(tried))
        async with asyncio.timeout(min(NO_BACKEND_WAIT_S, fleet.queue.timeout_s)):
            return await fleet.queue.wait_turn(take, is_choosy=bool(tried))
    except Failure:
        fleet.metrics.limited.inc("queue")
        raise
    except TimeoutError:
        raise Failure(529, NO_BACKEND, headers={"retry-after": "5"}) from None
    finally:
        record.queued_s += monotonic() - began


async def _attempt(fleet: Fleet, backend: Backend, exchange: Exchange, sending: Sending, record: Record) -> _Judgement:
    upstream = fleet.upstream(backend)
    pieces = (upstream.request_head(sending.path, len(sending.body), sending.extra_headers), sending.body)
    relay = upstream.take_idle()
    while True:
        is_kept = relay is not None
        if relay is None:
            try:
                began = monotonic()
                relay = await upstream.connect()
                record.connected_s += monotonic() - began
            except ConnectFailed as failed:
                return _Judgement(Verdict.CONNECT_ERROR, _unreachable(str(failed)), may_retry=True, code="connect_error")
        waiter = asyncio.get_running_loop().create_future()
        try:
            relay.start(exchange, waiter, pieces)
            await waiter
        except BaseException:
            exchange.abort()
            raise
        finally:
            upstream.give_back(relay)
        end = exchange.end
        if not is_kept or end != "untouched":
            return _judge(exchange, end)
        # The backend closed a kept connection in the moment it was picked: it has read nothing, so the same again on a fresh one.
        fleet.metrics.retries.inc("stale_connection")
        relay = None


def _judge(exchange: Exchange, end: str | None) -> _Judgement:
    if end == "complete":
        return _ANSWERED
    if end in ("budget", "failed"):
        return _ANSWERED if exchange.has_started else _NO_WORD
    if end == "collected":
        return _ANSWERED if exchange.status == 200 else _refused(exchange)
    if end in ("timeout", "overtime"):
        is_silence = end == "timeout" and not exchange.has_started  # a long answer says nothing of the backend's health
        failure = None if exchange.has_started else Failure(504, "The backend did not answer in time.")
        return _Judgement(Verdict.BROKEN if is_silence else Verdict.NEUTRAL, failure, code="timeout")
    if end == "untouched":  # also where a reply was to go on after its thinking budget: the client waits for the rest
        return _Judgement(
            Verdict.BROKEN, Failure(502, "The backend closed the connection without an answer."), may_retry=True, code="reset"
        )
    if exchange.has_started:
        return _Judgement(Verdict.NEUTRAL, code="broken")
    outcome = exchange.outcome
    if outcome.fault_status is None:
        return _Judgement(Verdict.BROKEN, Failure(502, exchange.fault), may_retry=True, code="broken")
    failure = Failure(outcome.fault_status, outcome.fault_message or "", kind=outcome.fault_kind)
    is_theirs = 400 <= failure.status < 500 and failure.status != 429
    return _Judgement(Verdict.NEUTRAL if is_theirs else Verdict.SERVER_ERROR, failure, may_retry=not is_theirs, code="error_event")


def _refused(exchange: Exchange) -> _Judgement:
    """An answer other than 200. Only engines' own trouble is worth another backend; a 4xx would be one everywhere."""
    status = exchange.status
    told_status, kind, message, is_draining = _core.backend_error(status, exchange.take_body())
    failure = Failure(told_status, message, kind=kind, headers=_retry_after(exchange.retry_after, told_status))
    if is_draining:
        return _Judgement(Verdict.DRAINING, failure, may_retry=True, code=str(status))
    if status == 429:
        return _Judgement(Verdict.BUSY, failure, may_retry=True, code="429")
    if status >= 500 and told_status >= 429:
        return _Judgement(Verdict.SERVER_ERROR, failure, may_retry=True, code=str(status))
    return _Judgement(Verdict.NEUTRAL, failure, code=str(status))


def _retry_after(said: str | None, status: int) -> dict[str, str]:
    """A backend's own wish up to a minute; where one is due and there is none, a short one."""
    wanted_s = seconds_of(said, time())
    if wanted_s > 0:
        return {"retry-after": str(min(math.ceil(wanted_s), RETRY_AFTER_CAP_S))}
    return {"retry-after": "2"} if status in (429, 529) else {}


def _unreachable(message: str) -> Failure:
    return Failure(529, f"{message[0].upper()}{message[1:]}.", headers={"retry-after": "2"})
