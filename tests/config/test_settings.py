"""Which model a client means."""

from __future__ import annotations

import pytest

from ferrule.config import ModelConfig, find_model

MODELS = (
    ModelConfig(id="DeepSeek-V4-Flash", aliases=("claude-haiku-*", "a")),
    ModelConfig(id="q", aliases=("claude-*", "DeepSeek-*")),
)


@pytest.mark.parametrize(
    ("name", "model_id"),
    [
        ("DeepSeek-V4-Flash", "DeepSeek-V4-Flash"),
        ("claude-haiku-4-5", "DeepSeek-V4-Flash"),
        ("claude-haiku-4-5-20251001", "DeepSeek-V4-Flash"),
        ("claude-opus-4-6", "q"),
        ("a", "DeepSeek-V4-Flash"),
        ("q[1m]", "q"),
        ("claude-haiku-4-5[1m]", "DeepSeek-V4-Flash"),
        ("DeepSeek-V5", "q"),
        ("gpt-4", None),
        ("", None),
        ("Q", None),
    ],
)
def test_k09_ids_and_aliases(name: str, model_id: str | None) -> None:
    found = find_model(MODELS, name)
    assert (found.id if found else None) == model_id
