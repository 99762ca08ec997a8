"""The story of one request, told from its key to its log line. Everything else decides or moves bytes; only this puts it in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic

import msgspec
import orjson
from aiohttp import web

from ferrule import _core, chat
from ferrule._core import Exchange, ReplyOptions
from ferrule.catalog import Catalog, Served, list_body, model_body
from ferrule.config import Config
from ferrule.counting import Counting
from ferrule.dialects import DIALECTS, Knobs
from ferrule.dispatch import NO_BACKEND, Sending, dispatch
from ferrule.errors import Failure, envelope
from ferrule.fleet import Fleet
from ferrule.gate.keys import KeyRing, Tenant
from ferrule.gate.limits import Lease, Limiter
from ferrule.messages import Request, Translation, decode, documents, needs_prompt_count, translate
from ferrule.messages.continuation import continued
from ferrule.messages.count import text_of
from ferrule.messages.session import session_key
from ferrule.net import body
from ferrule.net.answer import Answer, Told, event_stream_head
from ferrule.net.call import Call, message_id
from ferrule.telemetry.ledger import Ledger
from ferrule.telemetry.metrics import Metrics
from ferrule.telemetry.record import Record

log = logging.getLogger(__name__)

CHAT_ROUTE = "/v1/chat/completions"
BYTES_PER_TOKEN = 4
"""For the estimate at a limit's entry; real usage settles it."""


class Parts(msgspec.Struct):
    """What a worker has for its requests. A reload replaces single parts; a request keeps those it began with."""

    config: Config
    catalog: Catalog
    keys: KeyRing
    limiter: Limiter
    fleets: dict[str, Fleet]
    counting: Counting
    metrics: Metrics
    ledger: Ledger
    is_draining: bool = False
    is_overloaded: bool = False


class Proxy:
    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.live: set[Exchange] = set()
        """Replies being waited for or told: the sweep's business."""
        self.running = 0
        """Requests under way, of any kind."""

    async def serve(self, call: Call) -> web.StreamResponse:
        """Any request → its answer. Never raises but for the client's leaving."""
        record = Record(call.request_id, call.route, call.received_at)
        knobs = DIALECTS[self.parts.config.dialect]
        call.wants_close = self.parts.is_draining
        self.running += 1
        try:
            answer = await self._answer(call, record)
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
            self.parts.ledger.add(record)
        if isinstance(answer, Answer):
            answer.close_after = answer.close_after or call.wants_close
        return answer

    def sweep(self, now: float) -> None:
        """Pings, deadlines; once a second."""
        for exchange in list(self.live):
            exchange.sweep(now)

    def end_all(self) -> None:
        """Ends what still runs with an error event: the grace period is over."""
        for exchange in list(self.live):
            exchange.fail("overloaded_error", "The gateway is shutting down.")

    # ── Who asks, and for what ────────────────────────────────────────────────────────────────────────────────────────

    async def _answer(self, call: Call, record: Record) -> web.StreamResponse:
        tell = _SURFACES.get(call.route)
        if call.methods and call.request.method not in call.methods:
            raise Failure(
                405,
                f"{call.request.method} is not offered here; {' and '.join(call.methods)} is.",
                headers={"allow": ", ".join(call.methods)},
            )
        if call.route == "root":
            record.status = 200
            return Answer(200, b'{"service":"ferrule"}', self._headers(call))
        tenant = self._tenant(call)
        if tell is None:
            raise Failure(404, f"No such route: {call.request.method} {call.request.path[:200]}.{_hint(call.request.path)}")
        record.tenant = tenant.name
        answer = await tell(self, call, tenant, record)
        record.status = 200
        return answer

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

    async def _read(self, call: Call) -> bytes:
        if self.parts.is_overloaded:
            raise Failure(529, "The gateway is overloaded.", headers={"retry-after": "5"})
        return await body.read(call.request, call.connection, self.parts.config.body_limit_mb << 20, call.received_at)

    # ── /v1/messages ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def messages(self, call: Call, tenant: Tenant, record: Record) -> web.StreamResponse:
        raw = await self._read(call)
        request = decode(raw)
        served = self._served(request.model, tenant, record)
        request = await self._with_documents(request, served)
        translation = translate(request, served.policy, request.model, await self._prompt_tokens(raw, request, served))
        record.dropped, record.stream = translation.dropped, translation.stream
        for warning in translation.warnings:
            log.warning("request %s: %s", call.request_id, warning)
        lease = await self.parts.limiter.admit(tenant, _estimated_tokens(raw, request) if tenant.has_limits else 0)
        try:
            key = session_key(call.headers, request, tenant.name)
            told = _Told(self, call, served, lease, record)
            if translation.stream:
                return await told.events(translation, key)
            return await told.whole(translation, key)
        finally:
            await lease.settle(record.tokens)

    async def _with_documents(self, request: Request, served: Served) -> Request:
        if not (pending := documents.pending(request, served.policy)):
            return request
        return documents.resolve(request, await self.parts.counting.documents(pending))

    async def _prompt_tokens(self, raw: bytes, request: Request, served: Served) -> int | None:
        """Counted only when max_tokens could overrun the window."""
        if not needs_prompt_count(len(raw), request.max_tokens or 0, served.policy.context_window):
            return None
        return await self.parts.counting.estimate(served.tokenizer, request)

    # ── /v1/messages/count_tokens ─────────────────────────────────────────────────────────────────────────────────────

    async def count_tokens(self, call: Call, tenant: Tenant, record: Record) -> web.StreamResponse:
        raw = await self._read(call)
        began = monotonic()
        request = decode(raw)
        served = self._served(request.model, tenant, record)
        if served.policy.knobs.count_tokens == "absent":
            raise Failure(404, "No such route: counting tokens is not offered here.")
        request = await self._with_documents(request, served)
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

    async def chat(self, call: Call, tenant: Tenant, record: Record) -> web.StreamResponse:
        raw = await self._read(call)
        request = chat.decode(raw)
        served = self._served(request.model, tenant, record)
        sent = chat.rebuild(request, served.policy)
        record.stream, record.dropped = sent.stream, sent.dropped
        lease = await self.parts.limiter.admit(tenant, len(raw) // BYTES_PER_TOKEN)
        try:
            key = chat.session_key(call.headers, request, tenant.name)
            told = _Told(self, call, served, lease, record)
            if sent.stream:
                return await told.chunks(sent, request.model, key)
            return await told.completion(sent, request.model, key)
        finally:
            await lease.settle(record.tokens)

    # ── /v1/models ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def models(self, call: Call, tenant: Tenant, record: Record) -> web.StreamResponse:
        served = [model for model in self.parts.catalog.all() if tenant.may_use(model.id)]
        return Answer(200, list_body(served, anthropic=_speaks_anthropic(call)), self._headers(call))

    async def model(self, call: Call, tenant: Tenant, record: Record) -> web.StreamResponse:
        name = call.argument
        served = self.parts.catalog.find(name)
        if served is None:
            raise Failure(404, f"model: {name[:100]!r} is not served here; GET /v1/models lists what is")
        tenant.check_model(name, served.id)
        return Answer(200, model_body(served, anthropic=_speaks_anthropic(call)), self._headers(call))

    # ── Answers and accounts ──────────────────────────────────────────────────────────────────────────────────────────

    def _headers(self, call: Call) -> list[tuple[str, str]]:
        return [("request-id", call.request_id)]

    def _refusal(self, call: Call, record: Record, failure: Failure, knobs: Knobs) -> web.StreamResponse:
        """The failure as an answer; as an error event where a stream has begun."""
        if failure.status == 429:
            failure = _busy(failure, knobs)
        record.status, record.error = failure.status, failure.kind
        told = call.exchange
        if told is not None and told.is_committed:
            told.fail(failure.kind, failure.message)
            record.status, record.end_reason = 200, record.end_reason or _end_reason(failure)
            return Told(keep_alive=call.outlives_stream)
        if failure.status == 401:
            self.parts.metrics.limited.inc("key")
        is_wrapped = failure.gate and knobs.wrap_gate_errors and call.route != "chat"
        answer = Answer(
            failure.status, envelope(failure, call.request_id, wrapped=is_wrapped), [*self._headers(call), *failure.headers.items()]
        )
        answer.close_after = failure.status in (408, 413)
        return answer


class _Told:
    """One reply being told: its exchange, the head in front of it, and the accounts behind it."""

    def __init__(self, proxy: Proxy, call: Call, served: Served, lease: Lease, record: Record) -> None:
        self.proxy, self.call, self.served, self.lease, self.record = proxy, call, served, lease, record
        fleet = proxy.parts.fleets.get(served.pool)
        if fleet is None:  # a reload took the pool away since the model was found
            raise Failure(529, NO_BACKEND, headers={"retry-after": "1"})
        self.fleet = fleet

    # In the four forms there are

    async def events(self, translation: Translation, key: bytes | None) -> web.StreamResponse:
        exchange = self._exchange("events", self._options(translation), translation.edge_budget_tokens)
        await self._streamed(exchange, self._sending(translation.body, key, translation.dropped), translation)
        return Told(keep_alive=self.call.outlives_stream)

    async def whole(self, translation: Translation, key: bytes | None) -> web.StreamResponse:
        options = self._options(translation)
        sending = self._sending(translation.body, key, translation.dropped)
        if translation.edge_budget_tokens is not None:  # the edge must see the reasoning as it comes
            exchange = self._exchange("folded", options, translation.edge_budget_tokens)
            await self._deliver(exchange, sending, translation)
            outcome = exchange.outcome
            message = exchange.take_body()
        else:
            exchange = self._exchange("whole", None, None)
            await self._deliver(exchange, sending, translation)
            message, outcome = _core.translate_reply(options, exchange.take_body())
        self.record.came_to(outcome)
        if outcome.fault_status is not None:
            raise Failure(outcome.fault_status, outcome.fault_message or "", kind=outcome.fault_kind)
        return self._answer(message)

    async def chunks(self, sent: chat.Rebuilt, model: str, key: bytes | None) -> web.StreamResponse:
        exchange = self._exchange("chat", None, None, model_json=orjson.dumps(model).decode(), hide_usage=sent.hide_usage)
        await self._streamed(exchange, self._sending(sent.body, key, sent.dropped), None)
        return Told(keep_alive=self.call.outlives_stream)

    async def completion(self, sent: chat.Rebuilt, model: str, key: bytes | None) -> web.StreamResponse:
        exchange = self._exchange("whole", None, None)
        await self._deliver(exchange, self._sending(sent.body, key, sent.dropped), None)
        reply = chat.named(exchange.take_body(), model)
        self.record.input_tokens, self.record.cache_read_tokens, self.record.output_tokens = reply.usage
        self.record.has_outcome = True
        return self._answer(reply.body)

    # What they share

    async def _streamed(self, exchange: Exchange, sending: Sending, translation: Translation | None) -> None:
        metrics = self.proxy.parts.metrics
        metrics.streams.inc()
        self.call.exchange = exchange
        self.call.connection.write_through(exchange)
        try:
            await self._deliver(exchange, sending, translation)
        except asyncio.CancelledError:
            self.record.end_reason = "client_gone"
            raise
        except Failure as failure:
            self.record.end_reason = _end_reason(failure)
            raise
        finally:
            metrics.streams.inc(by=-1)
            self.record.came_to(exchange.outcome)
        self.record.status = 200
        if self.record.end_reason is None:
            self.record.end_reason = _REASONS.get(exchange.end or "", "backend_error")

    async def _deliver(self, exchange: Exchange, sending: Sending, translation: Translation | None) -> None:
        live, record = self.proxy.live, self.record
        live.add(exchange)
        try:
            await dispatch(self.fleet, exchange, sending, record)
            if exchange.end == "budget" and translation is not None:
                exchange.go_on()
                rest = continued(translation, exchange.reasoning_text, exchange.outcome.output_tokens)
                await dispatch(self.fleet, exchange, self._sending(rest, sending.key, translation.dropped), record)
        finally:
            live.discard(exchange)
            record.sent_at, record.first_event_at = exchange.sent_at, exchange.first_event_at
        if exchange.end == "failed":
            record.end_reason = "drain"
            raise Failure(529, "The gateway is shutting down.", headers={"retry-after": "2"})

    def _exchange(
        self, telling: str, options: ReplyOptions | None, budget_tokens: int | None, *, model_json: str = "", hide_usage: bool = False
    ) -> Exchange:
        timeouts = self.fleet.settings.timeouts
        transport = self.call.request.transport
        if transport is None:
            raise asyncio.CancelledError
        is_streamed = telling in ("events", "chat")
        return Exchange(
            telling=telling,
            options=options,
            model_json=model_json,
            hide_usage=hide_usage,
            transport=transport if is_streamed else None,
            descriptor=self.call.connection.descriptor if is_streamed else None,
            is_chunked=self.call.takes_chunks,
            budget_tokens=budget_tokens,
            per_token=self.proxy.parts.metrics.per_token.buckets(self.served.label),
            ping_after_s=self.proxy.parts.config.ping_after_s,
            first_event_s=timeouts.first_event_s,
            idle_s=timeouts.idle_s,
            total_s=timeouts.total_s,
        )

    def _options(self, translation: Translation) -> ReplyOptions:
        knobs = self.served.policy.knobs
        return ReplyOptions(
            message_id=message_id(),
            model=self.record.model or "",
            reasoning=translation.reasoning,
            display_omitted=translation.display_omitted,
            signature_prefix=knobs.signature,
            stop_reasons=None if knobs.stop_reasons is None else tuple(knobs.stop_reasons),
            report_stop_sequence=knobs.report_stop_sequence,
            close_block_on_error=knobs.close_block_on_error,
            tool_names=translation.tool_names,
            single_tool_call=translation.single_tool_call,
            split_think=self.served.policy.split_think,
            max_tokens=translation.max_tokens,
            context_window=self.served.policy.context_window,
            discard_output=translation.discard_output,
        )

    def _sending(self, upstream_body: bytes, key: bytes | None, dropped: tuple[str, ...]) -> Sending:
        headers = self._headers(dropped)

        def head(backend: str, affinity: str) -> bytes:
            named = [*headers, ("x-ferrule-backend", backend), ("x-ferrule-affinity", affinity)]
            self.named = named
            return event_stream_head(named, chunked=self.call.takes_chunks, keep_alive=self.call.outlives_stream)

        return Sending(CHAT_ROUTE, upstream_body, key, head)

    def _headers(self, dropped: tuple[str, ...]) -> list[tuple[str, str]]:
        headers = [("request-id", self.call.request_id), *self.lease.headers().items()]
        return [*headers, ("x-ferrule-dropped", ",".join(dropped))] if dropped else headers

    def _answer(self, payload: bytes) -> Answer:
        self.record.status = 200
        return Answer(200, payload, self.named)


_Surface = Callable[[Proxy, Call, Tenant, Record], Awaitable[web.StreamResponse]]

_SURFACES: dict[str, _Surface] = {
    "messages": Proxy.messages,
    "count_tokens": Proxy.count_tokens,
    "chat": Proxy.chat,
    "models": Proxy.models,
    "model": Proxy.model,
}

# the exchange's end → the reason in the metrics
_REASONS = {"complete": "complete", "broken": "backend_error", "untouched": "backend_error", "timeout": "timeout", "failed": "drain"}


def _estimated_tokens(raw: bytes, request: Request) -> int:
    """For a limit's entry; real usage settles it. Text in base64 is an image or a document, and is not counted as text."""
    if b'"base64"' not in raw:
        return len(raw) // BYTES_PER_TOKEN
    return sum(map(len, text_of(request))) // BYTES_PER_TOKEN


def _end_reason(failure: Failure) -> str:
    return "timeout" if failure.status == 504 else "backend_error"


def _busy(failure: Failure, knobs: Knobs) -> Failure:
    """A 429 as the dialect has it."""
    return Failure(knobs.backend_busy_status, failure.message, headers=failure.headers, gate=failure.gate)


def _speaks_anthropic(call: Call) -> bool:
    headers = call.headers
    return "anthropic-version" in headers or ("x-api-key" in headers and "authorization" not in headers)


def _hint(path: str) -> str:
    return " The base URL of an SDK ends before /v1." if path.startswith("/v1/v1/") else ""
