"""One request, from its key to its log line. Everything else decides or moves bytes; this module
puts the steps in order."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Protocol, TypeVar
from urllib.parse import unquote

from ferrule._core import ResponseStream
from ferrule.catalog import ServedModel
from ferrule.chat import passthrough as chat
from ferrule.dialects import Dialect
from ferrule.errors import Failure, envelope
from ferrule.gateway.model_list import encode_list, encode_model, wants_anthropic_shape
from ferrule.gateway.responder import (
    SHUTTING_DOWN,
    RequestContext,
    Responder,
    end_reason,
    overload_failure,
)
from ferrule.gateway.state import AppState, Lifecycle
from ferrule.http import body
from ferrule.http.request import Request
from ferrule.http.response import STREAMED, Response, StreamedResponse, failure_headers
from ferrule.messages import decode, documents, needs_prompt_count, translate
from ferrule.messages.session import session_key
from ferrule.telemetry.request_record import RequestRecord

log = logging.getLogger(__name__)

BYTES_PER_TOKEN = 4
"""For the estimate when a request is admitted; real usage settles it."""
_BASE64 = re.compile(rb"[A-Za-z0-9+/=_-]{512,}")

AnyResponse = Response | StreamedResponse


class _NamesModel(Protocol):
    @property
    def model(self) -> str: ...


_R = TypeVar("_R", bound=_NamesModel)


class Proxy:
    """`state` is replaced by a reload; a request keeps the one it began with."""

    def __init__(self, state: AppState) -> None:
        self.state = state
        self.lifecycle = Lifecycle()
        self.streams: set[ResponseStream] = set()
        """In-flight responses; swept once a second."""
        self.running = 0
        """Requests being answered, of any kind."""

    async def handle(self, request: Request) -> AnyResponse:
        """Handles any request; raises only `CancelledError`, on disconnect."""
        state = self.state
        record = RequestRecord(request.request_id, request.route, request.received_at)
        if self.lifecycle.is_draining:
            request.keeps_alive = False
        span = state.tracing.begin(request.headers, record) if state.tracing is not None else None
        self.running += 1
        try:
            response = await self._route(request, state, record)
            record.status = 200
        except Failure as failure:
            response = self._refuse(request, state, record, failure)
        except asyncio.CancelledError:
            record.status, record.end_reason = record.status or 499, "client_gone"
            raise
        except Exception:
            log.exception("request %s failed inside the proxy", request.request_id)
            response = self._refuse(request, state, record, Failure(500, "Internal error."))
        finally:
            self.running -= 1
            record.ended_at = monotonic()
            if state.tracing is not None and span is not None:
                state.tracing.end(span, record)
            state.recorder.add(record)
        return response

    def sweep(self, now: float) -> None:
        """Pings and deadlines; called once a second."""
        for stream in list(self.streams):
            stream.sweep(now)

    def end_streams(self) -> None:
        """Ends what still runs with an error event: the grace period is over."""
        for stream in list(self.streams):
            stream.fail("overloaded_error", SHUTTING_DOWN)

    # ── Routes and keys ───────────────────────────────────────────────────────────────────────

    def _route(
        self, request: Request, state: AppState, record: RequestRecord
    ) -> Awaitable[AnyResponse]:
        if request.methods and request.method not in request.methods:
            allowed = " or ".join(request.methods)
            raise Failure(405, f"Method not allowed; use {allowed}.", allow=request.methods)
        if request.route == "root":
            return self._root(request)
        headers = request.headers
        tenant = state.keys.authenticate(
            headers.get("x-api-key"),
            headers.get("authorization"),
            state.dialect.missing_key_message,
        )
        handle = _HANDLERS.get(request.route)
        if handle is None:
            path = unquote(request.raw_path.partition("?")[0])
            raise Failure(404, f"No such route: {request.method} {path[:200]}.{_hint(path)}")
        record.tenant = tenant.name
        return handle(self, RequestContext(request, state, record, tenant))

    async def _root(self, request: Request) -> Response:
        return Response(200, b'{"service":"ferrule"}', request.request_id)

    # ── /v1/messages ──────────────────────────────────────────────────────────────────────────

    async def messages(self, context: RequestContext) -> AnyResponse:
        request, raw, model = await self._read(context, decode)
        policy, counter = model.policy, context.state.token_counter
        if pending := documents.pending(request, policy):
            request = documents.resolve(request, await counter.documents(pending))
        prompt_tokens = None
        if needs_prompt_count(len(raw), request.max_tokens or 0, policy.context_window):
            prompt_tokens = await counter.estimate(model.tokenizer, request)
        translation = translate(request, policy, request.model, prompt_tokens)
        context.record.dropped = translation.dropped
        for warning in translation.warnings:
            log.warning("request %s: %s", context.request.request_id, warning)
        key = session_key(context.request.headers, request, context.tenant.name)

        def respond(responder: Responder) -> Awaitable[AnyResponse]:
            if translation.stream:
                return responder.stream_message(translation, key)
            return responder.whole_message(translation, key)

        return await self._generate(context, model, raw, translation.stream, respond)

    # ── /v1/messages/count_tokens ─────────────────────────────────────────────────────────────

    async def count_tokens(self, context: RequestContext) -> AnyResponse:
        state = context.state
        request, _, model = await self._read(context, decode)
        began = monotonic()
        mode = model.policy.dialect.count_tokens
        if mode == "absent":
            raise Failure(404, "No such route: counting tokens is not offered here.")
        counter = state.token_counter
        if pending := documents.pending(request, model.policy):
            request = documents.resolve(request, await counter.documents(pending))
        tokens = None
        if mode == "engine":
            key = session_key(context.request.headers, request, context.tenant.name)
            pool = state.pools[model.pool]
            tokens = await counter.ask_engine(pool, request, model.policy, key)
        if tokens is None:
            tokens = await counter.estimate(model.tokenizer, request)
        state.metrics.count_tokens.observe(monotonic() - began)
        context.record.input_tokens = tokens
        return Response(200, b'{"input_tokens":%d}' % tokens, context.request.request_id)

    # ── /v1/chat/completions ──────────────────────────────────────────────────────────────────

    async def chat(self, context: RequestContext) -> AnyResponse:
        request, raw, model = await self._read(context, chat.decode)
        translation = chat.translate(request, model.policy)
        context.record.dropped = translation.dropped
        key = chat.session_key(context.request.headers, request, context.tenant.name)

        def respond(responder: Responder) -> Awaitable[AnyResponse]:
            if translation.stream:
                return responder.stream_chat(translation, request.model, key)
            return responder.whole_chat(translation, request.model, key)

        return await self._generate(context, model, raw, translation.stream, respond)

    # ── What the three have in common ─────────────────────────────────────────────────────────

    async def _read(
        self, context: RequestContext, decode_body: Callable[[bytes], _R]
    ) -> tuple[_R, bytes, ServedModel]:
        """The decoded request, its body as it came, and the model it names."""
        self._check_room(context.state)
        raw = await body.read(context.request, context.state.config.body_limit_mb << 20)
        request = decode_body(raw)
        return request, raw, _resolve_model(context, request.model)

    def _check_room(self, state: AppState) -> None:
        if self.lifecycle.rejects_new:
            raise Failure(529, SHUTTING_DOWN, retry_after_s=2)
        if self.lifecycle.is_overloaded or len(self.streams) >= state.config.edge.max_streams:
            raise overload_failure()

    async def _generate(
        self,
        context: RequestContext,
        model: ServedModel,
        raw: bytes,
        is_stream: bool,
        respond: Callable[[Responder], Awaitable[AnyResponse]],
    ) -> AnyResponse:
        """Admits the request, has it answered, and settles what it used."""
        tenant, record = context.tenant, context.record
        record.stream = is_stream
        estimate = _estimate_tokens(raw) if tenant.has_limits else 0
        lease = await context.state.limiter.admit(tenant, estimate)
        try:
            return await respond(Responder(context, model, lease, self.streams))
        finally:
            await lease.settle(record.tokens(estimate))

    # ── /v1/models ────────────────────────────────────────────────────────────────────────────

    async def models(self, context: RequestContext) -> AnyResponse:
        request, tenant = context.request, context.tenant
        models = [model for model in context.state.catalog.all() if tenant.may_use(model.id)]
        listed = encode_list(models, anthropic=wants_anthropic_shape(request.headers))
        return Response(200, listed, request.request_id)

    async def model(self, context: RequestContext) -> AnyResponse:
        request, name = context.request, context.request.argument
        model = context.state.catalog.find(name)
        if model is None:
            raise _unknown_model(404, name)
        context.tenant.check_model(name, model.id)
        entry = encode_model(model, anthropic=wants_anthropic_shape(request.headers))
        return Response(200, entry, request.request_id)

    # ── Failures ──────────────────────────────────────────────────────────────────────────────

    def _refuse(
        self, request: Request, state: AppState, record: RequestRecord, failure: Failure
    ) -> AnyResponse:
        """The failure as a response; as an error event where a stream has begun."""
        _apply_dialect(failure, state.dialect, is_from_backend=record.backend is not None)
        record.status, record.error = failure.status, failure.kind
        stream = request.stream
        if stream is not None and stream.is_committed:
            stream.fail(failure.kind, failure.message)
            record.status, record.end_reason = 200, record.end_reason or end_reason(failure)
            return STREAMED
        if failure.status == 401:
            state.metrics.limited.inc("key")
        is_wrapped = (
            failure.is_admission and state.dialect.wrap_gate_errors and request.route != "chat"
        )
        return Response(
            failure.status,
            envelope(failure, request.request_id, wrapped=is_wrapped),
            request.request_id,
            failure_headers(failure),
            close_after=failure.closes_connection,
        )


_Handler = Callable[[Proxy, RequestContext], Awaitable[AnyResponse]]

_HANDLERS: dict[str, _Handler] = {
    "messages": Proxy.messages,
    "count_tokens": Proxy.count_tokens,
    "chat": Proxy.chat,
    "models": Proxy.models,
    "model": Proxy.model,
}


def _resolve_model(context: RequestContext, name: str) -> ServedModel:
    """Raises Failure: not served here, or not for this key."""
    record = context.record
    record.model = name
    model = context.state.catalog.find(name)
    if model is None:
        raise _unknown_model(context.state.dialect.unknown_model_status, name)
    context.tenant.check_model(name, model.id)
    record.label, record.pool = model.label, model.pool
    return model


def _unknown_model(status: int, name: str) -> Failure:
    return Failure(
        status, f"model: {name[:100]!r} is not served here; GET /v1/models lists what is"
    )


def _estimate_tokens(raw: bytes) -> int:
    """Text in base64 is an image or a document, and is not counted as text."""
    text = _BASE64.sub(b"", raw) if b"base64" in raw else raw
    return len(text) // BYTES_PER_TOKEN


def _apply_dialect(failure: Failure, dialect: Dialect, *, is_from_backend: bool) -> None:
    """The dialect's status for a 429, and for a backend's 404, which is about the model."""
    if failure.status == 429:
        failure.change_status(dialect.backend_busy_status)
    elif failure.status == 404 and is_from_backend:
        failure.change_status(dialect.unknown_model_status)


def _hint(path: str) -> str:
    return " The base URL of an SDK ends before /v1." if path.startswith("/v1/v1/") else ""
