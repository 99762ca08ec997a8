"""The story of one request, told from its key to its log line. Everything else decides or moves bytes; only this puts it in order."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from time import monotonic
from urllib.parse import unquote

from ferrule._core import Exchange
from ferrule.admission.keys import Tenant
from ferrule.catalog import Served, list_body, model_body
from ferrule.chat import passthrough as chat
from ferrule.dialects import DIALECTS, Knobs
from ferrule.errors import Failure, envelope
from ferrule.gateway.responder import SHUTTING_DOWN, Admitted, Reply, end_reason, overloaded
from ferrule.gateway.state import Parts
from ferrule.http import body
from ferrule.http.request import Call
from ferrule.http.response import Answer, Told
from ferrule.messages import decode, documents, needs_prompt_count, translate
from ferrule.messages.session import session_key
from ferrule.telemetry.request_record import Record

log = logging.getLogger(__name__)

BYTES_PER_TOKEN = 4
_BASE64 = re.compile(rb"[A-Za-z0-9+/=_-]{512,}")
"""For the estimate at a limit's entry; real usage settles it."""


class Proxy:
    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.live: set[Exchange] = set()
        """Replies being waited for or told: the sweep's business."""
        self.running = 0
        """Requests under way, of any kind."""

    async def serve(self, call: Call) -> Answer | Told:
        """Any request → its answer. Never raises but for the client's leaving."""
        record = Record(call.request_id, call.route, call.received_at)
        knobs = DIALECTS[self.parts.config.dialect]
        if self.parts.is_draining:
            call.keeps_alive = False
        tracing = self.parts.tracing
        span = tracing.begin(call.headers, record) if tracing is not None else None
        self.running += 1
        try:
            answer = await self._surface(call, record)
            record.status = 200
        except Failure as failure:
            answer = self._refusal(call, record, failure, knobs)
        except asyncio.CancelledError:
            record.status, record.end_reason = record.status or 499, "client_gone"
            raise
        except Exception:
            log.exception("request %s failed inside the proxy", call.request_id)
            answer = self._refusal(call, record, Failure(500, "Internal error."), knobs)
        finally:
            self.running -= 1
            record.ended_at = monotonic()
            if tracing is not None and span is not None:
                tracing.end(span, record)
            self.parts.ledger.add(record)
        return answer

    def sweep(self, now: float) -> None:
        """Pings, deadlines; once a second."""
        for exchange in list(self.live):
            exchange.sweep(now)

    def end_all(self) -> None:
        """Ends what still runs with an error event: the grace period is over."""
        for exchange in list(self.live):
            exchange.fail("overloaded_error", SHUTTING_DOWN)

    # ── Who asks, and for what ────────────────────────────────────────────────────────────────────────────────────────

    def _surface(self, call: Call, record: Record) -> Awaitable[Answer | Told]:
        if call.methods and call.method not in call.methods:
            raise Failure(
                405,
                f"{call.method} is not offered here; {' and '.join(call.methods)} {'is' if len(call.methods) == 1 else 'are'}.",
                headers={"allow": ", ".join(call.methods)},
            )
        if call.route == "root":
            return self._root(call)
        tenant = self._tenant(call)
        tell = _SURFACES.get(call.route)
        if tell is None:
            path = unquote(call.raw_path.partition("?")[0])
            raise Failure(404, f"No such route: {call.method} {path[:200]}.{_hint(path)}")
        record.tenant = tenant.name
        return tell(self, call, tenant, record)

    async def _root(self, call: Call) -> Answer | Told:
        return Answer(200, b'{"service":"ferrule"}', self._headers(call))

    def _tenant(self, call: Call) -> Tenant:
        knobs = DIALECTS[self.parts.config.dialect]
        headers = call.headers
        return self.parts.keys.find(headers.get("x-api-key"), headers.get("authorization"), knobs.missing_key_message)

    def _served(self, name: str, tenant: Tenant, record: Record) -> Served:
        knobs = DIALECTS[self.parts.config.dialect]
        record.model = name
        served = self.parts.catalog.find(name)
        if served is None:
            raise Failure(knobs.unknown_model_status, f"model: {name[:100]!r} is not served here; GET /v1/models lists what is")
        tenant.check_model(name, served.id)
        record.label = served.label
        record.pool = served.pool
        return served

    def _check_room(self) -> None:
        if self.parts.turns_away:
            raise Failure(529, SHUTTING_DOWN, headers={"retry-after": "2"})
        if self.parts.is_overloaded or len(self.live) >= self.parts.config.edge.max_streams:
            raise overloaded()

    # ── /v1/messages ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def messages(self, call: Call, tenant: Tenant, record: Record) -> Answer | Told:
        self._check_room()
        raw = await body.read(call, self.parts.config.body_limit_mb << 20)
        request = decode(raw)
        served = self._served(request.model, tenant, record)
        if pending := documents.pending(request, served.policy):
            request = documents.resolve(request, await self.parts.counting.documents(pending))
        prompt_tokens = None
        if needs_prompt_count(len(raw), request.max_tokens or 0, served.policy.context_window):
            prompt_tokens = await self.parts.counting.estimate(served.tokenizer, request)
        translation = translate(request, served.policy, request.model, prompt_tokens)
        record.dropped, record.stream = translation.dropped, translation.stream
        for warning in translation.warnings:
            log.warning("request %s: %s", call.request_id, warning)
        estimate = _estimated_tokens(raw) if tenant.has_limits else 0
        lease = await self.parts.limiter.admit(tenant, estimate)
        try:
            key = session_key(call.headers, request, tenant.name)
            reply = Reply(self.parts, self.live, Admitted(call, served, lease, record))
            if translation.stream:
                return await reply.events(translation, key)
            return await reply.whole(translation, key)
        finally:
            await lease.settle(record.tokens(estimate))

    # ── /v1/messages/count_tokens ─────────────────────────────────────────────────────────────────────────────────────

    async def count_tokens(self, call: Call, tenant: Tenant, record: Record) -> Answer | Told:
        self._check_room()
        raw = await body.read(call, self.parts.config.body_limit_mb << 20)
        began = monotonic()
        request = decode(raw)
        served = self._served(request.model, tenant, record)
        if served.policy.knobs.count_tokens == "absent":
            raise Failure(404, "No such route: counting tokens is not offered here.")
        if pending := documents.pending(request, served.policy):
            request = documents.resolve(request, await self.parts.counting.documents(pending))
        tokens = None
        if served.policy.knobs.count_tokens == "engine":
            key = session_key(call.headers, request, tenant.name)
            tokens = await self.parts.counting.ask_engine(self.parts.fleets[served.pool], request, served.policy, key)
        if tokens is None:
            tokens = await self.parts.counting.estimate(served.tokenizer, request)
        self.parts.metrics.count_tokens.observe(monotonic() - began)
        record.input_tokens = tokens
        return Answer(200, b'{"input_tokens":%d}' % tokens, self._headers(call))

    # ── /v1/chat/completions ──────────────────────────────────────────────────────────────────────────────────────────

    async def chat(self, call: Call, tenant: Tenant, record: Record) -> Answer | Told:
        self._check_room()
        raw = await body.read(call, self.parts.config.body_limit_mb << 20)
        request = chat.decode(raw)
        served = self._served(request.model, tenant, record)
        sent = chat.rebuild(request, served.policy)
        record.stream, record.dropped = sent.stream, sent.dropped
        estimate = _estimated_tokens(raw) if tenant.has_limits else 0
        lease = await self.parts.limiter.admit(tenant, estimate)
        try:
            key = chat.session_key(call.headers, request, tenant.name)
            reply = Reply(self.parts, self.live, Admitted(call, served, lease, record))
            if sent.stream:
                return await reply.chunks(sent, request.model, key)
            return await reply.completion(sent, request.model, key)
        finally:
            await lease.settle(record.tokens(estimate))

    # ── /v1/models ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def models(self, call: Call, tenant: Tenant, record: Record) -> Answer | Told:
        served = [model for model in self.parts.catalog.all() if tenant.may_use(model.id)]
        return Answer(200, list_body(served, anthropic=_speaks_anthropic(call)), self._headers(call))

    async def model(self, call: Call, tenant: Tenant, record: Record) -> Answer | Told:
        name = call.argument
        served = self.parts.catalog.find(name)
        if served is None:
            raise Failure(404, f"model: {name[:100]!r} is not served here; GET /v1/models lists what is")
        tenant.check_model(name, served.id)
        return Answer(200, model_body(served, anthropic=_speaks_anthropic(call)), self._headers(call))

    # ── Answers and accounts ──────────────────────────────────────────────────────────────────────────────────────────

    def _headers(self, call: Call) -> list[tuple[str, str]]:
        return [("request-id", call.request_id)]

    def _refusal(self, call: Call, record: Record, failure: Failure, knobs: Knobs) -> Answer | Told:
        """The failure as an answer; as an error event where a stream has begun."""
        failure = _as_dialect(failure, knobs, is_from_backend=record.backend is not None)
        record.status, record.error = failure.status, failure.kind
        told = call.exchange
        if told is not None and told.is_committed:
            told.fail(failure.kind, failure.message)
            record.status, record.end_reason = 200, record.end_reason or end_reason(failure)
            return Told()
        if failure.status == 401:
            self.parts.metrics.limited.inc("key")
        is_wrapped = failure.gate and knobs.wrap_gate_errors and call.route != "chat"
        answer = Answer(
            failure.status, envelope(failure, call.request_id, wrapped=is_wrapped), [*self._headers(call), *failure.headers.items()]
        )
        answer.close_after = failure.status in (408, 413)
        return answer


_Surface = Callable[[Proxy, Call, Tenant, Record], Awaitable[Answer | Told]]

_SURFACES: dict[str, _Surface] = {
    "messages": Proxy.messages,
    "count_tokens": Proxy.count_tokens,
    "chat": Proxy.chat,
    "models": Proxy.models,
    "model": Proxy.model,
}


def _estimated_tokens(raw: bytes) -> int:
    """For a limit's entry; real usage settles it. Text in base64 is an image or a document, and is not counted as text."""
    text = _BASE64.sub(b"", raw) if b"base64" in raw else raw
    return len(text) // BYTES_PER_TOKEN


def _as_dialect(failure: Failure, knobs: Knobs, *, is_from_backend: bool) -> Failure:
    """A 429, and a backend's 404, which is about the model, as the dialect has them."""
    status = failure.status
    if status == 429:
        status = knobs.backend_busy_status
    elif status == 404 and is_from_backend:
        status = knobs.unknown_model_status
    if status == failure.status:
        return failure
    return Failure(status, failure.message, headers=failure.headers, gate=failure.gate)


def _speaks_anthropic(call: Call) -> bool:
    headers = call.headers
    return "anthropic-version" in headers or ("x-api-key" in headers and "authorization" not in headers)


def _hint(path: str) -> str:
    return " The base URL of an SDK ends before /v1." if path.startswith("/v1/v1/") else ""
