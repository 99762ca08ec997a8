"""One admitted request, told to its client: as events, as a whole message, as chunks or as a completion.

Builds the exchange, lets `dispatch` find it a backend, and writes down what it came to. What went wrong is raised, for `proxy` to answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import msgspec
import orjson

from ferrule import _core
from ferrule._core import Exchange, ReplyOptions
from ferrule.admission.limits import Lease
from ferrule.catalog import Served
from ferrule.chat import passthrough as chat
from ferrule.errors import Failure
from ferrule.gateway.retry import NO_BACKEND, Sending, dispatch
from ferrule.gateway.state import Parts
from ferrule.http.request import Call, message_id
from ferrule.http.response import Answer, Told, event_stream_head
from ferrule.messages import Translation
from ferrule.messages.continuation import continued
from ferrule.telemetry.request_record import Record
from ferrule.telemetry.tracing import passed_on

CHAT_ROUTE = "/v1/chat/completions"
SHUTTING_DOWN = "The gateway is shutting down."


class Admitted(msgspec.Struct, gc=False):
    """A request that may go to a backend, with what holds for it."""

    call: Call
    served: Served
    lease: Lease
    record: Record


class Reply:
    """One reply being told: its exchange, the head in front of it, and the accounts behind it. `live` holds its exchange meanwhile."""

    def __init__(self, parts: Parts, live: set[Exchange], admitted: Admitted) -> None:
        self.parts, self.live = parts, live
        self.call, self.served, self.lease, self.record = admitted.call, admitted.served, admitted.lease, admitted.record
        fleet = parts.fleets.get(self.served.pool)
        if fleet is None:  # a reload took the pool away since the model was found
            raise Failure(529, NO_BACKEND, headers={"retry-after": "1"})
        self.fleet = fleet

    # In the four forms there are

    def events(self, translation: Translation, key: bytes | None) -> Awaitable[Told]:
        exchange = self._exchange("events", self._options(translation), translation.edge_budget_tokens)
        return self._streamed(exchange, self._sending(translation.body, key, translation.dropped), translation)

    async def whole(self, translation: Translation, key: bytes | None) -> Answer:
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

    def chunks(self, sent: chat.Rebuilt, model: str, key: bytes | None) -> Awaitable[Told]:
        exchange = self._exchange("chat", None, None, model_json=orjson.dumps(model).decode(), hide_usage=sent.hide_usage)
        return self._streamed(exchange, self._sending(sent.body, key, sent.dropped), None)

    async def completion(self, sent: chat.Rebuilt, model: str, key: bytes | None) -> Answer:
        exchange = self._exchange("whole", None, None)
        await self._deliver(exchange, self._sending(sent.body, key, sent.dropped), None)
        reply = chat.named(exchange.take_body(), model)
        self.record.input_tokens, self.record.cache_read_tokens, self.record.output_tokens = reply.usage
        self.record.has_outcome = self.record.has_usage = True
        return self._answer(reply.body)

    # What they share

    async def _streamed(self, exchange: Exchange, sending: Sending, translation: Translation | None) -> Told:
        streams = self.parts.metrics.streams
        streams.inc()
        self.call.exchange = exchange
        self.call.connection.write_through(exchange)
        try:
            await self._deliver(exchange, sending, translation)
        except asyncio.CancelledError:
            self.record.end_reason = "client_gone"
            raise
        except Failure as failure:
            self.record.end_reason = "drain" if exchange.end == "failed" else end_reason(failure)
            raise
        finally:
            streams.inc(by=-1)
            self.record.came_to(exchange.outcome)
        self.record.status = 200
        if self.record.end_reason is None:
            self.record.end_reason = _REASONS.get(exchange.end or "", "backend_error")
        return Told()

    async def _deliver(self, exchange: Exchange, sending: Sending, translation: Translation | None) -> None:
        live, record = self.live, self.record
        if len(live) >= self.parts.config.edge.max_streams:  # many may have read their bodies at the same time
            raise overloaded()
        live.add(exchange)
        try:
            await dispatch(self.fleet, exchange, sending, record)
            if translation is not None and translation.edge_budget_tokens is not None and exchange.end == "budget":
                exchange.go_on()
                rest = continued(translation, exchange.reasoning_text, exchange.outcome.output_tokens)
                await dispatch(self.fleet, exchange, self._sending(rest, sending.key, translation.dropped), record)
        finally:
            live.discard(exchange)
            record.sent_at, record.first_event_at = exchange.sent_at, exchange.first_event_at
        if exchange.end == "failed":
            raise Failure(529, SHUTTING_DOWN, headers={"retry-after": "2"})

    def _exchange(
        self, telling: str, options: ReplyOptions | None, budget_tokens: int | None, *, model_json: str = "", hide_usage: bool = False
    ) -> Exchange:
        timeouts = self.fleet.settings.timeouts
        transport = self.call.transport
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
            per_token=self.parts.metrics.per_token.buckets(self.served.label),
            ping_after_s=self.parts.config.ping_after_s,
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
        self.headers = [("request-id", self.call.request_id), *self.lease.headers().items()]
        if dropped:
            self.headers.append(("x-ferrule-dropped", ",".join(dropped)))
        return Sending(CHAT_ROUTE, upstream_body, key, self._head, self.record.trace_headers or passed_on(self.call.headers))

    def _head(self, backend: str, affinity: str) -> bytes:
        self.named = [*self.headers, ("x-ferrule-backend", backend), ("x-ferrule-affinity", affinity)]
        return event_stream_head(self.named, chunked=self.call.takes_chunks, keep_alive=self.call.outlives_stream)

    def _answer(self, payload: bytes) -> Answer:
        self.record.status = 200
        return Answer(200, payload, self.named)


# the exchange's end → the reason in the metrics
_REASONS = {"complete": "complete", "broken": "backend_error", "untouched": "backend_error", "timeout": "timeout", "overtime": "timeout"}


def overloaded() -> Failure:
    return Failure(529, "The gateway is overloaded.", headers={"retry-after": "5"})


def end_reason(failure: Failure) -> str:
    return "timeout" if failure.status == 504 else "backend_error"
