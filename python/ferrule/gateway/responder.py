"""Answers one admitted request from a backend: streamed or whole, as messages or as chat.

Builds the response stream, has `retry` find it a backend, and records the outcome. Raises `Failure`
for the proxy to answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import msgspec
import orjson

from ferrule import _core
from ferrule._core import ResponseEnd, ResponseOptions, ResponseSpec, ResponseStream
from ferrule.admission.keys import Tenant
from ferrule.admission.limits import Lease
from ferrule.catalog import ServedModel
from ferrule.chat import passthrough as chat
from ferrule.errors import Failure
from ferrule.gateway.retry import UpstreamRequest, send_with_retries
from ferrule.gateway.state import AppState
from ferrule.http.request import Request, message_id
from ferrule.http.response import (
    STREAMED,
    Response,
    StreamedResponse,
    backend_headers,
    event_stream_head,
    model_headers,
)
from ferrule.messages.continuation import build_continuation
from ferrule.messages.translate import Translation
from ferrule.routing.selection import AFFINITY, Choice
from ferrule.telemetry.request_record import RequestRecord
from ferrule.telemetry.tracing import forward_trace_headers

CHAT_ROUTE = "/v1/chat/completions"
SHUTTING_DOWN = "The gateway is shutting down."


class RequestContext(msgspec.Struct, gc=False):
    """One request with what holds for it from its beginning to its end."""

    request: Request
    state: AppState
    record: RequestRecord
    tenant: Tenant


class Responder:
    """One response in progress: stream, headers, accounting. `in_flight` holds its stream
    meanwhile."""

    def __init__(
        self,
        context: RequestContext,
        model: ServedModel,
        lease: Lease,
        in_flight: set[ResponseStream],
    ) -> None:
        self._request, self._state, self._record = context.request, context.state, context.record
        self._model, self._lease, self._in_flight = model, lease, in_flight
        self._pool = self._state.pools[model.pool]
        self._deadlines = self._state.deadlines[model.pool]

    # The four kinds of response

    def stream_message(
        self, translation: Translation, key: bytes | None
    ) -> Awaitable[StreamedResponse]:
        stream = self._client_stream(ResponseSpec.events(self._options(translation)))
        return self._stream(stream, translation, key)

    async def whole_message(self, translation: Translation, key: bytes | None) -> Response:
        options = self._options(translation)
        if translation.edge_budget_tokens is not None:
            # the edge must see the reasoning as it comes, so the backend streams
            stream = self._new_stream(ResponseSpec.aggregated(options))
            choice = await self._send(stream, translation, key)
            outcome = stream.outcome
            message = stream.take_body()
        else:
            stream = self._new_stream(ResponseSpec.buffered())
            choice = await self._send(stream, translation, key)
            message, outcome = _core.translate_reply(options, stream.take_body())
        self._record.set_outcome(outcome)
        if outcome.fault_status is not None:
            raise Failure(
                outcome.fault_status, outcome.fault_message or "", kind=outcome.fault_kind
            )
        return self._whole(message, translation.dropped, choice)

    def stream_chat(
        self, translation: chat.ChatTranslation, model: str, key: bytes | None
    ) -> Awaitable[StreamedResponse]:
        model_json = orjson.dumps(model).decode()
        stream = self._client_stream(ResponseSpec.chat(model_json, translation.hide_usage))
        return self._stream(stream, translation, key)

    async def whole_chat(
        self, translation: chat.ChatTranslation, model: str, key: bytes | None
    ) -> Response:
        stream = self._new_stream(ResponseSpec.buffered())
        choice = await self._send(stream, translation, key)
        completion = chat.rename_model(stream.take_body(), model)
        self._record.set_usage(*completion.usage)
        return self._whole(completion.body, translation.dropped, choice)

    # Sending

    async def _stream(
        self,
        stream: ResponseStream,
        translation: Translation | chat.ChatTranslation,
        key: bytes | None,
    ) -> StreamedResponse:
        record, streams = self._record, self._state.metrics.streams
        streams.inc()
        self._request.stream = stream
        self._request.client.attach(stream)
        try:
            await self._send(stream, translation, key)
        except asyncio.CancelledError:
            record.end_reason = "client_gone"
            raise
        except Failure as failure:
            record.end_reason = "drain" if stream.end == ResponseEnd.FAILED else end_reason(failure)
            raise
        finally:
            streams.inc(by=-1)
            record.set_outcome(stream.outcome)
        if record.end_reason is None:
            record.end_reason = _END_REASONS.get(stream.end, "backend_error")
        return STREAMED

    async def _send(
        self,
        stream: ResponseStream,
        translation: Translation | chat.ChatTranslation,
        key: bytes | None,
    ) -> Choice:
        """Sends the request, and the second leg where a thinking budget held here ends the first.
        Returns the backend that answered last."""
        in_flight, record = self._in_flight, self._record
        # checked again: many requests may have read their bodies at the same time
        if len(in_flight) >= self._state.config.edge.max_streams:
            raise overload_failure()
        in_flight.add(stream)
        try:
            request = self._upstream_request(translation.body, key, translation.dropped)
            choice = await send_with_retries(self._pool, stream, request, record)
            if stream.end == ResponseEnd.BUDGET_SPENT and isinstance(translation, Translation):
                stream.begin_continuation()
                request.body = build_continuation(
                    translation, stream.reasoning_text, stream.outcome.output_tokens
                )
                choice = await send_with_retries(self._pool, stream, request, record)
        finally:
            in_flight.discard(stream)
            record.sent_at, record.first_event_at = stream.sent_at, stream.first_event_at
        if stream.end == ResponseEnd.FAILED:
            raise Failure(529, SHUTTING_DOWN, retry_after_s=2)
        return choice

    def _upstream_request(
        self, body: bytes, key: bytes | None, dropped: tuple[str, ...]
    ) -> UpstreamRequest:
        request = self._request

        def build_head(choice: Choice | None) -> bytes:
            return event_stream_head(
                request.request_id,
                self._headers(dropped, choice),
                chunked=request.takes_chunks,
                keep_alive=request.outlives_stream,
            )

        trace_headers = self._record.trace_headers or forward_trace_headers(request.headers)
        return UpstreamRequest(CHAT_ROUTE, body, key, build_head, trace_headers)

    def _client_stream(self, spec: ResponseSpec) -> ResponseStream:
        """A response that is streamed to the client."""
        client = self._request.client
        transport = client.transport
        if transport is None:
            raise asyncio.CancelledError
        return ResponseStream(
            spec,
            self._deadlines,
            transport=transport,
            descriptor=client.descriptor,
            is_chunked=self._request.takes_chunks,
            per_token=self._state.metrics.per_token.buckets(self._model.label),
        )

    def _new_stream(self, spec: ResponseSpec) -> ResponseStream:
        """A response that reaches the client whole."""
        per_token = self._state.metrics.per_token.buckets(self._model.label)
        return ResponseStream(spec, self._deadlines, per_token=per_token)

    def _options(self, translation: Translation) -> ResponseOptions:
        return ResponseOptions(
            self._model.response_policy,
            message_id=message_id(),
            model=self._record.model or "",
            reasoning=translation.reasoning,
            display_omitted=translation.display_omitted,
            tool_names=translation.tool_names,
            single_tool_call=translation.single_tool_call,
            max_tokens=translation.max_tokens,
            discard_output=translation.discard_output,
            budget_tokens=translation.edge_budget_tokens,
        )

    # The response

    def _headers(self, dropped: tuple[str, ...], choice: Choice | None) -> list[tuple[str, str]]:
        headers = model_headers(self._lease.rate_limits, dropped)
        if choice is not None:
            headers += backend_headers(choice.backend.name, AFFINITY[choice.branch])
        return headers

    def _whole(self, body: bytes, dropped: tuple[str, ...], choice: Choice) -> Response:
        return Response(200, body, self._request.request_id, self._headers(dropped, choice))


# how the stream ended → the reason in the metrics
_END_REASONS: dict[ResponseEnd | None, str] = {
    ResponseEnd.COMPLETE: "complete",
    ResponseEnd.SILENT: "timeout",
    ResponseEnd.OVERTIME: "timeout",
}


def overload_failure() -> Failure:
    return Failure(529, "The gateway is overloaded.", retry_after_s=5)


def end_reason(failure: Failure) -> str:
    return "timeout" if failure.status == 504 else "backend_error"
