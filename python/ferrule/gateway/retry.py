"""Getting one request answered by a pool: choose a backend, send, wait for the first event;
whatever fails before it, try the next.

Nothing of a failed attempt reaches the client. What the attempts came to is left in the stream;
what cannot be mended is raised.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from time import monotonic, time

import msgspec

from ferrule import _core
from ferrule._core import ResponseStream
from ferrule.backends.connections import ConnectFailed
from ferrule.backends.pool import BackendPool
from ferrule.errors import Failure
from ferrule.http.retry_after import parse_retry_after
from ferrule.routing.backend import Backend
from ferrule.routing.balancer import Attempt
from ferrule.routing.health import Verdict
from ferrule.routing.selection import AFFINITY, Choice
from ferrule.telemetry.request_record import RequestRecord

NO_BACKEND_WAIT_S = 10.0
"""How long a request waits for a pool none of whose backends can be used, at most."""
RETRY_AFTER_CAP_S = 60
NO_BACKEND = "No backend can take the request at the moment."


class UpstreamRequest(msgspec.Struct):
    """What is sent, and on whose behalf. `head` makes the client's head once the backend is
    known."""

    path: str
    body: bytes
    key: bytes | None
    head: Callable[[str, str], bytes]
    extra_headers: str = ""


class AttemptResult(msgspec.Struct, frozen=True):
    """What an attempt came to: for the backend's health, and for the client (None: the reply is
    told, or its body is there)."""

    verdict: Verdict
    failure: Failure | None = None
    may_retry: bool = False
    code: str = "200"


_CLIENT_GONE = AttemptResult(Verdict.CLIENT_GONE, code="client_gone")
_ANSWERED = AttemptResult(Verdict.OK)
_NO_WORD = AttemptResult(Verdict.NEUTRAL)


async def send_with_retries(
    pool: BackendPool, stream: ResponseStream, sending: UpstreamRequest, record: RequestRecord
) -> None:
    """Raises Failure when no backend could answer. What then is told, and how, depends on
    `stream.is_committed`."""
    tried: set[str] = set()
    retries = 0
    while True:
        taken = _try_start(pool, sending.key, tried) if pool.queue.depth == 0 else None
        choice, attempt = taken or await _wait_in_queue(pool, sending.key, tried, record)
        judgement = _CLIENT_GONE
        try:
            record.set_choice(choice)
            if attempt.is_trial or attempt.is_retry:
                stream.on_first_event(partial(pool.balancer.record_success, attempt))
            stream.set_head(sending.head(choice.backend.name, AFFINITY[choice.branch]))
            judgement = await _attempt(pool, choice.backend, stream, sending, record)
        finally:
            pool.balancer.end(attempt, judgement.verdict, monotonic())
            pool.metrics.backend_requests.inc(pool.name, choice.backend.name, judgement.code)
            pool.queue.wake()
        if judgement.failure is None:
            return
        tried.add(choice.backend.name)
        may_retry = judgement.may_retry and pool.balancer.may_retry(retries, judgement.verdict)
        if not may_retry or not pool.balancer.has_untried(tried, monotonic()):
            raise judgement.failure
        retries += 1
        pool.metrics.retries.inc(judgement.verdict.value)


def _try_start(
    pool: BackendPool, key: bytes | None, tried: set[str]
) -> tuple[Choice, Attempt] | None:
    """A backend and a place on it, if there is one now."""
    now = monotonic()
    choice = pool.balancer.choose(key, tried, now)
    return None if choice is None else (choice, pool.balancer.start(choice, key, now))


async def _wait_in_queue(
    pool: BackendPool, key: bytes | None, tried: set[str], record: RequestRecord
) -> tuple[Choice, Attempt]:
    """Waits in the pool's queue while all are full."""
    take = partial(_try_start, pool, key, tried)
    began = monotonic()
    try:
        if pool.balancer.has_untried(tried, began):
            return await pool.queue.wait_turn(take, skips_tried=bool(tried))
        async with asyncio.timeout(min(NO_BACKEND_WAIT_S, pool.queue.timeout_s)):
            return await pool.queue.wait_turn(take, skips_tried=bool(tried))
    except Failure:
        pool.metrics.limited.inc("queue")
        raise
    except TimeoutError:
        raise Failure(529, NO_BACKEND, headers={"retry-after": "5"}) from None
    finally:
        record.queued_s += monotonic() - began


async def _attempt(
    pool: BackendPool,
    backend: Backend,
    stream: ResponseStream,
    sending: UpstreamRequest,
    record: RequestRecord,
) -> AttemptResult:
    upstream = pool.upstream(backend)
    chunks = (
        upstream.request_head(sending.path, len(sending.body), sending.extra_headers),
        sending.body,
    )
    connection = upstream.take_idle()
    while True:
        is_kept = connection is not None
        if connection is None:
            try:
                began = monotonic()
                connection = await upstream.connect()
                record.connected_s += monotonic() - began
            except ConnectFailed as failed:
                return AttemptResult(
                    Verdict.CONNECT_ERROR,
                    _unreachable_failure(str(failed)),
                    may_retry=True,
                    code="connect_error",
                )
        waiter = asyncio.get_running_loop().create_future()
        try:
            connection.start(stream, waiter, chunks)
            await waiter
        except BaseException:
            stream.abort()
            raise
        finally:
            upstream.give_back(connection)
        end = stream.end
        if not is_kept or end != "untouched":
            return _classify(stream, end)
        # The backend closed a kept connection in the moment it was picked: it has read nothing, so
        # the same again on a fresh one.
        pool.metrics.retries.inc("stale_connection")
        connection = None


def _classify(stream: ResponseStream, end: str | None) -> AttemptResult:
    if end == "complete":
        return _ANSWERED
    if end in ("budget", "failed"):
        return _ANSWERED if stream.has_started else _NO_WORD
    if end == "collected":
        return _ANSWERED if stream.status == 200 else _classify_refusal(stream)
    if end in ("timeout", "overtime"):
        is_silence = (
            end == "timeout" and not stream.has_started
        )  # a long answer says nothing of the backend's health
        failure = (
            None if stream.has_started else Failure(504, "The backend did not answer in time.")
        )
        return AttemptResult(
            Verdict.BROKEN if is_silence else Verdict.NEUTRAL, failure, code="timeout"
        )
    if (
        end == "untouched"
    ):  # also where a reply was to go on after its thinking budget: the client waits for the rest
        return AttemptResult(
            Verdict.BROKEN,
            Failure(502, "The backend closed the connection without an answer."),
            may_retry=True,
            code="reset",
        )
    if stream.has_started:
        return AttemptResult(Verdict.NEUTRAL, code="broken")
    outcome = stream.outcome
    if outcome.fault_status is None:
        return AttemptResult(
            Verdict.BROKEN, Failure(502, stream.fault), may_retry=True, code="broken"
        )
    failure = Failure(outcome.fault_status, outcome.fault_message or "", kind=outcome.fault_kind)
    is_theirs = 400 <= failure.status < 500 and failure.status != 429
    return AttemptResult(
        Verdict.NEUTRAL if is_theirs else Verdict.SERVER_ERROR,
        failure,
        may_retry=not is_theirs,
        code="error_event",
    )


def _classify_refusal(stream: ResponseStream) -> AttemptResult:
    """An answer other than 200. Only engines' own trouble is worth another backend; a 4xx would be
    one everywhere."""
    status = stream.status
    told_status, kind, message, is_draining = _core.backend_error(status, stream.take_body())
    failure = Failure(
        told_status, message, kind=kind, headers=_retry_after(stream.retry_after, told_status)
    )
    if is_draining:
        return AttemptResult(Verdict.DRAINING, failure, may_retry=True, code=str(status))
    if status == 429:
        return AttemptResult(Verdict.BUSY, failure, may_retry=True, code="429")
    if status >= 500 and told_status >= 429:
        return AttemptResult(Verdict.SERVER_ERROR, failure, may_retry=True, code=str(status))
    return AttemptResult(Verdict.NEUTRAL, failure, code=str(status))


def _retry_after(said: str | None, status: int) -> dict[str, str]:
    """A backend's own wish up to a minute; where one is due and there is none, a short one."""
    wanted_s = parse_retry_after(said, time())
    if wanted_s > 0:
        return {"retry-after": str(min(math.ceil(wanted_s), RETRY_AFTER_CAP_S))}
    return {"retry-after": "2"} if status in (429, 529) else {}


def _unreachable_failure(message: str) -> Failure:
    return Failure(529, f"{message[0].upper()}{message[1:]}.", headers={"retry-after": "2"})
