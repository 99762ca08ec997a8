"""The line of a request: as JSON, on a terminal, and without a reader."""

from __future__ import annotations

import io
import json
import re

import pytest

from ferrule.telemetry.accesslog import NAME_CHARS_MAX, AccessLog
from ferrule.telemetry.request_record import RequestRecord


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def make_record() -> RequestRecord:
    record = RequestRecord("req_1", "messages", 100.0)
    record.received_unix_s = 1_700_000_000.25
    record.status, record.model, record.backend, record.branch, record.tenant = (
        200,
        "m",
        "p-1",
        "home",
        "team",
    )
    record.input_tokens, record.output_tokens, record.has_outcome, record.stop_reason = (
        7,
        3,
        True,
        "end_turn",
    )
    record.first_event_at, record.ended_at = 100.5, 102.0
    return record


def test_json_lines() -> None:
    out = io.StringIO()
    AccessLog(out).write([make_record(), make_record()])
    first, second = out.getvalue().splitlines()
    assert first == second
    line = json.loads(first)
    assert line["time"] == "2023-11-14T22:13:20.250Z"
    assert (line["status"], line["tenant"], line["duration_s"], line["first_event_s"]) == (
        200,
        "team",
        2.0,
        0.5,
    )
    assert (line["input_tokens"], line["stop_reason"], line["dropped"], line["error"]) == (
        7,
        "end_turn",
        None,
        None,
    )


def test_a_refused_request_has_a_line_too() -> None:
    out = io.StringIO()
    refused = RequestRecord("req_1", "unknown", 100.0)
    refused.status, refused.error, refused.ended_at = 404, "not_found_error", 100.0
    AccessLog(out).write([refused])
    line = json.loads(out.getvalue())
    assert (line["model"], line["first_event_s"], line["error"]) == (None, None, "not_found_error")


def test_a_name_cannot_make_a_second_line_or_fill_the_disk() -> None:
    out = io.StringIO()
    long = make_record()
    long.model = 'x"\n' * 10_000
    AccessLog(out).write([long])
    assert out.getvalue().count("\n") == 1
    assert len(json.loads(out.getvalue())["model"]) == NAME_CHARS_MAX


def test_lines_on_a_terminal() -> None:
    out = Terminal()
    AccessLog(out).write([make_record()])
    assert re.search(
        r"200 messages +m → p-1 \(home\) 7\+0 in, 3 out 2\.000 s end_turn req_1\n", out.getvalue()
    )


def test_a_closed_output_is_ignored() -> None:
    out = io.StringIO()
    log = AccessLog(out)
    out.close()
    log.write([make_record()])  # does not raise


def test_standard_output_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    AccessLog().write([make_record()])
    assert json.loads(capsys.readouterr().out)["request_id"] == "req_1"
