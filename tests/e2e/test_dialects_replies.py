"""The reply side of the four dialects: the same answer of a backend, told in each."""

from __future__ import annotations

from typing import Any

import pytest
from tests.doubles.backend import ScriptedBackend, refusal, stream
from tests.doubles.events import assert_ends_with_error, story_of
from tests.doubles.frames import DONE, Canned, D, chunk, error_frame
from tests.doubles.proxy import Ferrule, assert_error
from tests.e2e.conftest import DIALECTS

ON = {"type": "adaptive"}


def both(proxy: Ferrule, **overrides: Any) -> list[dict[str, Any]]:
    return [proxy.stream(**overrides).message, proxy.message(**overrides)]


@pytest.mark.parametrize(
    ("dialect", "blocks", "signature"),
    [
        ("token-factory", [("thinking", "plan"), ("text", "answer")], ""),
        ("pooled", [("thinking", "plan"), ("text", "answer")], "pooled1."),
        ("tokenify", [("text", "plananswer")], ""),
        ("anthropic", [("thinking", "plan"), ("text", "answer")], "ferrule1."),
    ],
    ids=DIALECTS,
)
def test_reasoning(
    dialects: dict[str, Ferrule],
    wide_backend: ScriptedBackend,
    dialect: str,
    blocks: Any,
    signature: str,
) -> None:
    wide_backend.play(Canned("answer", reasoning="plan"))
    received = both(dialects[dialect], thinking=ON)
    assert story_of(received[0]) == story_of(received[1])
    if (
        dialect == "tokenify"
    ):  # one piece, reasoning first; what stands between the two is the gateway's choice
        ((kind, text),) = story_of(received[0])
        assert kind == "text"
        assert text.startswith("plan")
        assert text.endswith("answer")
    else:
        assert story_of(received[0]) == blocks
        assert [message["content"][0]["signature"][: len(signature)] for message in received] == [
            signature
        ] * 2


@pytest.mark.parametrize("dialect", ["pooled", "anthropic"])
def test_a_signature_restores_the_reasoning(
    dialects: dict[str, Ferrule], wide_backend: ScriptedBackend, dialect: str
) -> None:
    wide_backend.play(Canned("answer", reasoning="the exact plan"))
    for message in both(dialects[dialect], thinking={**ON, "display": "omitted"}):
        assert message["content"][0]["thinking"] == ""
        turns = [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": message["content"]},
            {"role": "user", "content": "v"},
        ]
        assert dialects[dialect].ask(messages=turns).status == 200
        assert wide_backend.last.json["messages"][1]["reasoning"] == "the exact plan"


END = ("stop_sequence", "END")
STOPS: dict[str, tuple[Canned, Any, Any, Any, Any]] = {
    "end": (Canned("x"), *[("end_turn", None)] * 4),
    "length": (Canned("x", finish="length", completion_tokens=64), *[("max_tokens", None)] * 4),
    "calls": (Canned(calls=[("c1", "F", "{}")]), *[("tool_use", None)] * 4),
    "a stop sequence": (Canned("x", stop_reason="END"), ("end_turn", None), END, END, END),
    "content_filter": (
        Canned("x", finish="content_filter"),
        ("refusal", None),
        ("end_turn", None),
        ("refusal", None),
        ("refusal", None),
    ),
    "an unknown reason": (Canned("x", finish="novel"), *[("end_turn", None)] * 4),
    "the window is full": (
        Canned("x", finish="length", prompt_tokens=199_999, completion_tokens=1),
        ("max_tokens", None),
        ("model_context_window_exceeded", None),
        ("max_tokens", None),
        ("model_context_window_exceeded", None),
    ),
}
STOP_CELLS = [
    (dialect, row, STOPS[row][0], cell)
    for row in STOPS
    for dialect, cell in zip(DIALECTS, STOPS[row][1:], strict=True)
]


@pytest.mark.parametrize(
    ("dialect", "row", "answer", "cell"),
    STOP_CELLS,
    ids=[f"{row}-{dialect}" for dialect, row, *_ in STOP_CELLS],
)
def test_stop_reasons(
    dialects: dict[str, Ferrule],
    wide_backend: ScriptedBackend,
    dialect: str,
    row: str,
    answer: Canned,
    cell: tuple[str, str | None],
) -> None:
    wide_backend.play(answer)
    for message in both(dialects[dialect], stop_sequences=["END"]):
        assert (message["stop_reason"], message["stop_sequence"]) == cell


@pytest.mark.parametrize("dialect", DIALECTS)
def test_usage(dialects: dict[str, Ferrule], wide_backend: ScriptedBackend, dialect: str) -> None:
    wide_backend.play(Canned("x", prompt_tokens=1000, cached_tokens=900, completion_tokens=5))
    for message in both(dialects[dialect]):
        usage = message["usage"]
        numbers = (
            usage["input_tokens"],
            usage["cache_read_input_tokens"],
            usage["cache_creation_input_tokens"],
            usage["output_tokens"],
        )
        assert numbers == (100, 900, 0, 5)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_failure_after_the_stream_began(
    dialects: dict[str, Ferrule], wide_backend: ScriptedBackend, dialect: str
) -> None:
    wide_backend.play(stream(D({"content": "x"}), error_frame(), DONE))
    events = dialects[dialect].stream().events
    assert story_of(assert_ends_with_error(events)) == [("text", "x")]
    if dialect == "anthropic":
        assert events[-2].name == "content_block_stop"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("finish", ["abort", "error"])
def test_an_abort_is_a_failure_in_every_dialect(
    dialects: dict[str, Ferrule], wide_backend: ScriptedBackend, dialect: str, finish: str
) -> None:
    wide_backend.play(stream(D({"content": "x"}), chunk({}, finish), DONE))
    assert_ends_with_error(dialects[dialect].stream().events)
    wide_backend.play(stream(chunk({}, finish), DONE))
    answer = dialects[dialect].ask(stream=True)
    assert answer.status in (500, 502)


BUSY: list[tuple[str, int, int, str]] = [
    ("token-factory", 429, 429, "rate_limit_error"),
    ("pooled", 429, 529, "overloaded_error"),
    ("tokenify", 429, 429, "rate_limit_error"),
    ("anthropic", 429, 429, "rate_limit_error"),
    *((dialect, 503, 529, "overloaded_error") for dialect in DIALECTS),
]


@pytest.mark.parametrize(("dialect", "status", "received", "kind"), BUSY)
def test_a_busy_backend(
    dialects: dict[str, Ferrule],
    wide_backend: ScriptedBackend,
    dialect: str,
    status: int,
    received: int,
    kind: str,
) -> None:
    wide_backend.play(refusal(status))
    for streamed in (False, True):
        assert_error(dialects[dialect].ask(stream=streamed), received, kind)


GATE: list[tuple[str, int, str]] = [
    ("token-factory", 429, "rate_limit_error"),
    ("pooled", 529, "overloaded_error"),
    ("tokenify", 429, "rate_limit_error"),
    ("anthropic", 429, "rate_limit_error"),
]


@pytest.mark.parametrize(("dialect", "received", "kind"), GATE)
def test_a_full_gate(
    keyed_dialects: dict[str, Ferrule],
    wide_backend: ScriptedBackend,
    dialect: str,
    received: int,
    kind: str,
) -> None:
    proxy = keyed_dialects[dialect]
    answers = [proxy.ask(headers={"x-api-key": "sk-slow"}) for _ in range(2)]
    assert answers[0].status == 200
    assert_error(answers[1], received, kind)
    assert ("detail" in answers[1].json()) == (dialect == "token-factory")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_keys(
    keyed_dialects: dict[str, Ferrule], wide_backend: ScriptedBackend, dialect: str
) -> None:
    proxy = keyed_dialects[dialect]
    message = assert_error(proxy.ask(), 401, "authentication_error")
    if dialect == "token-factory":
        assert message == "Unauthorized: No API key provided."
    wrong = proxy.ask(headers={"x-api-key": "sk-wrong"})
    assert_error(wrong, 401, "authentication_error")
    assert ("detail" in wrong.json()) == (dialect == "token-factory")
    unknown = proxy.ask(headers={"x-api-key": "sk-good"}, model="nope")
    assert "detail" not in unknown.json()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("headers", "is_anthropic"),
    [
        ({"anthropic-version": "x"}, True),
        ({"x-api-key": "k"}, True),
        ({"x-api-key": "k", "authorization": "Bearer k"}, False),
        ({}, False),
    ],
    ids=["version", "x-api-key", "both-keys", "nothing"],
)
def test_models(
    dialects: dict[str, Ferrule], dialect: str, headers: dict[str, str], is_anthropic: bool
) -> None:
    listed = dialects[dialect].client.get("/v1/models", headers).json()
    assert {entry["id"] for entry in listed["data"]} == {"m", "tiers", "seeing"}
    assert all(("created_at" in entry) >= is_anthropic for entry in listed["data"])
    assert is_anthropic or listed["object"] == "list"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_message_ids(
    dialects: dict[str, Ferrule], wide_backend: ScriptedBackend, dialect: str
) -> None:
    for message in both(dialects[dialect]):
        prefix, _, rest = message["id"].partition("_")
        assert prefix == "msg"
        assert len(rest.replace("-", "")) == 32
        assert message["model"] == "m"
