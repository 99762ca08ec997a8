"""Thinking on and off, effort, budgets."""

from __future__ import annotations

from typing import Any

import pytest
from tests.messages.requests import (
    EVERY_DIALECT,
    ask,
    assistant,
    policy,
    refusal,
    system,
    upstream,
    user,
)

from ferrule.dialects import NOT_ENFORCED, NOT_SUPPORTED

ON = {"enable_thinking": True, "thinking": True}
OFF = {"enable_thinking": False, "thinking": False}
ENABLED = {"type": "enabled", "budget_tokens": 500}


@pytest.mark.parametrize("display", [..., "summarized", "omitted", "updates", None])
@pytest.mark.parametrize(
    ("thinking", "kwargs"),
    [
        ({"type": "enabled"}, ON),
        ({"type": "adaptive"}, ON),
        ({"type": "adaptive", "budget_tokens": 0}, ON),
        ({"type": "between_tools"}, ON),
        ({"type": "from_the_future"}, ON),
        ({}, ON),
        ({"type": "disabled"}, OFF),
        ({"type": "disabled", "budget_tokens": 5}, OFF),
        (..., None),
        (None, None),
    ],
)
def test_assertion_30_every_form_with_every_display(
    thinking: Any, kwargs: Any, display: Any
) -> None:
    if isinstance(thinking, dict) and display is not ...:
        thinking = {**thinking, "display": display}
    translation = ask(thinking=thinking)
    assert upstream(thinking=thinking).get("chat_template_kwargs") == kwargs
    assert translation.display_omitted is (isinstance(thinking, dict) and display == "omitted")
    assert translation.reasoning == ("drop" if kwargs == OFF else "thinking")


@pytest.mark.parametrize("dialect", EVERY_DIALECT)
def test_assertion_30_a_budget_of_0_on_adaptive_is_no_budget(dialect: str) -> None:
    sent = upstream(policy(dialect), thinking={"type": "adaptive", "budget_tokens": 0})
    assert "thinking_token_budget" not in sent


# Budgets


def test_e03_a_budget_in_each_dialect() -> None:
    asked: dict[str, Any] = {"thinking": ENABLED, "max_tokens": 800}
    assert refusal(policy("token-factory"), **asked) == NOT_SUPPORTED
    assert refusal(policy("tokenify"), **asked) == NOT_ENFORCED
    assert '{"type":"disabled"}' in NOT_ENFORCED
    for dialect in ("pooled", "anthropic"):
        assert upstream(policy(dialect), **asked)["thinking_token_budget"] == 500


def test_the_exact_words_of_the_token_factory_document() -> None:
    assert NOT_SUPPORTED == (
        '"thinking" is not supported for this model. Remove the "thinking" parameter or use a '
        "model that supports extended thinking."
    )


@pytest.mark.parametrize(
    ("settings", "field", "edge"),
    [
        ({"engine": "vllm"}, "thinking_token_budget", None),
        ({"engine": "llamacpp"}, "thinking_budget_tokens", None),
        ({"engine": "sglang"}, None, 500),
        ({"engine": "vllm_old"}, None, 500),
        ({"engine": "vllm", "budget": "edge"}, None, 500),
        ({"engine": "sglang", "budget": "engine"}, None, 500),
    ],
)
def test_who_holds_a_budget(settings: dict[str, Any], field: str | None, edge: int | None) -> None:
    under = policy(**settings)
    sent = upstream(under, thinking=ENABLED, max_tokens=800)
    assert {name for name in sent if "budget" in name} == ({field} if field else set())
    assert field is None or sent[field] == 500
    assert ask(under, thinking=ENABLED, max_tokens=800).edge_budget_tokens == edge


def test_a_cap_that_cannot_be_applied_is_refused() -> None:
    under = policy(engine="sglang", can_continue=False)
    assert refusal(under, thinking=ENABLED, max_tokens=800) == NOT_SUPPORTED
    assert (
        refusal(policy(budget="edge", can_continue=False), thinking=ENABLED, max_tokens=800)
        == NOT_SUPPORTED
    )


def test_a_budget_that_max_tokens_undercuts_needs_no_edge() -> None:
    assert (
        ask(
            policy(engine="sglang"),
            thinking={"type": "enabled", "budget_tokens": 31_999},
            max_tokens=100,
        ).edge_budget_tokens
        is None
    )


@pytest.mark.parametrize("tokens", [0, -1])
def test_a_budget_of_nothing(tokens: int) -> None:
    assert (
        refusal(thinking={"type": "enabled", "budget_tokens": tokens})
        == "thinking.budget_tokens: must be an integer of at least 1"
    )


def test_a_budget_on_adaptive_is_refused_where_budgets_are() -> None:
    assert (
        refusal(policy("tokenify"), thinking={"type": "adaptive", "budget_tokens": 500})
        == NOT_ENFORCED
    )
    assert "thinking_token_budget" not in upstream(
        thinking={"type": "adaptive", "budget_tokens": 500}
    )


# Effort


@pytest.mark.parametrize("effort", ["low", "medium", "high", "xhigh", "max"])
def test_assertion_32_each_effort_is_forwarded_where_tiers_are_not_known(effort: str) -> None:
    assert upstream(output_config={"effort": effort})["reasoning_effort"] == effort


def test_assertion_32_null_and_the_last_one_wins() -> None:
    assert "reasoning_effort" not in upstream(output_config={"effort": None})
    changed = [
        user("a"),
        system("s", output_config={"effort": "high"}),
        assistant("b"),
        system("t", output_config={"effort": "low"}),
        user("c"),
    ]
    assert (
        upstream(messages=changed, output_config={"effort": "medium"})["reasoning_effort"] == "low"
    )
    empty = [user("a"), {"role": "system", "output_config": {"effort": "high"}}]
    assert (
        upstream(messages=empty, output_config={"effort": "medium"})["reasoning_effort"] == "high"
    )


def test_e07_an_effort_outside_the_tiers() -> None:
    asked: dict[str, Any] = {"thinking": {"type": "adaptive"}, "output_config": {"effort": "xhigh"}}
    says = refusal(policy(effort=("low", "medium", "high")), **asked)
    assert (
        says
        == "output_config.effort: effort 'xhigh' is not supported by m; it takes: low, medium, high"
    )
    assert upstream(policy(effort=None), **asked)["reasoning_effort"] == "xhigh"
    in_message = [user("a"), system("s", output_config={"effort": "xhigh"})]
    assert refusal(policy(effort=("low",)), messages=in_message).startswith(
        "messages.1.output_config.effort: "
    )
    assert refusal(policy(effort=()), **asked).endswith("it takes: none")


def test_an_effort_does_not_undo_the_switch() -> None:
    sent = upstream(thinking={"type": "disabled"}, output_config={"effort": "high"})
    assert (sent["chat_template_kwargs"], sent.get("reasoning_effort")) == (OFF, None)


@pytest.mark.parametrize("stream", [False, True])
def test_a_budget_at_the_edge_is_watched_in_a_stream(stream: bool) -> None:
    sent = upstream(policy(engine="sglang"), thinking=ENABLED, max_tokens=800, stream=stream)
    assert (sent["stream"], sent["stream_options"]) == (True, {"include_usage": True})
    assert (
        ask(policy(engine="sglang"), thinking=ENABLED, max_tokens=800, stream=stream).stream
        is stream
    )
