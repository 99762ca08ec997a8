"""The second leg of a reply whose budget the edge holds."""

from __future__ import annotations

import json
from typing import Any

from tests.messages.requests import TOOL_F, policy, user
from tests.messages.requests import raw as body

from ferrule.messages import decode, translate
from ferrule.messages.continuation import build_continuation


def second_leg(reasoning: str, spent: int, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what was sent first, what is sent then)"""
    under = policy(engine="sglang")
    asked = body(
        thinking={"type": "enabled", "budget_tokens": 10},
        max_tokens=100,
        messages=[user("u")],
        **changes,
    )
    first = translate(decode(asked), under, "m")
    assert first.edge_budget_tokens == 10
    return json.loads(first.body), json.loads(build_continuation(first, reasoning, spent))


def test_it_goes_on_from_what_was_thought_with_what_is_left() -> None:
    first, then = second_leg("so far", 12, tools=[TOOL_F], temperature=0.5)
    assert then["messages"][:-1] == first["messages"]
    assert then["messages"][-1]["role"] == "assistant"
    assert "so far" in then["messages"][-1]["content"]
    assert (then["max_tokens"], then["continue_final_message"], then["add_generation_prompt"]) == (
        88,
        True,
        False,
    )
    assert then["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False}
    assert (then["tools"], then["temperature"], then["model"]) == (
        first["tools"],
        first["temperature"],
        first["model"],
    )


def test_it_is_always_streamed_and_asks_for_something() -> None:
    _, then = second_leg("so far", 200)
    assert (then["stream"], then["stream_options"], then["max_tokens"]) == (
        True,
        {"include_usage": True},
        1,
    )
