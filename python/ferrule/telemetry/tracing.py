"""One span per request, by OpenTelemetry's GenAI conventions, and the trace context for the
backend.

Decided once at start: without OTEL_* settings or without the extra `ferrule[otel]` there is no
tracing, and a client's own context is passed on unchanged. A span never holds text of a prompt, a
key or an address.
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

# https://www.w3.org/TR/trace-context/#traceparent-header: version, trace id, parent id and flags;
# an id of zeros is invalid
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_STATE = re.compile(r"[\x20-\x7e]{1,512}")

# gen_ai.operation.name by route; other routes have none
_OPERATIONS = {"messages": "chat", "chat": "chat"}
_NO_FAILURES = (None, "complete", "client_gone")


def forward_trace_headers(headers: Mapping[str, str]) -> str:
    """The client's trace context as header lines for the backend; empty if missing or invalid."""
    parent = headers.get("traceparent")
    if parent is None or _PARENT.fullmatch(parent) is None:
        return ""
    return _format_headers(parent, headers.get("tracestate"))


class Tracing:
    """Makes the spans of one process. The SDK's own thread exports them."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("ferrule")
        self._context = TraceContextTextMapPropagator()
        self._kind = SpanKind.SERVER

    def begin(self, headers: Mapping[str, str], record: RequestRecord) -> Span:
        """Starts a span, as a child of the client's if there is one, and makes it the parent that
        the backend gets."""
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
            start_time=_to_nanoseconds(record.received_unix_s),
        )
        sent: dict[str, str] = {}
        self._context.inject(sent, set_span_in_context(span))
        record.trace_headers = _format_headers(sent.get("traceparent", ""), sent.get("tracestate"))
        return span

    def end(self, span: Span, record: RequestRecord) -> None:
        from opentelemetry.trace import StatusCode

        if span.is_recording():
            span.update_name(_name_span(record))
            span.set_attributes(build_attributes(record))
            if record.status >= 500 or record.end_reason not in _NO_FAILURES:
                span.set_status(StatusCode.ERROR)
        duration_s = record.ended_at - record.received_at
        span.end(_to_nanoseconds(record.received_unix_s + duration_s))

    async def close(self) -> None:
        """Sends remaining spans, for at most `LAST_EXPORT_S`: a dead collector must not delay the
        exit."""
        shutdown = Thread(target=self._provider.shutdown, daemon=True)
        shutdown.start()
        await asyncio.to_thread(shutdown.join, LAST_EXPORT_S)


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
                "OTEL_TRACES_EXPORTER is %s; only otlp is supported, so tracing is off", exporter
            )
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning("OTEL_* is set, but tracing is off; it needs: pip install 'ferrule[otel]'")
        return None
    is_named = "OTEL_SERVICE_NAME" in environ or "service.name=" in environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    provider = TracerProvider(
        resource=Resource.create({} if is_named else {"service.name": "ferrule"})
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider)


def build_attributes(record: RequestRecord) -> dict[str, AttributeValue]:
    """A span's attributes. By the conventions, input tokens include those read from a cache."""
    values: dict[str, AttributeValue | None] = {
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
        values["gen_ai.usage.input_tokens"] = record.input_tokens + record.cache_read_tokens
        values["gen_ai.usage.cache_read.input_tokens"] = record.cache_read_tokens
        values["gen_ai.usage.output_tokens"] = record.output_tokens
    if record.first_event_at:
        values["gen_ai.response.time_to_first_chunk"] = record.first_event_at - record.received_at
    return {name: value for name, value in values.items() if value is not None}


def _name_span(record: RequestRecord) -> str:
    operation = _OPERATIONS.get(record.route)
    return (
        f"{operation} {record.model[:NAME_CHARS_MAX]}"
        if operation and record.model
        else record.route
    )


def _format_headers(parent: str, state: str | None) -> str:
    has_state = state is not None and _STATE.fullmatch(state) is not None
    return f"traceparent: {parent}\r\n" + (f"tracestate: {state}\r\n" if has_state else "")


def _to_nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
