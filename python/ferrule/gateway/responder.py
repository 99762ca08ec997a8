"""One admitted request, told to its client: as events, as a whole message, as chunks or as a
completion.

Builds the stream, lets `dispatch` find it a backend, and writes down what it came to. What went
wrong is raised, for `proxy` to answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import msgspec
import orjson

from ferrule import _core
from ferrule._core import ResponseOptions, ResponseStream
from ferrule.admission.limits import Lease
from ferrule.catalog import ServedModel
from ferrule.chat import passthrough as chat
from ferrule.errors import Failure
from ferrule.gateway.retry import NO_BACKEND, UpstreamRequest, send_with_retries
from ferrule.gateway.state import AppState
from ferrule.http.request import Request, message_id
from ferrule.http.response import Response, StreamedResponse, event_stream_head
from ferrule.messages import Translation
from ferrule.messages.continuation import build_continuation
from ferrule.telemetry.request_record import RequestRecord
from ferrule.telemetry.tracing import forward_trace_headers

CHAT_ROUTE = "/v1/chat/completions"
SHUTTING_DOWN = "The gateway is shutting down."


class RequestContext(msgspec.Struct, gc=False):
    """A request that may go to a backend, with what holds for it."""

    call: Request
    served: ServedModel
    lease: Lease
    record: RequestRecord


class Responder:
    """One reply being told: its stream, the head in front of it, and the accounts behind it. `live`
    holds its stream meanwhile."""

    def __init__(
        self, state: AppState, live: set[ResponseStream], admitted: RequestContext
    ) -> None:
        self.state, self.live = state, live
        self.call, self.served, self.lease, self.record = (
            admitted.call,
            admitted.served,
            admitted.lease,
            admitted.record,
        )
        pool = state.pools.get(self.served.pool)
        if pool is None:  # a reload took the pool away since the model was found
            raise Failure(529, NO_BACKEND, headers={"retry-after": "1"})
        self.pool = pool

    # In the four forms there are

    def events(self, translation: Translation, key: bytes | None) -> Awaitable[StreamedResponse]:
        stream = self._new_stream(
            "events", self._options(translation), translation.edge_budget_tokens
        )
        return self._streamed(
            stream, self._sending(translation.body, key, translation.dropped), translation
        )

    async def whole(self, translation: Translation, key: bytes | None) -> Response:
        options = self._options(translation)
        sending = self._sending(translation.body, key, translation.dropped)
        if (
            translation.edge_budget_tokens is not None
        ):  # the edge must see the reasoning as it comes
            stream = self._new_stream("folded", options, translation.edge_budget_tokens)
            await self._deliver(stream, sending, translation)
            outcome = stream.outcome
            message = stream.take_body()
        else:
            stream = self._new_stream("whole", None, None)
            await self._deliver(stream, sending, translation)
            message, outcome = _core.translate_reply(options, stream.take_body())
        self.record.set_outcome(outcome)
        if outcome.fault_status is not None:
            raise Failure(
                outcome.fault_status, outcome.fault_message or "", kind=outcome.fault_kind
            )
        return self._answer(message)

    def chunks(
        self, sent: chat.ChatTranslation, model: str, key: bytes | None
    ) -> Awaitable[StreamedResponse]:
        stream = self._new_stream(
            "chat", None, None, model_json=orjson.dumps(model).decode(), hide_usage=sent.hide_usage
        )
        return self._streamed(stream, self._sending(sent.body, key, sent.dropped), None)

    async def completion(
        self, sent: chat.ChatTranslation, model: str, key: bytes | None
    ) -> Response:
        stream = self._new_stream("whole", None, None)
        await self._deliver(stream, self._sending(sent.body, key, sent.dropped), None)
        reply = chat.rename_model(stream.take_body(), model)
        self.record.input_tokens, self.record.cache_read_tokens, self.record.output_tokens = (
            reply.usage
        )
        self.record.has_outcome = self.record.has_usage = True
        return self._answer(reply.body)

    # What they share

    async def _streamed(
        self, stream: ResponseStream, sending: UpstreamRequest, translation: Translation | None
    ) -> StreamedResponse:
        streams = self.state.metrics.streams
        streams.inc()
        self.call.stream = stream
        self.call.connection.write_through(stream)
        try:
            await self._deliver(stream, sending, translation)
        except asyncio.CancelledError:
            self.record.end_reason = "client_gone"
            raise
        except Failure as failure:
            self.record.end_reason = "drain" if stream.end == "failed" else end_reason(failure)
            raise
        finally:
            streams.inc(by=-1)
            self.record.set_outcome(stream.outcome)
        self.record.status = 200
        if self.record.end_reason is None:
            self.record.end_reason = _REASONS.get(stream.end or "", "backend_error")
        return StreamedResponse()

    async def _deliver(
        self, stream: ResponseStream, sending: UpstreamRequest, translation: Translation | None
    ) -> None:
        live, record = self.live, self.record
        if (
            len(live) >= self.state.config.edge.max_streams
        ):  # many may have read their bodies at the same time
            raise overload_failure()
        live.add(stream)
        try:
            await send_with_retries(self.pool, stream, sending, record)
            if (
                translation is not None
                and translation.edge_budget_tokens is not None
                and stream.end == "budget"
            ):
                stream.begin_continuation()
                rest = build_continuation(
                    translation, stream.reasoning_text, stream.outcome.output_tokens
                )
                await send_with_retries(
                    self.pool, stream, self._sending(rest, sending.key, translation.dropped), record
                )
        finally:
            live.discard(stream)
            record.sent_at, record.first_event_at = stream.sent_at, stream.first_event_at
        if stream.end == "failed":
            raise Failure(529, SHUTTING_DOWN, headers={"retry-after": "2"})

    def _new_stream(
        self,
        telling: str,
        options: ResponseOptions | None,
        budget_tokens: int | None,
        *,
        model_json: str = "",
        hide_usage: bool = False,
    ) -> ResponseStream:
        timeouts = self.pool.settings.timeouts
        transport = self.call.transport
        if transport is None:
            raise asyncio.CancelledError
        is_streamed = telling in ("events", "chat")
        return ResponseStream(
            telling=telling,
            options=options,
            model_json=model_json,
            hide_usage=hide_usage,
            transport=transport if is_streamed else None,
            descriptor=self.call.connection.descriptor if is_streamed else None,
            is_chunked=self.call.takes_chunks,
            budget_tokens=budget_tokens,
            per_token=self.state.metrics.per_token.buckets(self.served.label),
            ping_after_s=self.state.config.ping_after_s,
            first_event_s=timeouts.first_event_s,
            idle_s=timeouts.idle_s,
            total_s=timeouts.total_s,
        )

    def _options(self, translation: Translation) -> ResponseOptions:
        dialect = self.served.policy.dialect
        return ResponseOptions(
            message_id=message_id(),
            model=self.record.model or "",
            reasoning=translation.reasoning,
            display_omitted=translation.display_omitted,
            signature_prefix=dialect.signature,
            stop_reasons=None if dialect.stop_reasons is None else tuple(dialect.stop_reasons),
            report_stop_sequence=dialect.report_stop_sequence,
            close_block_on_error=dialect.close_block_on_error,
            tool_names=translation.tool_names,
            single_tool_call=translation.single_tool_call,
            split_think=self.served.policy.split_think,
            max_tokens=translation.max_tokens,
            context_window=self.served.policy.context_window,
            discard_output=translation.discard_output,
        )

    def _sending(
        self, upstream_body: bytes, key: bytes | None, dropped: tuple[str, ...]
    ) -> UpstreamRequest:
        self.headers = [("request-id", self.call.request_id), *self.lease.headers().items()]
        if dropped:
            self.headers.append(("x-ferrule-dropped", ",".join(dropped)))
        return UpstreamRequest(
            CHAT_ROUTE,
            upstream_body,
            key,
            self._head,
            self.record.trace_headers or forward_trace_headers(self.call.headers),
        )

    def _head(self, backend: str, affinity: str) -> bytes:
        self.named = [
            *self.headers,
            ("x-ferrule-backend", backend),
            ("x-ferrule-affinity", affinity),
        ]
        return event_stream_head(
            self.named, chunked=self.call.takes_chunks, keep_alive=self.call.outlives_stream
        )

    def _answer(self, payload: bytes) -> Response:
        self.record.status = 200
        return Response(200, payload, self.named)


# the stream's end → the reason in the metrics
_REASONS = {
    "complete": "complete",
    "broken": "backend_error",
    "untouched": "backend_error",
    "timeout": "timeout",
    "overtime": "timeout",
}


def overload_failure() -> Failure:
    return Failure(529, "The gateway is overloaded.", headers={"retry-after": "5"})


def end_reason(failure: Failure) -> str:
    return "timeout" if failure.status == 504 else "backend_error"
