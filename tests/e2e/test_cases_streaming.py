"""Order of events and the life of a block: what the backend tells, whatever its order, becomes a
valid message."""

from __future__ import annotations

import time

import pytest
from tests.doubles.backend import Close, Hold, Pause, ScriptedBackend, stream, whole
from tests.doubles.events import assert_stream_invariant, read_events, story_of
from tests.doubles.frames import ABSENT, DONE, ROLE_DELTA, TC, Canned, D, U, call, frame
from tests.doubles.proxy import Ferrule, assert_error
from tests.e2e.conftest import Received

LS = '{"command":"ls"}'


def test_a01_tool_arguments_after_text(received: Received) -> None:
    message = received(
        D({"content": "Ok."}), TC(0, "call_1", "Bash", LS), D({}, "tool_calls"), DONE
    )
    assert story_of(message) == [("text", "Ok."), ("tool_use", "Bash", {"command": "ls"})]
    assert message["content"][1]["partial_json"] == LS
    assert message["stop_reason"] == "tool_use"


def test_a03_the_stream_folds_to_the_whole_reply(proxy: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(
        Canned(
            "Look.",
            reasoning="hm",
            calls=[("call_1", "Bash", LS)],
            prompt_tokens=9,
            completion_tokens=4,
            cached_tokens=2,
        )
    )
    streamed, replied = proxy.stream().message, proxy.message()
    assert (
        story_of(streamed)
        == story_of(replied)
        == [("thinking", "hm"), ("text", "Look."), ("tool_use", "Bash", {"command": "ls"})]
    )
    assert streamed["stop_reason"] == replied["stop_reason"] == "tool_use"
    assert streamed["usage"] == {**streamed["usage"], **replied["usage"]}


def test_a05_reasoning_and_content_in_one_delta(received: Received) -> None:
    message = received(
        D({"reasoning_content": "plan"}),
        D({"reasoning_content": " end.", "content": "Hi"}),
        D({}, "stop"),
        DONE,
    )
    assert story_of(message) == [("thinking", "plan end."), ("text", "Hi")]


def test_a07_reasoning_then_tool(received: Received) -> None:
    message = received(D({"reasoning": "r"}), TC(0, "c1", "Bash", "{}"), D({}, "tool_calls"), DONE)
    assert story_of(message) == [("thinking", "r"), ("tool_use", "Bash", {})]
    assert message["content"][0]["signature"]


def test_a09_text_after_a_tool(received: Received) -> None:
    message = received(
        D({"content": "a"}), TC(0, "c1", "F", "{}"), D({"content": "b"}), D({}, "tool_calls"), DONE
    )
    assert story_of(message) == [("text", "a"), ("tool_use", "F", {}), ("text", "b")]
    assert message["stop_reason"] == "tool_use"


def test_a11_content_on_the_role_frame_and_arguments_on_the_finish_frame(
    received: Received,
) -> None:
    message = received(
        D({"role": "assistant", "content": "Hi"}),
        TC(0, "c1", "F", '{"a":'),
        D({"tool_calls": [call(0, "c1", ABSENT, "1}")]}, "tool_calls"),
        DONE,
    )
    assert story_of(message) == [("text", "Hi"), ("tool_use", "F", {"a": 1})]


def test_a13_two_calls_on_one_index(received: Received) -> None:
    message = received(TC(0, "a", "F", "{}"), TC(0, "b", "G", "{}"), D({}, "tool_calls"), DONE)
    assert story_of(message) == [("tool_use", "F", {}), ("tool_use", "G", {})]


def test_a15_a_call_cut_by_length(
    received: Received, proxy: Ferrule, backend: ScriptedBackend
) -> None:
    half = '{"command":"ls -'
    message = received(TC(0, "c1", "Bash", half), D({}, "length"), DONE)
    assert message["content"][0]["partial_json"] == half
    assert message["stop_reason"] == "max_tokens"
    backend.play(Canned(calls=[("c1", "Bash", half)], finish="length"))
    replied = proxy.message()
    assert replied["stop_reason"] == "max_tokens"
    assert replied["content"][0]["input"] in ({}, {"command": "ls -"})


@pytest.mark.parametrize(
    "steps",
    [[DONE], [], [Close()], [D(ROLE_DELTA), DONE]],
    ids=["only-done", "empty", "closed", "role-only"],
)
def test_a17_a_stream_without_an_answer_is_an_error(
    proxy: Ferrule, backend: ScriptedBackend, steps: list[bytes]
) -> None:
    backend.play(stream(*steps))
    answer = proxy.ask(stream=True)
    assert answer.status in (500, 502)
    assert_error(answer, answer.status, "api_error")


def test_a19_ends_at_done_not_at_the_end_of_the_connection(
    proxy: Ferrule, backend: ScriptedBackend
) -> None:
    hold = Hold()
    backend.play(stream(D(ROLE_DELTA), D({}, "stop"), DONE, hold))
    begin = time.monotonic()
    answer = proxy.stream()
    assert time.monotonic() - begin < 3
    hold.release()
    assert answer.message["content"] == []
    assert answer.message["stop_reason"] == "end_turn"


def test_a21_null_members_change_nothing(received: Received) -> None:
    later = {
        "index": 0,
        "id": None,
        "type": None,
        "function": {"name": None, "arguments": '{"a":1}'},
    }
    message = received(
        TC(0, "c1", "Write", ""), D({"tool_calls": [later]}), D({}, "tool_calls"), DONE
    )
    assert story_of(message) == [("tool_use", "Write", {"a": 1})]


def test_a23_usage_after_the_finish_reason(received: Received) -> None:
    message = received(D({"content": "x"}), D({}, "stop"), U(7, 1), DONE)
    assert (message["usage"]["input_tokens"], message["usage"]["output_tokens"]) == (7, 1)


def test_a25_done_inside_content(received: Received) -> None:
    message = received(
        D({"content": "print('data: [DONE]')"}), D({"content": " after"}), D({}, "stop"), DONE
    )
    assert story_of(message) == [("text", "print('data: [DONE]') after")]


def test_a27_a_backend_that_answers_in_another_shape(
    proxy: Ferrule, backend: ScriptedBackend
) -> None:
    foreign = b"event: message_start\n" + frame(
        {"type": "message_start", "message": {"content": []}}
    )
    backend.play(stream(foreign, b"event: message_stop\n" + frame({"type": "message_stop"})))
    answer = proxy.ask(stream=True)
    assert answer.status in (500, 502)
    assert_error(answer, answer.status, "api_error")
    backend.play(whole(Canned("Hi").whole()))
    answer = proxy.ask(stream=True)
    if answer.status == 200:
        assert story_of(assert_stream_invariant(read_events(answer.content))) == [("text", "Hi")]
    else:
        assert_error(answer, answer.status, "api_error")


def test_a29_each_delta_arrives_when_it_is_sent(proxy: Ferrule, backend: ScriptedBackend) -> None:
    beat_s = 0.2
    steps = [step for n in range(6) for step in (D({"content": str(n)}), Pause(beat_s))]
    backend.play(stream(*steps, D({}, "stop"), DONE))
    seen: list[float] = []
    with proxy.open_stream(headers={"accept-encoding": "gzip"}) as answer:
        assert answer.headers["content-encoding"] is None
        for part in answer:
            seen += [time.monotonic()] * part.count(b"text_delta")
    assert len(seen) == 6
    late = [moment - seen[0] - beat_s * n for n, moment in enumerate(seen)]
    assert max(late) < 0.12, late
    assert min(late) > -0.12, late
