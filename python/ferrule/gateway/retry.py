"""Gets one request answered by a pool: choose a backend, send, wait for the first event; whatever
fails before it is retried on the next backend.

Nothing of a failed attempt reaches the client.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from time import monotonic, time

import msgspec

from ferrule import _core
from ferrule._core import ResponseEnd, ResponseStream
from ferrule.backends.connections import ConnectFailed
from ferrule.backends.pool import BackendPool
from ferrule.errors import Failure
from ferrule.http.retry_after import parse_retry_after
from ferrule.routing.backend import Backend
from ferrule.routing.balancer import Attempt
from ferrule.routing.health import Verdict
from ferrule.routing.selection import Choice
from ferrule.telemetry.request_record import RequestRecord

NO_BACKEND_WAIT_S = 10.0
"""How long a request waits, at most, for a pool none of whose backends is usable."""
RETRY_AFTER_MAX_S = 60
NO_BACKEND = "No backend can take the request at the moment."


class UpstreamRequest(msgspec.Struct):
    """What is sent. `key`: the session's; `build_head`: the head for a client that streams, also
    while no backend is chosen; `extra_headers`: whole header lines, each with its line end."""

    path: str
    body: bytes
    key: bytes | None
    build_head: Callable[[Choice | None], bytes]
    extra_headers: str = ""


class AttemptResult(msgspec.Struct, frozen=True):
    """How an attempt ended. `verdict`: for the backend's health; `failure`: for the client, None
    where the response is written or its body is there; `code`: for the metrics."""

    verdict: Verdict
    failure: Failure | None = None
    may_retry: bool = False
    code: str = "200"


_CLIENT_GONE = AttemptResult(Verdict.CLIENT_GONE, code="client_gone")
_ANSWERED = AttemptResult(Verdict.OK)
_NO_EVENT = AttemptResult(Verdict.NEUTRAL)


async def send_with_retries(
    pool: BackendPool, stream: ResponseStream, request: UpstreamRequest, record: RequestRecord
) -> Choice:
    """Sends until a backend answers; how its response ended is in `stream`. Returns the backend's
    choice. Raises `Failure` once retries are exhausted; whether the client gets it as a status or
    as an error event depends on `stream.is_committed`."""
    tried: set[str] = set()
    retries = 0
    while True:
        started = _try_start(pool, request.key, tried) if pool.queue.depth == 0 else None
        if started is None:
            stream.set_head(request.build_head(None))  # a ping may be due while it waits
            started = await _wait_in_queue(pool, request.key, tried, record)
        choice, attempt = started
        result = _CLIENT_GONE
        try:
            record.set_choice(choice)
            if attempt.is_trial or attempt.is_retry:
                stream.on_first_event(partial(pool.balancer.record_success, attempt))
            stream.set_head(request.build_head(choice))
            result = await _attempt(pool, choice.backend, stream, request, record)
        finally:
            pool.balancer.end(attempt, result.verdict, monotonic())
            pool.metrics.backend_requests.inc(pool.name, choice.backend.name, result.code)
            pool.queue.wake()
        if result.failure is None:
            return choice
        tried.add(choice.backend.name)
        may_retry = result.may_retry and pool.balancer.may_retry(retries, result.verdict)
        if not may_retry or not pool.balancer.has_untried(tried, monotonic()):
            raise result.failure
        retries += 1
        pool.metrics.retries.inc(result.verdict.value)


# Choosing a backend


def _try_start(
    pool: BackendPool, key: bytes | None, tried: set[str]
) -> tuple[Choice, Attempt] | None:
    """A backend and a slot on it, if there is one now."""
    now = monotonic()
    choice = pool.balancer.select(key, tried, now)
    return None if choice is None else (choice, pool.balancer.start(choice, key, now))


async def _wait_in_queue(
    pool: BackendPool, key: bytes | None, tried: set[str], record: RequestRecord
) -> tuple[Choice, Attempt]:
    """Waits while every backend is full, or for a moment while none is usable."""
    try_start = partial(_try_start, pool, key, tried)
    began = monotonic()
    try:
        if pool.balancer.has_untried(tried, began):
            return await pool.queue.wait_turn(try_start, skips_tried=bool(tried))
        async with asyncio.timeout(min(NO_BACKEND_WAIT_S, pool.queue.timeout_s)):
            return await pool.queue.wait_turn(try_start, skips_tried=bool(tried))
    except Failure:
        pool.metrics.limited.inc("queue")
        raise
    except TimeoutError:
        raise Failure(529, NO_BACKEND, retry_after_s=5) from None
    finally:
        record.queued_s += monotonic() - began


# One attempt


async def _attempt(
    pool: BackendPool,
    backend: Backend,
    stream: ResponseStream,
    request: UpstreamRequest,
    record: RequestRecord,
) -> AttemptResult:
    connections = pool.connections(backend)
    head = connections.request_head(request.path, len(request.body), request.extra_headers)
    connection = connections.take_idle()
    while True:
        is_kept = connection is not None
        if connection is None:
            try:
                began = monotonic()
                connection = await connections.connect()
                record.connected_s += monotonic() - began
            except ConnectFailed as failed:
                return AttemptResult(
                    Verdict.CONNECT_ERROR,
                    _unreachable(str(failed)),
                    may_retry=True,
                    code="connect_error",
                )
        waiter = asyncio.get_running_loop().create_future()
        try:
            connection.start(stream, waiter, (head, request.body))
            await waiter
        except BaseException:
            stream.abort()
            raise
        finally:
            connections.give_back(connection)
        end = stream.end
        if not is_kept or end != ResponseEnd.NO_RESPONSE:
            return _classify(stream, end)
        # The backend closed a kept connection in the moment it was picked. It has read nothing, so
        # the same request goes out again on a fresh one.
        pool.metrics.retries.inc("stale_connection")
        connection = None


# What the end of an attempt means


def _classify(stream: ResponseStream, end: ResponseEnd | None) -> AttemptResult:
    if end == ResponseEnd.COMPLETE:
        return _ANSWERED
    if end == ResponseEnd.COLLECTED:
        return _ANSWERED if stream.status == 200 else _classify_refusal(stream)
    if end in (ResponseEnd.BUDGET_SPENT, ResponseEnd.FAILED):
        return _ANSWERED if stream.has_started else _NO_EVENT
    if end in (ResponseEnd.SILENT, ResponseEnd.OVERTIME):
        # a long answer says nothing of the backend's health
        is_silence = end == ResponseEnd.SILENT and not stream.has_started
        verdict = Verdict.BROKEN if is_silence else Verdict.NEUTRAL
        failure = Failure(504, "The backend did not answer in time.")
        return AttemptResult(verdict, None if stream.has_started else failure, code="timeout")
    if end == ResponseEnd.NO_RESPONSE:
        # also in the second leg of a thinking budget: the client waits for the rest
        failure = Failure(502, "The backend closed the connection without an answer.")
        return AttemptResult(Verdict.BROKEN, failure, may_retry=True, code="reset")
    if stream.has_started:
        return AttemptResult(Verdict.NEUTRAL, code="broken")
    return _classify_fault(stream)


def _classify_fault(stream: ResponseStream) -> AttemptResult:
    """A response that broke, or an error event, before the first event."""
    outcome = stream.outcome
    if outcome.fault_status is None:
        failure = Failure(502, stream.fault)
        return AttemptResult(Verdict.BROKEN, failure, may_retry=True, code="broken")
    failure = Failure(outcome.fault_status, outcome.fault_message or "", kind=outcome.fault_kind)
    is_clients = 400 <= failure.status < 500 and failure.status != 429
    verdict = Verdict.NEUTRAL if is_clients else Verdict.SERVER_ERROR
    return AttemptResult(verdict, failure, may_retry=not is_clients, code="error_event")


def _classify_refusal(stream: ResponseStream) -> AttemptResult:
    """A status other than 200. Only the engine's own trouble is worth another backend; a 4xx would
    be repeated everywhere."""
    status = stream.status
    client_status, kind, message, is_draining = _core.backend_error(status, stream.take_body())
    retry_after_s = _retry_after(stream.retry_after, client_status)
    failure = Failure(client_status, message, kind=kind, retry_after_s=retry_after_s)
    code = str(status)
    if is_draining:
        return AttemptResult(Verdict.DRAINING, failure, may_retry=True, code=code)
    if status == 429:
        return AttemptResult(Verdict.BUSY, failure, may_retry=True, code=code)
    if status >= 500 and client_status >= 429:
        return AttemptResult(Verdict.SERVER_ERROR, failure, may_retry=True, code=code)
    return AttemptResult(Verdict.NEUTRAL, failure, code=code)


def _retry_after(header: str | None, status: int) -> int | None:
    """The backend's own value, at most a minute; two seconds if it has none and one is due."""
    wanted_s = parse_retry_after(header, time())
    if wanted_s > 0:
        return min(math.ceil(wanted_s), RETRY_AFTER_MAX_S)
    return 2 if status in (429, 529) else None


def _unreachable(message: str) -> Failure:
    return Failure(529, f"{message[0].upper()}{message[1:]}.", retry_after_s=2)
