"""Who holds a thinking budget: the model's own setting first, then the dialect, and nobody who
cannot."""

from __future__ import annotations

from typing import Any

import pytest
from tests.messages.requests import policy


@pytest.mark.parametrize(
    ("dialect", "engine", "budget", "can_continue", "keeper"),
    [
        ("anthropic", "vllm", None, True, "engine"),
        ("anthropic", "sglang", None, True, "edge"),
        ("anthropic", "sglang", None, False, "refuse"),
        ("pooled", "vllm", None, False, "engine"),
        ("token-factory", "vllm", None, True, "refuse"),
        ("tokenify", "vllm", None, True, "refuse"),
        ("token-factory", "vllm", "engine", True, "engine"),
        ("token-factory", "vllm", "edge", True, "edge"),
        ("token-factory", "sglang", "engine", False, "refuse"),
        ("anthropic", "vllm", "refuse", True, "refuse"),
        ("anthropic", "llamacpp", "edge", True, "edge"),
    ],
)
def test_the_keeper_of_a_budget(
    dialect: str, engine: str, budget: Any, can_continue: bool, keeper: str
) -> None:
    assert policy(dialect, engine, budget=budget, can_continue=can_continue).budget_keeper == keeper
