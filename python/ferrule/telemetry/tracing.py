"""One span per request, in OpenTelemetry's GenAI conventions, and the trace context that goes on to
the backend.

Decided once at start: without OTEL_* settings or without the extra `ferrule[otel]` there is no
tracing, and a client's own context is passed on unchanged. No text of a
prompt, no key and no address enters a span.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from threading import Thread
from typing import TYPE_CHECKING

from ferrule.telemetry.request_record import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
LAST_EXPORT_S = 3.0
NAME_CHARS_MAX = 200

# https://www.w3.org/TR/trace-context/#traceparent-header: version, trace, parent and flags; neither
# id may be all zeros
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_STATE = re.compile(r"[\x20-\x7e]{1,512}")

# what a surface does, in the words of the conventions; the others have none
_OPERATIONS = {"messages": "chat", "chat": "chat"}
_NO_FAILURES = (None, "complete", "client_gone")


def forward_trace_headers(headers: Mapping[str, str]) -> str:
    """The client's trace context as header lines for the backend; empty when there is none, or none
    that is valid."""
    parent = headers.get("traceparent")
    if parent is None or _PARENT.fullmatch(parent) is None:
        return ""
    return _lines(parent, headers.get("tracestate"))


class Tracing:
    """Spans of one process. Ended ones are sent by a thread of the SDK's own."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("ferrule")
        self._context = TraceContextTextMapPropagator()
        self._kind = SpanKind.SERVER

    def begin(self, headers: Mapping[str, str], record: RequestRecord) -> Span:
        """A span below the client's, if it has one; from now on the backend gets this one as its
        parent."""
        from opentelemetry.trace import set_span_in_context

        carrier = {
            name: value
            for name in ("traceparent", "tracestate")
            if (value := headers.get(name)) is not None
        }
        span = self._tracer.start_span(
            record.route,
            self._context.extract(carrier),
            self._kind,
            start_time=_nanoseconds(record.at),
        )
        sent: dict[str, str] = {}
        self._context.inject(sent, set_span_in_context(span))
        record.trace_headers = _lines(sent.get("traceparent", ""), sent.get("tracestate"))
        return span

    def end(self, span: Span, record: RequestRecord) -> None:
        from opentelemetry.trace import StatusCode

        if span.is_recording():
            span.update_name(_name(record))
            span.set_attributes(attributes(record))
            if record.status >= 500 or record.end_reason not in _NO_FAILURES:
                span.set_status(StatusCode.ERROR)
        span.end(_nanoseconds(record.at + record.ended_at - record.received_at))

    async def close(self) -> None:
        """Sends remaining spans, for at most `LAST_EXPORT_S`: a dead collector must not delay the
        exit."""
        sending = Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        await asyncio.to_thread(sending.join, LAST_EXPORT_S)


def open_tracing(environ: Mapping[str, str]) -> Tracing | None:
    """None: off. Configured by OpenTelemetry's own variables; spans go out as OTLP over HTTP."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or not any(
        environ.get(name) for name in ENDPOINTS
    ):
        return None
    exporter = environ.get("OTEL_TRACES_EXPORTER", "otlp")
    if exporter != "otlp":
        if exporter != "none":
            log.warning(
                "OTEL_TRACES_EXPORTER is %s; only otlp is offered, so nothing is traced", exporter
            )
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning("OTEL_* is set, but nothing is traced: pip install 'ferrule[otel]'")
        return None
    is_named = "OTEL_SERVICE_NAME" in environ or "service.name=" in environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    provider = TracerProvider(
        resource=Resource.create({} if is_named else {"service.name": "ferrule"})
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider)


def attributes(record: RequestRecord) -> dict[str, AttributeValue]:
    """A span's attributes. Input tokens include those read from a cache, as the conventions have
    it."""
    found: dict[str, AttributeValue | None] = {
        "gen_ai.operation.name": _OPERATIONS.get(record.route),
        "gen_ai.request.model": record.model[:NAME_CHARS_MAX] if record.model else None,
        "gen_ai.request.stream": True if record.stream else None,
        "gen_ai.response.finish_reasons": (record.stop_reason,) if record.stop_reason else None,
        "http.response.status_code": record.status,
        "error.type": record.error
        or (record.end_reason if record.end_reason not in _NO_FAILURES else None),
        "ferrule.request_id": record.request_id,
        "ferrule.pool": record.pool,
        "ferrule.backend": record.backend,
        "ferrule.affinity": record.branch,
    }
    if record.has_outcome:
        found["gen_ai.usage.input_tokens"] = record.input_tokens + record.cache_read_tokens
        found["gen_ai.usage.cache_read.input_tokens"] = record.cache_read_tokens
        found["gen_ai.usage.output_tokens"] = record.output_tokens
    if record.first_event_at:
        found["gen_ai.response.time_to_first_chunk"] = record.first_event_at - record.received_at
    return {name: value for name, value in found.items() if value is not None}


def _name(record: RequestRecord) -> str:
    operation = _OPERATIONS.get(record.route)
    return (
        f"{operation} {record.model[:NAME_CHARS_MAX]}"
        if operation and record.model
        else record.route
    )


def _lines(parent: str, state: str | None) -> str:
    has_state = state is not None and _STATE.fullmatch(state) is not None
    return f"traceparent: {parent}\r\n" + (f"tracestate: {state}\r\n" if has_state else "")


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
