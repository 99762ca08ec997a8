"""The four dialects as data: what each gateway of the seed documents promises, knob by knob.

No code asks which dialect is in force; it asks the knob. A model may override single knobs (`dialect: {reasoning: text}`).
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Knobs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One dialect. Tokens and characters are counts; None means no limit."""

    name: str

    # The request
    accepted: frozenset[str] | None = None
    """Top-level parameters that are kept; None: all of the API."""
    max_tokens_cap: int | None = None
    temperature_when_only_top_k: float | None = None
    top_k_cap: int | None = None
    top_k_when_only_temperature: int | None = None
    stop_sequences_max: int | None = None
    stop_sequence_chars_max: int | None = None
    thinking_budget: Literal["refuse", "enforce"] = "enforce"
    budget_refusal: str = ""
    thinking_adaptive: Literal["on", "default"] = "on"
    thinking_absent: Literal["default", "off"] = "default"
    media: Literal["forward_or_refuse", "note", "forward", "forward_or_note"] = "forward_or_note"
    server_tools: Literal["drop", "warn", "report"] = "report"
    """report: with a header and a counter, and a 400 where tool_choice names one."""
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
