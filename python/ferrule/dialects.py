"""The four dialects as data: what each gateway of the published documents promises, setting by
setting.

No code asks which dialect is in force; it asks the setting. A model may override single settings
(`dialect: {reasoning: text}`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

NOT_SUPPORTED = (
    '"thinking" is not supported for this model. Remove the "thinking" parameter or use a model '
    "that supports extended thinking."
)
NOT_ENFORCED = (
    "thinking.budget_tokens: a reasoning budget cannot be enforced here, so it is refused rather "
    "than ignored. "
    'Send {"type":"disabled"} to switch thinking off, or omit "thinking" to leave it on'
)


class Dialect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One dialect. Tokens and characters are counts; None means no limit."""

    name: str

    # The request
    accepted: frozenset[str] | None = None
    """Optional parameters that are kept (`output_config.effort` and `output_config.format` by these
    names); None: all of the API."""
    max_tokens_cap: int | None = None
    temperature_when_only_top_k: float | None = None
    top_k_min: int = 0
    top_k_cap: int | None = None
    top_k_when_only_temperature: int | None = None
    stop_sequences_max: int | None = None
    stop_sequence_chars_max: int | None = None
    thinking_budget: Literal["refuse", "enforce"] = "enforce"
    budget_refusal: str = NOT_SUPPORTED
    thinking_adaptive: Literal["on", "default"] = "on"
    thinking_absent: Literal["default", "off"] = "default"
    effort: Literal["checked", "forwarded", "tolerated"] = "checked"
    """What happens to one that the model is known not to take: checked: 400; forwarded: it is sent
    all the same; tolerated: left out."""
    effort_turns_thinking_on: bool = False
    """Whether an effort without `thinking` switches thinking on."""
    media: Literal["forward_or_refuse", "note", "forward", "forward_or_note"] = "forward_or_note"
    server_tools: Literal["drop", "warn", "report"] = "report"
    """drop and warn: left out (warn: with a logged warning); report: 400 where nothing else is
    offered or tool_choice names one, and their results in the history become text."""
    client_tools: Literal["offer", "skip"] = "offer"
    """Typed tools that the client itself runs (bash, text editor, memory): as functions, or treated
    like server tools."""
    search_results: Literal["text", "refuse"] = "text"
    mcp_servers: Literal["drop", "refuse"] = "refuse"
    unknown_model_status: Literal[400, 404] = 404
    count_tokens: Literal["estimate", "engine", "absent"] = "engine"

    # The reply
    reasoning: Literal["thinking", "text"] = "thinking"
    signature: str = "ferrule1."
    stop_reasons: frozenset[str] | None = None
    report_stop_sequence: bool = True
    close_block_on_error: bool = True
    backend_busy_status: Literal[429, 529] = 429
    """What a 429 of a backend or a gate becomes; a 503 is 529 in every dialect."""
    wrap_gate_errors: bool = False
    missing_key_message: str = "Unauthorized: No API key provided."

    def accepts(self, parameter: str) -> bool:
        return self.accepted is None or parameter in self.accepted


_ALWAYS = frozenset(
    {
        "model",
        "messages",
        "max_tokens",
        "system",
        "temperature",
        "stream",
        "tools",
        "thinking",
        "output_config.effort",
        "metadata",
    }
)

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect(
            name="token-factory",
            accepted=_ALWAYS,
            thinking_budget="refuse",
            effort_turns_thinking_on=True,
            media="forward_or_refuse",
            server_tools="drop",
            mcp_servers="drop",
            unknown_model_status=400,
            count_tokens="estimate",
            stop_reasons=frozenset({"end_turn", "max_tokens", "tool_use", "refusal"}),
            report_stop_sequence=False,
            close_block_on_error=False,
            wrap_gate_errors=True,
        ),
        Dialect(
            name="pooled",
            accepted=_ALWAYS | {"stop_sequences", "top_k", "tool_choice", "output_config.format"},
            max_tokens_cap=65_536,
            temperature_when_only_top_k=0.8,
            top_k_min=1,
            top_k_cap=64,
            top_k_when_only_temperature=40,
            stop_sequences_max=4,
            stop_sequence_chars_max=64,
            thinking_absent="off",
            effort="tolerated",
            media="note",
            server_tools="warn",
            client_tools="skip",
            search_results="refuse",
            count_tokens="absent",
            signature="pooled1.",
            stop_reasons=frozenset(
                {
                    "end_turn",
                    "stop_sequence",
                    "tool_use",
                    "max_tokens",
                    "model_context_window_exceeded",
                }
            ),
            close_block_on_error=False,
            backend_busy_status=529,
        ),
        Dialect(
            name="tokenify",
            accepted=_ALWAYS
            | {"tool_choice", "stop_sequences", "top_p", "top_k", "output_config.format"},
            thinking_budget="refuse",
            budget_refusal=NOT_ENFORCED,
            thinking_adaptive="default",
            effort="forwarded",
            media="forward",
            server_tools="warn",
            reasoning="text",
            stop_reasons=frozenset(
                {"end_turn", "max_tokens", "tool_use", "stop_sequence", "refusal"}
            ),
            close_block_on_error=False,
        ),
        Dialect(name="anthropic"),
    )
}


def override(dialect: Dialect, changes: Mapping[str, Any], path: str = "dialect") -> Dialect:
    """The dialect with single ones replaced, as a model's `dialect:` says. Raises ValueError that
    names the place under `path`."""
    known = {field.name: field for field in msgspec.structs.fields(Dialect) if field.name != "name"}
    for name, value in changes.items():
        if name not in known:
            raise ValueError(
                f"{path}.{name}: no such setting; there are {', '.join(sorted(known))}"
            )
        try:
            converted = msgspec.convert(value, known[name].type)
        except msgspec.ValidationError as error:
            raise ValueError(f"{path}.{name}: {error}") from None
        dialect = msgspec.structs.replace(dialect, **{name: converted})
    return dialect
