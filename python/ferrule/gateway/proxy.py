"""The story of one request, told from its key to its log line. Everything else decides or moves
bytes; only this puts it in order."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from time import monotonic
from urllib.parse import unquote

from ferrule._core import ResponseStream
from ferrule.admission.keys import Tenant
from ferrule.catalog import ServedModel, list_body, model_body
from ferrule.chat import passthrough as chat
from ferrule.dialects import DIALECTS, Dialect
from ferrule.errors import Failure, envelope
from ferrule.gateway.responder import (
    SHUTTING_DOWN,
    RequestContext,
    Responder,
    end_reason,
    overload_failure,
)
from ferrule.gateway.state import AppState
from ferrule.http import body
from ferrule.http.request import Request
from ferrule.http.response import Response, StreamedResponse
from ferrule.messages import decode, documents, needs_prompt_count, translate
from ferrule.messages.session import session_key
from ferrule.telemetry.request_record import RequestRecord

log = logging.getLogger(__name__)

BYTES_PER_TOKEN = 4
_BASE64 = re.compile(rb"[A-Za-z0-9+/=_-]{512,}")
"""For the estimate at a limit's entry; real usage settles it."""


class Proxy:
    def __init__(self, state: AppState) -> None:
        self.state = state
        self.live: set[ResponseStream] = set()
        """Replies being waited for or told: the sweep's business."""
        self.running = 0
        """Requests under way, of any kind."""

    async def serve(self, call: Request) -> Response | StreamedResponse:
        """Any request → its answer. Never raises but for the client's leaving."""
        record = RequestRecord(call.request_id, call.route, call.received_at)
        dialect = DIALECTS[self.state.config.dialect]
        if self.state.is_draining:
            call.keeps_alive = False
        tracing = self.state.tracing
        span = tracing.begin(call.headers, record) if tracing is not None else None
        self.running += 1
        try:
            answer = await self._surface(call, record)
            record.status = 200
        except Failure as failure:
            answer = self._refusal(call, record, failure, dialect)
        except asyncio.CancelledError:
            record.status, record.end_reason = record.status or 499, "client_gone"
            raise
        except Exception:
            log.exception("request %s failed inside the proxy", call.request_id)
            answer = self._refusal(call, record, Failure(500, "Internal error."), dialect)
        finally:
            self.running -= 1
            record.ended_at = monotonic()
            if tracing is not None and span is not None:
                tracing.end(span, record)
            self.state.recorder.add(record)
        return answer

    def sweep(self, now: float) -> None:
        """Pings, deadlines; once a second."""
        for stream in list(self.live):
            stream.sweep(now)

    def end_all(self) -> None:
        """Ends what still runs with an error event: the grace period is over."""
        for stream in list(self.live):
            stream.fail("overloaded_error", SHUTTING_DOWN)

    # ── Who asks, and for what ────────────────────────────────────────────────────────────────────

    def _surface(
        self, call: Request, record: RequestRecord
    ) -> Awaitable[Response | StreamedResponse]:
        if call.methods and call.method not in call.methods:
            raise Failure(
                405,
                f"{call.method} is not offered here; {' and '.join(call.methods)} "
                f"{'is' if len(call.methods) == 1 else 'are'}.",
                headers={"allow": ", ".join(call.methods)},
            )
        if call.route == "root":
            return self._root(call)
        tenant = self._tenant(call)
        tell = _HANDLERS.get(call.route)
        if tell is None:
            path = unquote(call.raw_path.partition("?")[0])
            raise Failure(404, f"No such route: {call.method} {path[:200]}.{_hint(path)}")
        record.tenant = tenant.name
        return tell(self, call, tenant, record)

    async def _root(self, call: Request) -> Response | StreamedResponse:
        return Response(200, b'{"service":"ferrule"}', self._headers(call))

    def _tenant(self, call: Request) -> Tenant:
        dialect = DIALECTS[self.state.config.dialect]
        headers = call.headers
        return self.state.keys.find(
            headers.get("x-api-key"), headers.get("authorization"), dialect.missing_key_message
        )

    def _served(self, name: str, tenant: Tenant, record: RequestRecord) -> ServedModel:
        dialect = DIALECTS[self.state.config.dialect]
        record.model = name
        served = self.state.catalog.find(name)
        if served is None:
            raise Failure(
                dialect.unknown_model_status,
                f"model: {name[:100]!r} is not served here; GET /v1/models lists what is",
            )
        tenant.check_model(name, served.id)
        record.label = served.label
        record.pool = served.pool
        return served

    def _check_room(self) -> None:
        if self.state.rejects_new:
            raise Failure(529, SHUTTING_DOWN, headers={"retry-after": "2"})
        if self.state.is_overloaded or len(self.live) >= self.state.config.edge.max_streams:
            raise overload_failure()

    # ── /v1/messages ──────────────────────────────────────────────────────────────────────────────

    async def messages(
        self, call: Request, tenant: Tenant, record: RequestRecord
    ) -> Response | StreamedResponse:
        self._check_room()
        raw = await body.read(call, self.state.config.body_limit_mb << 20)
        request = decode(raw)
        served = self._served(request.model, tenant, record)
        if pending := documents.pending(request, served.policy):
            request = documents.resolve(request, await self.state.token_counter.documents(pending))
        prompt_tokens = None
        if needs_prompt_count(len(raw), request.max_tokens or 0, served.policy.context_window):
            prompt_tokens = await self.state.token_counter.estimate(served.tokenizer, request)
        translation = translate(request, served.policy, request.model, prompt_tokens)
        record.dropped, record.stream = translation.dropped, translation.stream
        for warning in translation.warnings:
            log.warning("request %s: %s", call.request_id, warning)
        estimate = _estimate_tokens(raw) if tenant.has_limits else 0
        lease = await self.state.limiter.admit(tenant, estimate)
        try:
            key = session_key(call.headers, request, tenant.name)
            reply = Responder(self.state, self.live, RequestContext(call, served, lease, record))
            if translation.stream:
                return await reply.events(translation, key)
            return await reply.whole(translation, key)
        finally:
            await lease.settle(record.tokens(estimate))

    # ── /v1/messages/count_tokens ─────────────────────────────────────────────────────────────────

    async def count_tokens(
        self, call: Request, tenant: Tenant, record: RequestRecord
    ) -> Response | StreamedResponse:
        self._check_room()
        raw = await body.read(call, self.state.config.body_limit_mb << 20)
        began = monotonic()
        request = decode(raw)
        served = self._served(request.model, tenant, record)
        if served.policy.dialect.count_tokens == "absent":
            raise Failure(404, "No such route: token_counter tokens is not offered here.")
        if pending := documents.pending(request, served.policy):
            request = documents.resolve(request, await self.state.token_counter.documents(pending))
        tokens = None
        if served.policy.dialect.count_tokens == "engine":
            key = session_key(call.headers, request, tenant.name)
            tokens = await self.state.token_counter.ask_engine(
                self.state.pools[served.pool], request, served.policy, key
            )
        if tokens is None:
            tokens = await self.state.token_counter.estimate(served.tokenizer, request)
        self.state.metrics.count_tokens.observe(monotonic() - began)
        record.input_tokens = tokens
        return Response(200, b'{"input_tokens":%d}' % tokens, self._headers(call))

    # ── /v1/chat/completions ──────────────────────────────────────────────────────────────────────

    async def chat(
        self, call: Request, tenant: Tenant, record: RequestRecord
    ) -> Response | StreamedResponse:
        self._check_room()
        raw = await body.read(call, self.state.config.body_limit_mb << 20)
        request = chat.decode(raw)
        served = self._served(request.model, tenant, record)
        sent = chat.translate(request, served.policy)
        record.stream, record.dropped = sent.stream, sent.dropped
        estimate = _estimate_tokens(raw) if tenant.has_limits else 0
        lease = await self.state.limiter.admit(tenant, estimate)
        try:
            key = chat.session_key(call.headers, request, tenant.name)
            reply = Responder(self.state, self.live, RequestContext(call, served, lease, record))
            if sent.stream:
                return await reply.chunks(sent, request.model, key)
            return await reply.completion(sent, request.model, key)
        finally:
            await lease.settle(record.tokens(estimate))

    # ── /v1/models ────────────────────────────────────────────────────────────────────────────────

    async def models(
        self, call: Request, tenant: Tenant, record: RequestRecord
    ) -> Response | StreamedResponse:
        served = [model for model in self.state.catalog.all() if tenant.may_use(model.id)]
        return Response(
            200, list_body(served, anthropic=_wants_anthropic_shape(call)), self._headers(call)
        )

    async def model(
        self, call: Request, tenant: Tenant, record: RequestRecord
    ) -> Response | StreamedResponse:
        name = call.argument
        served = self.state.catalog.find(name)
        if served is None:
            raise Failure(
                404, f"model: {name[:100]!r} is not served here; GET /v1/models lists what is"
            )
        tenant.check_model(name, served.id)
        return Response(
            200, model_body(served, anthropic=_wants_anthropic_shape(call)), self._headers(call)
        )

    # ── Answers and accounts ──────────────────────────────────────────────────────────────────────

    def _headers(self, call: Request) -> list[tuple[str, str]]:
        return [("request-id", call.request_id)]

    def _refusal(
        self, call: Request, record: RequestRecord, failure: Failure, dialect: Dialect
    ) -> Response | StreamedResponse:
        """The failure as an answer; as an error event where a stream has begun."""
        failure = _apply_dialect(failure, dialect, is_from_backend=record.backend is not None)
        record.status, record.error = failure.status, failure.kind
        told = call.stream
        if told is not None and told.is_committed:
            told.fail(failure.kind, failure.message)
            record.status, record.end_reason = 200, record.end_reason or end_reason(failure)
            return StreamedResponse()
        if failure.status == 401:
            self.state.metrics.limited.inc("key")
        is_wrapped = failure.gate and dialect.wrap_gate_errors and call.route != "chat"
        answer = Response(
            failure.status,
            envelope(failure, call.request_id, wrapped=is_wrapped),
            [*self._headers(call), *failure.headers.items()],
        )
        answer.close_after = failure.status in (408, 413)
        return answer


_Handler = Callable[[Proxy, Request, Tenant, RequestRecord], Awaitable[Response | StreamedResponse]]

_HANDLERS: dict[str, _Handler] = {
    "messages": Proxy.messages,
    "count_tokens": Proxy.count_tokens,
    "chat": Proxy.chat,
    "models": Proxy.models,
    "model": Proxy.model,
}


def _estimate_tokens(raw: bytes) -> int:
    """For a limit's entry; real usage settles it. Text in base64 is an image or a document, and is
    not counted as text."""
    text = _BASE64.sub(b"", raw) if b"base64" in raw else raw
    return len(text) // BYTES_PER_TOKEN


def _apply_dialect(failure: Failure, dialect: Dialect, *, is_from_backend: bool) -> Failure:
    """A 429, and a backend's 404, which is about the model, as the dialect has them."""
    status = failure.status
    if status == 429:
        status = dialect.backend_busy_status
    elif status == 404 and is_from_backend:
        status = dialect.unknown_model_status
    if status == failure.status:
        return failure
    return Failure(status, failure.message, headers=failure.headers, gate=failure.gate)


def _wants_anthropic_shape(call: Request) -> bool:
    headers = call.headers
    return "anthropic-version" in headers or (
        "x-api-key" in headers and "authorization" not in headers
    )


def _hint(path: str) -> str:
    return " The base URL of an SDK ends before /v1." if path.startswith("/v1/v1/") else ""
