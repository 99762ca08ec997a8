"""Spans by the conventions, the trace context sent to the backend, and when tracing is off."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from tests.app_state import Stage, running_stage, until
from tests.doubles.backend import Hold, Reply, ScriptedBackend, refusal
from tests.doubles.frames import Canned, D
from tests.doubles.proxy import REQ

from ferrule.telemetry import tracing
from ferrule.telemetry.request_record import RequestRecord
from ferrule.telemetry.tracing import Tracing, build_attributes, forward_trace_headers, open_tracing

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=a,other=b"}
LINES = f"traceparent: 00-{TRACE}-{PARENT}-01\r\ntracestate: vendor=a,other=b\r\n"


@pytest.mark.parametrize(
    ("headers", "lines"),
    [
        ({}, ""),
        (CONTEXT, LINES),
        ({"traceparent": CONTEXT["traceparent"]}, LINES.split("tracestate")[0]),
        ({"tracestate": "vendor=a"}, ""),
        ({**CONTEXT, "tracestate": "a=1\r\nx-evil: 1"}, LINES.split("tracestate")[0]),
        ({**CONTEXT, "tracestate": "é=1"}, LINES.split("tracestate")[0]),
        ({"traceparent": f"00-{TRACE}-{PARENT}-01\r\nx-evil: 1"}, ""),
        ({"traceparent": f"00-{TRACE}-{PARENT}-01\n"}, ""),
        ({"traceparent": f"00-{TRACE.upper()}-{PARENT}-01"}, ""),
        ({"traceparent": f"00-{'0' * 32}-{PARENT}-01"}, ""),
        ({"traceparent": f"00-{TRACE}-{'0' * 16}-01"}, ""),
        ({"traceparent": f"ff-{TRACE}-{PARENT}-01"}, ""),
        ({"traceparent": f"00-{TRACE}-{PARENT}"}, ""),
    ],
)
def test_only_a_valid_context_is_passed_on(headers: dict[str, str], lines: str) -> None:
    assert forward_trace_headers(headers) == lines


def make_record(**members: Any) -> RequestRecord:
    record = RequestRecord("req_1", "messages", 100.0)
    record.status, record.ended_at, record.received_unix_s = 200, 102.0, 1_700_000_000.0
    for name, value in members.items():
        setattr(record, name, value)
    return record


def test_attributes() -> None:
    full = make_record(
        model="m",
        stream=True,
        stop_reason="end_turn",
        end_reason="complete",
        has_outcome=True,
        input_tokens=7,
        cache_read_tokens=2,
        output_tokens=3,
        first_event_at=100.5,
        pool="p",
        backend="p-1",
        branch="home",
        tenant="secret",
    )
    assert build_attributes(full) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "gen_ai.response.finish_reasons": ("end_turn",),
        "gen_ai.response.time_to_first_chunk": 0.5,
        "gen_ai.usage.input_tokens": 9,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.output_tokens": 3,
        "http.response.status_code": 200,
        "ferrule.request_id": "req_1",
        "ferrule.pool": "p",
        "ferrule.backend": "p-1",
        "ferrule.affinity": "home",
    }


@pytest.mark.parametrize(
    ("members", "kind"),
    [
        ({"status": 404, "error": "not_found_error"}, "not_found_error"),
        ({"end_reason": "timeout"}, "timeout"),
        ({"end_reason": "client_gone"}, None),
        ({"end_reason": "complete"}, None),
    ],
)
def test_kinds_of_errors(members: dict[str, Any], kind: str | None) -> None:
    assert build_attributes(make_record(**members)).get("error.type") == kind


def test_long_names_are_cut() -> None:
    assert build_attributes(make_record(model="x" * 1000))["gen_ai.request.model"] == "x" * 200


# In a running worker


class Traced:
    def __init__(self, stage: Stage, provider: TracerProvider) -> None:
        self.stage = stage
        self.exporter = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        stage.worker._set_state(tracing=Tracing(provider))

    async def span(self) -> ReadableSpan:
        await until(self.exporter.get_finished_spans)
        (span,) = self.exporter.get_finished_spans()
        return span


@pytest.fixture
async def stage(backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    async with running_stage(backend, monkeypatch) as running:
        yield running


@pytest.fixture
def traced(stage: Stage) -> Traced:
    return Traced(stage, TracerProvider())


async def test_a_request_is_a_span_between_the_clients_and_the_backends(
    traced: Traced, backend: ScriptedBackend
) -> None:
    await traced.stage.ask(headers=CONTEXT)
    span = await traced.span()
    assert (span.name, span.kind, span.status.status_code) == (
        "chat m",
        SpanKind.SERVER,
        StatusCode.UNSET,
    )
    assert span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    assert backend.last.header("traceparent") == f"00-{TRACE}-{span.context.span_id:016x}-01"
    assert backend.last.header("tracestate") == CONTEXT["tracestate"]
    assert span.attributes is not None
    assert span.attributes["gen_ai.usage.input_tokens"] == 7
    assert span.start_time is not None
    assert span.end_time is not None
    (record,) = traced.stage.records
    assert span.end_time - span.start_time == pytest.approx(
        (record.ended_at - record.received_at) * 1e9, rel=0.01
    )


async def test_without_a_context_a_trace_begins_here(
    traced: Traced, backend: ScriptedBackend
) -> None:
    await traced.stage.ask()
    span = await traced.span()
    assert span.parent is None
    assert (backend.last.header("traceparent") or "").startswith(
        f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-"
    )


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
async def test_streams_have_spans_too(traced: Traced, backend: ScriptedBackend, path: str) -> None:
    backend.play(Canned("Hello."))
    async with traced.stage.client.post(path, json=REQ(stream=True), headers=CONTEXT) as answer:
        await answer.read()
    span = await traced.span()
    assert span.attributes is not None
    assert span.attributes["gen_ai.request.stream"] is True
    assert span.attributes["gen_ai.usage.output_tokens"] == 3
    assert (backend.last.header("traceparent") or "").split("-")[1] == TRACE


async def test_failures_set_the_error_type(traced: Traced, backend: ScriptedBackend) -> None:
    backend.play(refusal(500))
    await traced.stage.ask()
    span = await traced.span()
    assert span.attributes is not None
    assert (span.status.status_code, span.attributes["error.type"]) == (
        StatusCode.ERROR,
        "api_error",
    )


async def test_a_clients_fault_leaves_the_status_unset(traced: Traced) -> None:
    await traced.stage.ask(messages=[])
    span = await traced.span()
    assert span.attributes is not None
    assert (span.name, span.status.status_code) == ("messages", StatusCode.UNSET)
    assert span.attributes["error.type"] == "invalid_request_error"


async def test_a_client_that_leaves_ends_its_span(traced: Traced, backend: ScriptedBackend) -> None:
    backend.play(Reply((D({"content": "a"}), Hold())))
    async with traced.stage.client.post("/v1/messages", json=REQ(stream=True)) as answer:
        await answer.content.readuntil(b"text_delta")
        answer.close()
    span = await traced.span()
    assert span.attributes is not None
    assert span.attributes["http.response.status_code"] == 499


async def test_an_unsampled_request_tells_the_backend(
    stage: Stage, backend: ScriptedBackend
) -> None:
    traced = Traced(stage, TracerProvider(sampler=ALWAYS_OFF))
    await stage.ask(headers=CONTEXT)
    assert (backend.last.header("traceparent") or "").split("-")[1::2] == [TRACE, "00"]
    assert traced.exporter.get_finished_spans() == ()


async def test_without_tracing_the_context_passes_unchanged(
    stage: Stage, backend: ScriptedBackend
) -> None:
    assert stage.worker.state.tracing is None
    await stage.ask(headers=CONTEXT)
    assert {name: backend.last.header(name) for name in CONTEXT} == CONTEXT
    await stage.ask()
    assert backend.last.header("traceparent") is None


# On or off

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


class Exporter(InMemorySpanExporter):
    """Stands in for the OTLP exporter, which is a separate package."""


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("trace_exporter")
    module.OTLPSpanExporter = Exporter  # type: ignore[attr-defined]
    for name in ("", ".proto", ".proto.http"):
        monkeypatch.setitem(sys.modules, f"opentelemetry.exporter.otlp{name}", ModuleType("parent"))
    monkeypatch.setitem(
        sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", module
    )


@pytest.mark.parametrize(
    ("environ", "is_on"),
    [
        ({}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "zipkin"}, False),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"}, False),
        ({"OTEL_SERVICE_NAME": "edge"}, False),
    ],
)
@pytest.mark.usefixtures("exporter")
async def test_tracing_is_decided_at_start(environ: dict[str, str], is_on: bool) -> None:
    opened = open_tracing(environ)
    assert (opened is not None) is is_on
    if opened is not None:
        await opened.close()


@pytest.mark.usefixtures("exporter")
async def test_the_service_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_tracing(ENDPOINT)
    assert opened is not None
    assert opened._provider.resource.attributes["service.name"] == "ferrule"
    await opened.close()
    monkeypatch.setenv("OTEL_SERVICE_NAME", "edge")
    renamed = open_tracing({**ENDPOINT, "OTEL_SERVICE_NAME": "edge"})
    assert renamed is not None
    assert renamed._provider.resource.attributes["service.name"] == "edge"
    await renamed.close()


def test_without_the_package_a_warning_names_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with caplog.at_level(logging.WARNING):
        assert open_tracing(ENDPOINT) is None
    assert "ferrule[otel]" in caplog.text


async def test_a_collector_that_is_gone_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import threading

    monkeypatch.setattr(tracing, "LAST_EXPORT_S", 0.05)
    gate = threading.Event()
    provider = TracerProvider()
    monkeypatch.setattr(provider, "shutdown", lambda: gate.wait(10))
    await Tracing(provider).close()
    gate.set()
