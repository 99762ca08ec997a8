"""The golden transcripts through the extension: the same bytes however the backend's stream is cut,
and the same message when folded."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.response_policy import response_policy

from ferrule._core import Outcome, ResponseOptions, Translator, fold

CASES = sorted(path.parent for path in Path(__file__).parent.glob("transcripts/*/upstream.sse"))


POLICY_MEMBERS = {
    "signature_prefix",
    "stop_reasons",
    "report_stop_sequence",
    "close_block_on_error",
    "split_think",
    "context_window",
}


def options_of(case: Path) -> ResponseOptions:
    given: dict[str, Any] = json.loads(read(case / "options.json") or b"{}")
    policy = {name: value for name, value in given.items() if name in POLICY_MEMBERS}
    request = {name: value for name, value in given.items() if name not in POLICY_MEMBERS}
    if "tool_names" in request:
        request["tool_names"] = [tuple(pair) for pair in request["tool_names"]]
    named = {
        "message_id": "msg_0123456789abcdef0123456789abcdef",
        "model": "m",
        "reasoning": "thinking",
    }
    return ResponseOptions(response_policy(**policy), **{**named, **request})


def read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def translate(case: Path, pieces: Iterable[bytes]) -> tuple[bytes, Outcome]:
    translator = Translator(options_of(case))
    received = b"".join([*(translator.feed(piece) for piece in pieces), translator.finish()])
    return received, translator.outcome


def fault_of(outcome: Outcome) -> dict[str, Any] | None:
    if outcome.fault_kind is None:
        return None
    return {
        "kind": outcome.fault_kind,
        "message": outcome.fault_message,
        "status": outcome.fault_status,
    }


def test_the_cases_are_there() -> None:
    assert len(CASES) >= 90


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_whole(case: Path) -> None:
    received, outcome = translate(case, [read(case / "upstream.sse")])
    assert received == read(case / "client.sse")
    assert fault_of(outcome) == json.loads(read(case / "fault.json") or b"null")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_byte_by_byte(case: Path) -> None:
    upstream = read(case / "upstream.sse")
    received, _ = translate(case, (upstream[at : at + 1] for at in range(len(upstream))))
    assert received == read(case / "client.sse")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cut_around_every_border(case: Path) -> None:
    upstream = read(case / "upstream.sse")
    golden = read(case / "client.sse")
    ends = [at for at, byte in enumerate(upstream) if byte in b"\r\n"]
    for cut in sorted({cut for end in ends for cut in (end, end + 1, end + 2)}):
        assert translate(case, [upstream[:cut], upstream[cut:]])[0] == golden, cut


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_folded(case: Path) -> None:
    message, outcome = fold(options_of(case), read(case / "upstream.sse"))
    assert message == read(case / "message.json").removesuffix(b"\n")
    assert fault_of(outcome) == json.loads(read(case / "fault.json") or b"null")
