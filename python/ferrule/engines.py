"""What differs between engines, as one table: field names, routes and the promises that one engine
keeps and another does not.

A profile is chosen by the config, or found by `detect` from what a server says of itself. Nothing
here talks to a server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeVar

import msgspec


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One engine as the request side must know it."""

    name: str
    reasoning_history_field: Literal["reasoning", "reasoning_content"]
    """The one field of an assistant message from which templates take earlier reasoning; never both
    (some answer 400)."""
    budget_field: str | None
    """Top-level field for a thinking budget in tokens; None: the engine cannot hold one."""
    tokenize_route: Literal["vllm", "sglang", "llamacpp"] | None
    can_continue_final: bool
    """Whether `continue_final_message` goes on from a trailing assistant message."""
    continues_unasked: bool = False
    """A trailing assistant message is continued without being asked to."""
    clamps_max_tokens: bool
    """Whether prompt + max_tokens over the window is cut, not refused."""
    forced_named_tool: bool
    """Whether `tool_choice` may be an object naming a tool."""


PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            name="vllm",
            reasoning_history_field="reasoning",
            budget_field="thinking_token_budget",
            tokenize_route="vllm",
            can_continue_final=True,
            clamps_max_tokens=True,
            forced_named_tool=True,
        ),
        # up to 0.15: other name for the reasoning, no budget
        Profile(
            name="vllm_old",
            reasoning_history_field="reasoning_content",
            budget_field=None,
            tokenize_route="vllm",
            can_continue_final=True,
            clamps_max_tokens=False,
            forced_named_tool=True,
        ),
        Profile(
            name="sglang",
            reasoning_history_field="reasoning_content",
            budget_field=None,
            tokenize_route="sglang",
            can_continue_final=True,
            clamps_max_tokens=False,
            forced_named_tool=True,
        ),
        Profile(
            name="llamacpp",
            reasoning_history_field="reasoning_content",
            budget_field="thinking_budget_tokens",
            tokenize_route="llamacpp",
            can_continue_final=False,
            continues_unasked=True,
            clamps_max_tokens=True,
            forced_named_tool=False,
        ),
    )
}

# vLLM versions (minor of 0.x) from which a feature exists
_RENAMED_REASONING = (0, 16)
_THINKING_BUDGET = (0, 19)
_CLAMPING = (0, 32)


class _Model(msgspec.Struct):
    owned_by: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []


class _Version(msgspec.Struct):
    version: str = ""


class _Props(msgspec.Struct):
    build_info: str | None = None


def detect(
    models_json: bytes | None, version_json: bytes | None = None, props_json: bytes | None = None
) -> Profile:
    """The profile of a server from the bodies of `/v1/models`, `/version` and `/props` (None or
    anything odd: not answered).

    A server that tells nothing is taken for a current vLLM, the engine this gateway is made for.
    """
    models = _read(models_json, _Models)
    owners = {model.owned_by for model in models.data} if models else set()
    if "llamacpp" in owners:
        return PROFILES["llamacpp"]
    if "sglang" in owners:
        return PROFILES["sglang"]
    version = _read(version_json, _Version)
    if version and version.version:
        return _vllm_of(version.version)
    props = _read(props_json, _Props)
    if (
        not any(owner and owner.startswith("vllm") for owner in owners)
        and props
        and props.build_info
    ):
        return PROFILES["llamacpp"]
    return PROFILES["vllm"]


def _vllm_of(version: str) -> Profile:
    match = re.match(r"v?(\d+)\.(\d+)", version)
    if not match:
        return PROFILES["vllm"]
    release = (int(match[1]), int(match[2]))
    # 0.0 and 0.1 are what source builds without tags call themselves
    if release < (0, 2):
        return PROFILES["vllm"]
    if release < _RENAMED_REASONING:
        return PROFILES["vllm_old"]
    profile = PROFILES["vllm"]
    if release < _CLAMPING:
        profile = msgspec.structs.replace(profile, clamps_max_tokens=False)
    if release < _THINKING_BUDGET:
        profile = msgspec.structs.replace(profile, budget_field=None)
    return profile


_T = TypeVar("_T")


def _read(body: bytes | None, shape: type[_T]) -> _T | None:
    if not body:
        return None
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.MsgspecError, RecursionError):
        return None
