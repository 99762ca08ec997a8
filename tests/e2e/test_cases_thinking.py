"""Thinking, effort, stop reasons and usage: numbers and reasons that must be right, not only
present."""

from __future__ import annotations

from typing import Any

import pytest
from tests.doubles.backend import ScriptedBackend
from tests.doubles.events import assert_usage, read_events, story_of
from tests.doubles.frames import ABSENT, DONE, Canned, D, U, chunk, usage
from tests.doubles.proxy import Ferrule
from tests.e2e.conftest import Received, Sent


@pytest.mark.parametrize(
    "fields",
    [["reasoning"], ["reasoning_content"], ["reasoning", "reasoning_content"]],
    ids=["new", "old", "both"],
)
def test_e01_reasoning_under_either_name(received: Received, fields: list[str]) -> None:
    frames = [D(dict.fromkeys(fields, word)) for word in ("think ", "hard")]
    assert story_of(received(*frames, D({"content": "x"}), D({}, "stop"), DONE)) == [
        ("thinking", "think hard"),
        ("text", "x"),
    ]


def test_e03_a_budget_is_given_to_the_engine(sent: Sent) -> None:
    body = sent(thinking={"type": "enabled", "budget_tokens": 500}, max_tokens=800)
    assert body["thinking_token_budget"] == 500


@pytest.mark.parametrize(
    "signature", [None, "", ABSENT, "EqQBforeign=="], ids=["null", "empty", "missing", "foreign"]
)
def test_e05_any_signature_is_accepted(sent: Sent, signature: Any) -> None:
    block = {
        "type": "thinking",
        "thinking": "t",
        **({} if signature is ABSENT else {"signature": signature}),
    }
    turns = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": [block, {"type": "text", "text": "a"}]},
    ]
    body = sent(messages=[*turns, {"role": "user", "content": "v"}])
    assert body["messages"][1]["content"] == "a"


def test_e05_our_own_signature_restores_the_reasoning(
    proxy: Ferrule, backend: ScriptedBackend
) -> None:
    backend.play(Canned("a", reasoning="the exact plan"))
    omitted = {"type": "adaptive", "display": "omitted"}
    for message in (proxy.message(thinking=omitted), proxy.stream(thinking=omitted).message):
        block = message["content"][0]
        assert block["thinking"] == ""
        assert block["signature"].startswith("ferrule1.")
        turns = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [block, {"type": "text", "text": "a"}]},
        ]
        proxy.message(messages=[*turns, {"role": "user", "content": "v"}])
        assert backend.last.json["messages"][1]["reasoning"] == "the exact plan"


def test_e07_effort_is_forwarded_where_tiers_are_unknown(sent: Sent) -> None:
    body = sent(thinking={"type": "adaptive"}, output_config={"effort": "xhigh"})
    assert body["reasoning_effort"] == "xhigh"


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"stop_reason": "END"}, ("stop_sequence", "END")),
        ({"matched_stop": "END"}, ("stop_sequence", "END")),
        ({"stop_reason": 151645}, ("end_turn", None)),
        ({"matched_stop": 2}, ("end_turn", None)),
        ({"stop_reason": None}, ("end_turn", None)),
    ],
    ids=["vllm", "sglang", "token-id", "sglang-token-id", "null"],
)
def test_e09_which_stop_sequence(
    received: Received, sent: Sent, members: dict[str, Any], expected: tuple[str, str | None]
) -> None:
    message = received(
        D({"content": "x"}), chunk({}, "stop", **members), DONE, stop_sequences=["END"]
    )
    assert (message["stop_reason"], message["stop_sequence"]) == expected
    assert sent(stop_sequences=["END"])["stop"] == ["END"]


def test_e11_a_stop_within_the_reasoning(received: Received) -> None:
    message = received(
        D({"reasoning": "is 9.11 > "}),
        chunk({}, "stop", stop_reason="9.8"),
        DONE,
        stop_sequences=["9.8"],
    )
    assert story_of(message) == [("thinking", "is 9.11 > ")]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "9.8")


def test_e13_one_signature_just_before_the_stop(proxy: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(Canned("t", reasoning="r"))
    events = [event.data for event in proxy.stream().events if event.data.get("index") == 0]
    assert events[0]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert [event.get("delta", {}).get("type") for event in events[1:]] == [
        "thinking_delta",
        "signature_delta",
        None,
    ]
    assert proxy.message()["content"][0]["signature"]


# Usage


def counts(message: dict[str, Any]) -> tuple[int, int, int]:
    numbers = message["usage"]
    assert_usage(numbers)
    return numbers["input_tokens"], numbers["cache_read_input_tokens"], numbers["output_tokens"]


@pytest.mark.parametrize(
    ("told_usage", "expected"),
    [
        ((1000, 5, 900), (100, 900, 5)),
        ((42, 1), (42, 0, 1)),
        ((42, 1, None), (42, 0, 1)),
        ((5, 1, 9), (0, 5, 1)),
    ],
    ids=["f01_cached", "f05_plain", "f07_null", "f11_more_cached_than_there_was"],
)
def test_f_usage_is_converted(
    received: Received, told_usage: tuple[Any, ...], expected: tuple[int, int, int]
) -> None:
    message = received(D({"content": "x"}), D({}, "stop"), U(*told_usage), DONE)
    got = counts(message)
    assert got[0] == expected[0]
    assert got[2] == expected[2]
    assert got[1] in (expected[1], 9), (
        got
    )  # more cached than sent: either reading is honest, a negative number is not


def test_f03_the_same_numbers_everywhere(proxy: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(Canned("x", prompt_tokens=1000, completion_tokens=5, cached_tokens=900))
    before = {
        kind: proxy.metric("tokens_total", type=kind) for kind in ("input", "cache_read", "output")
    }
    assert counts(proxy.message()) == counts(proxy.stream().message) == (100, 900, 5)
    assert backend.last.json["stream_options"]["include_usage"] is True
    for kind, added in (("input", 200), ("cache_read", 1800), ("output", 10)):
        proxy.wait_for_metric("tokens_total", before[kind] + added, type=kind)


def test_f05_no_done_after_the_usage(received: Received) -> None:
    assert counts(received(D({"content": "x"}), D({}, "stop"), U(42, 1))) == (42, 0, 1)


def test_f09_cumulative_usage_is_not_summed(received: Received) -> None:
    frames = [chunk({"content": word}, usage=usage(10, n)) for n, word in enumerate("abc", 1)]
    assert counts(received(*frames, chunk({}, "stop", usage=usage(10, 3)), DONE)) == (10, 0, 3)


def test_usage_in_message_start_is_never_null(proxy: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(Canned("x"))
    start = read_events(proxy.stream().raw)[0].data["message"]
    assert_usage(start["usage"])
    assert None not in start["usage"].values()
