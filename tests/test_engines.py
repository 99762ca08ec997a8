"""Which engine is it? From what it says of itself, in whatever state of health it says it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from ferrule.engines import PROFILES, Profile, detect


def models(owner: str | None, **more: Any) -> bytes:
    return json.dumps(
        {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": owner, **more}]}
    ).encode()


def version(number: str) -> bytes:
    return json.dumps({"version": number}).encode()


PROPS = json.dumps({"build_info": "b11434-abc", "chat_template": "…", "total_slots": 2}).encode()


@pytest.mark.parametrize(
    ("models_json", "version_json", "props_json", "name"),
    [
        (models("vllm"), version("0.33.0"), None, "vllm"),
        (models("vllm-frontend-rs"), version("0.33.0"), None, "vllm"),
        (models("vllm"), None, None, "vllm"),
        (models("vllm"), version("0.15.0"), None, "vllm_old"),
        (models("vllm"), version("v0.9.2"), None, "vllm_old"),
        (models("vllm"), version("0.11.2.dev12+gabc.rocm700"), None, "vllm_old"),
        (models("vllm"), version("0.16.0"), None, "vllm"),
        (models("vllm"), version("1.0.0"), None, "vllm"),
        (models("vllm"), version("0.1.dev1+g123"), None, "vllm"),
        (models("vllm"), version("main"), None, "vllm"),
        (models("sglang"), version("0.5.23"), None, "sglang"),
        (models("llamacpp"), None, PROPS, "llamacpp"),
        (models("me", meta={"n_ctx": 2048}), None, PROPS, "llamacpp"),
        (None, None, PROPS, "llamacpp"),
        (models("vllm"), None, PROPS, "vllm"),
        (models(None), None, None, "vllm"),
        (None, None, None, "vllm"),
        (b"<html>", b"not found", b"[]", "vllm"),
        (b'{"data":5}', b'{"version":5}', b'{"build_info":5}', "vllm"),
        (b"[" * 100_000, None, None, "vllm"),
    ],
)
def test_detection(
    models_json: bytes | None, version_json: bytes | None, props_json: bytes | None, name: str
) -> None:
    assert detect(models_json, version_json, props_json).name == name


@pytest.mark.parametrize(
    ("number", "budget", "clamps"),
    [
        ("0.16.0", None, False),
        ("0.18.1", None, False),
        ("0.19.0", "thinking_token_budget", False),
        ("0.32.0", "thinking_token_budget", True),
    ],
)
def test_what_came_to_vllm_later(number: str, budget: str | None, clamps: bool) -> None:
    profile = detect(models("vllm"), version(number))
    assert (profile.name, profile.budget_field, profile.clamps_max_tokens) == (
        "vllm",
        budget,
        clamps,
    )


@pytest.mark.parametrize(
    ("name", "reasoning", "budget", "continues", "named_tool"),
    [
        ("vllm", "reasoning", "thinking_token_budget", True, True),
        ("vllm_old", "reasoning_content", None, True, True),
        ("sglang", "reasoning_content", None, True, True),
        ("llamacpp", "reasoning_content", "thinking_budget_tokens", False, False),
    ],
)
def test_the_table(
    name: str, reasoning: str, budget: str | None, continues: bool, named_tool: bool
) -> None:
    profile = PROFILES[name]
    assert (profile.name, profile.reasoning_history_field, profile.budget_field) == (
        name,
        reasoning,
        budget,
    )
    assert (profile.can_continue_final, profile.forced_named_tool) == (continues, named_tool)
    assert profile.tokenize_route == name.removesuffix("_old")


def test_profiles_are_frozen_and_complete() -> None:
    assert set(PROFILES) == {"vllm", "vllm_old", "sglang", "llamacpp"}
    assert all(isinstance(profile, Profile) for profile in PROFILES.values())
    with pytest.raises(AttributeError):
        PROFILES["vllm"].budget_field = None  # type: ignore[misc]
    assert msgspec.structs.replace(PROFILES["vllm"], budget_field=None) != PROFILES["vllm"]
