"""A thinking budget held at the edge, for an engine that has none: the reasoning is cut, and the
same backend goes on from there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.doubles.backend import Hold, Pause, Reply, ScriptedBackend, Seen, stream
from tests.doubles.events import story_of
from tests.doubles.frames import DONE, ROLE_DELTA, Canned, D, U
from tests.doubles.proxy import Ferrule, assert_error, config_for

WORDS = [f"word{n} " for n in range(200)]
ASKED = {"thinking": {"type": "enabled", "budget_tokens": 20}, "max_tokens": 100}


def play(seen: Seen) -> Reply | Canned:
    """Reasons without end; asked to continue, it answers."""
    if seen.json["messages"][-1]["role"] != "assistant":
        return stream(
            D(ROLE_DELTA),
            *(step for word in WORDS for step in (D({"reasoning_content": word}), Pause(0.002))),
            Hold(),
        )
    return stream(D({"content": "the answer"}), D({}, "stop"), U(30, 3), DONE)


@pytest.fixture(scope="module")
def sglang(new_proxy: Callable[..., Ferrule], shared_backend: ScriptedBackend) -> Ferrule:
    config = config_for(shared_backend.url, pool={"engine": "sglang"})
    config["models"].append({"id": "stubborn", "pool": "p", "upstream": "m", "can_continue": False})
    return new_proxy(config)


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_the_reasoning_is_cut_at_the_budget(
    sglang: Ferrule, backend: ScriptedBackend, streamed: bool
) -> None:
    backend.play(play)
    message: dict[str, Any] = (
        sglang.stream(**ASKED).message if streamed else sglang.message(**ASKED)
    )
    (_, thought), answer = story_of(message)
    assert answer == ("text", "the answer")
    assert message["stop_reason"] == "end_turn"
    assert 5 <= len(thought.split()) <= 25
    first, second = backend.requests
    assert first.closed.wait(1), "the backend goes on reasoning for nobody"
    body = second.json
    assert body["continue_final_message"] is True
    assert "word0 word1" in str(body["messages"][-1])
    assert body["max_tokens"] < 100


def test_reasoning_within_the_budget_is_left_alone(
    sglang: Ferrule, backend: ScriptedBackend
) -> None:
    backend.play(Canned("a", reasoning="short", reasoning_field="reasoning_content"))
    assert story_of(sglang.stream(**ASKED).message) == [("thinking", "short"), ("text", "a")]
    assert len(backend.requests) == 1


def test_a_cap_that_cannot_be_held_is_refused(sglang: Ferrule, backend: ScriptedBackend) -> None:
    assert_error(sglang.ask(model="stubborn", **ASKED), 400, "invalid_request_error", "thinking")
    assert backend.requests == []


def test_history_goes_back_under_the_engines_own_name(
    sglang: Ferrule, backend: ScriptedBackend
) -> None:
    backend.play(Canned("a", reasoning="plan", reasoning_field="reasoning_content"))
    content = sglang.message()["content"]
    turns = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": content},
        {"role": "user", "content": "v"},
    ]
    sglang.message(messages=turns)
    assistant = backend.last.json["messages"][1]
    assert assistant["reasoning_content"] == "plan"
    assert "reasoning" not in assistant
