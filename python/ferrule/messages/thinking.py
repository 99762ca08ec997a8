"""Whether the model thinks, how hard, and who enforces a budget: `thinking` and
`output_config.effort` by the dialect and the policy."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import msgspec

from ferrule.errors import Failure, InvalidRequest
from ferrule.messages.chat_schema import TemplateKwargs
from ferrule.messages.policy import Policy
from ferrule.messages.schema import MessagesRequest

Mode = Literal["on", "off", "default"]


class Plan(msgspec.Struct, frozen=True):
    """What goes upstream, and how the response's reasoning is presented."""

    mode: Mode
    effort: str | None
    display_omitted: bool
    reasoning: Literal["thinking", "text", "drop"]

    @property
    def kwargs(self) -> TemplateKwargs | None:
        if self.mode == "default":
            return None
        return TemplateKwargs(enable_thinking=self.mode == "on", thinking=self.mode == "on")


_kept = lru_cache(maxsize=32)(Plan)
"""Nearly every request has one of a handful of plans."""


def plan(request: MessagesRequest, policy: Policy, client_model: str) -> Plan:
    """Raises InvalidRequest for an effort outside the model's tiers; budgets are checked by
    `check_budget`."""
    effort = _check_effort(request, policy, client_model)
    mode = _mode(request, policy, effort)
    # an effort may switch thinking on by itself in some engines, which would undo the switch
    told_effort = None if mode == "off" else effort
    reasoning = policy.dialect.reasoning
    is_omitted = (
        request.thinking is not None
        and request.thinking.display == "omitted"
        and reasoning == "thinking"
    )
    make = (
        _kept if told_effort is None else Plan
    )  # an effort is the client's own text: nothing to be kept
    return make(mode, told_effort, is_omitted, "drop" if mode == "off" else reasoning)


def check_budget(request: MessagesRequest, policy: Policy) -> int | None:
    """The budget to be held, in tokens. Raises Failure where nobody can hold it."""
    thinking = request.thinking
    if thinking is None or thinking.budget_tokens is None or thinking.type == "disabled":
        return None
    if thinking.type != "enabled" and thinking.budget_tokens <= 0:
        return None  # clients have been seen to send adaptive with a budget of 0
    if policy.budget_keeper == "refuse":
        raise Failure(400, policy.dialect.budget_refusal)
    if thinking.budget_tokens < 1:
        raise InvalidRequest("thinking.budget_tokens", "must be an integer of at least 1")
    return thinking.budget_tokens if thinking.type == "enabled" else None


def _mode(request: MessagesRequest, policy: Policy, effort: str | None) -> Mode:
    dialect = policy.dialect
    if request.thinking is None:
        return "on" if effort and dialect.effort_turns_thinking_on else dialect.thinking_absent
    if request.thinking.type == "disabled":
        return "off"
    if request.thinking.type in ("enabled", "between_tools") or dialect.thinking_adaptive == "on":
        return "on"
    return "default"


def _check_effort(request: MessagesRequest, policy: Policy, client_model: str) -> str | None:
    """The last effort named: a system message may change it in the middle of a conversation."""
    path, effort = (
        "output_config.effort",
        request.output_config.effort if request.output_config else None,
    )
    for index, message in enumerate(request.messages):
        if message.output_config is not None and message.output_config.effort is not None:
            path, effort = f"messages.{index}.output_config.effort", message.output_config.effort
    if (
        effort is None
        or policy.effort is None
        or effort in policy.effort
        or policy.dialect.effort == "forwarded"
    ):
        return effort
    if policy.dialect.effort == "tolerated":
        return None
    tiers = ", ".join(policy.effort) or "none"
    raise InvalidRequest(
        path, f"effort {effort!r} is not supported by {client_model}; it takes: {tiers}"
    )
