"""The four dialects as data, and single dialect of a model; what they do is in the tests of the two
sides."""

from __future__ import annotations

from typing import Any

import pytest

from ferrule.dialects import DIALECTS, Dialect, override


def test_four_ship_under_their_names() -> None:
    assert list(DIALECTS) == ["token-factory", "pooled", "tokenify", "anthropic"]
    assert all(dialect.name == name for name, dialect in DIALECTS.items())


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("unknown_model_status", (400, 404, 404, 404)),
        ("count_tokens", ("estimate", "absent", "engine", "engine")),
        ("reasoning", ("thinking", "thinking", "text", "thinking")),
        ("signature", ("ferrule1.", "pooled1.", "ferrule1.", "ferrule1.")),
        ("report_stop_sequence", (False, True, True, True)),
        ("backend_busy_status", (429, 529, 429, 429)),
        ("wrap_gate_errors", (True, False, False, False)),
        ("close_block_on_error", (False, False, False, True)),
        ("missing_key_message", ("Unauthorized: No API key provided.",) * 4),
        (
            "stop_reasons",
            (
                {"end_turn", "max_tokens", "tool_use", "refusal"},
                {
                    "end_turn",
                    "stop_sequence",
                    "tool_use",
                    "max_tokens",
                    "model_context_window_exceeded",
                },
                {"end_turn", "max_tokens", "tool_use", "stop_sequence", "refusal"},
                None,
            ),
        ),
    ],
)
def test_the_rows_that_the_request_side_does_not_see(setting: str, values: tuple[Any, ...]) -> None:
    assert tuple(getattr(dialect, setting) for dialect in DIALECTS.values()) == values


@pytest.mark.parametrize(
    ("parameter", "accepted_by"),
    [
        ("output_config.effort", {"token-factory", "pooled", "tokenify", "anthropic"}),
        ("metadata", {"token-factory", "pooled", "tokenify", "anthropic"}),
        ("tool_choice", {"pooled", "tokenify", "anthropic"}),
        ("stop_sequences", {"pooled", "tokenify", "anthropic"}),
        ("top_k", {"pooled", "tokenify", "anthropic"}),
        ("output_config.format", {"pooled", "tokenify", "anthropic"}),
        ("top_p", {"tokenify", "anthropic"}),
        ("thread", {"anthropic"}),
    ],
)
def test_accepted_parameters(parameter: str, accepted_by: set[str]) -> None:
    assert {name for name, dialect in DIALECTS.items() if dialect.accepts(parameter)} == accepted_by


def test_a_model_overrides_single_knobs() -> None:
    dialect = override(
        DIALECTS["anthropic"], {"reasoning": "text", "top_k_cap": 10, "stop_reasons": ["end_turn"]}
    )
    assert (dialect.reasoning, dialect.top_k_cap, dialect.stop_reasons) == (
        "text",
        10,
        frozenset({"end_turn"}),
    )
    assert DIALECTS["anthropic"].reasoning == "thinking"
    assert override(DIALECTS["pooled"], {}) is DIALECTS["pooled"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"reasonning": "text"},
            "models.0.dialect.reasonning: no such setting; there are accepted, ",
        ),
        ({"name": "x"}, "models.0.dialect.name: no such setting"),
        ({"reasoning": "loud"}, "models.0.dialect.reasoning: Invalid enum value 'loud'"),
        ({"top_k_cap": "ten"}, "models.0.dialect.top_k_cap: Expected `int | null`, got `str`"),
        ({"wrap_gate_errors": 1}, "models.0.dialect.wrap_gate_errors: Expected `bool`, got `int`"),
    ],
)
def test_a_wrong_knob_is_an_error_with_its_place(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match="^" + says.replace(".", r"\.").replace("|", r"\|")):
        override(DIALECTS["anthropic"], changes, "models.0.dialect")


def test_knobs_are_frozen() -> None:
    with pytest.raises(AttributeError):
        DIALECTS["anthropic"].reasoning = "text"  # type: ignore[misc]
    assert Dialect(name="x") == Dialect(name="x")
