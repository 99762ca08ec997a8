"""SDKs as programs use them, through ferrule: a text turn, tools whose results come back, a fault,
counts, discovery, interruption."""

from __future__ import annotations

from typing import Any

import pytest
from tests.clients.stack import HERE, NODE_MODULES, Stack, require_node, require_venv, run_program
from tests.doubles.backend import wait_until

SCENARIOS = ("text", "tools", "fault", "count", "models", "interrupt")
PYTHON = {
    "anthropic (Python)": ("python", "anthropic_sdk.py"),
    "anthropic 0.75 (Python)": ("python-0.75", "anthropic_sdk.py"),
    "openai (Python)": ("python", "openai_sdk.py"),
    "langchain-anthropic": ("langchain", "langchain_chat.py"),
}
NODE = {"anthropic (TypeScript)": "anthropic_sdk.mjs", "@ai-sdk/anthropic": "ai_sdk.mjs"}
# What a client has no call for.
ABSENT = {
    ("openai (Python)", "count"),
    ("langchain-anthropic", "models"),
    ("@ai-sdk/anthropic", "count"),
    ("@ai-sdk/anthropic", "models"),
}

CASES = [
    pytest.param(
        client, scenario, marks=pytest.mark.cell(client, scenario), id=f"{client}-{scenario}"
    )
    for client in (*PYTHON, *NODE)
    for scenario in SCENARIOS
    if (client, scenario) not in ABSENT
]


def seen_by(client: str, scenario: str, stack: Stack) -> dict[str, Any]:
    if client in PYTHON:
        venv, program = PYTHON[client]
        return run_program(
            [require_venv(venv), str(HERE / "programs" / program), scenario, stack.url]
        )
    program = NODE[client]
    node = require_node()
    # Node looks for packages beside the program: it runs as a copy there.
    copy = NODE_MODULES.parent / program
    copy.write_text((HERE / "programs" / "node" / program).read_text())
    return run_program([node, str(copy), scenario, stack.url])


@pytest.mark.live
@pytest.mark.parametrize(("client", "scenario"), CASES)
def test_client(client: str, scenario: str, stack: Stack) -> None:
    globals()[f"check_{scenario}"](seen_by(client, scenario, stack), stack)


def check_text(seen: dict[str, Any], _stack: Stack) -> None:
    assert "simulated model" in seen["text"]
    assert seen["text"] == seen["streamed"] == seen["final"]
    assert seen["stop"] in ("end_turn", "stop")
    assert seen["output_tokens"][0] == seen["output_tokens"][1] > 10


def check_tools(seen: dict[str, Any], _stack: Stack) -> None:
    assert seen["stop"] in ("tool_use", "tool_calls", "tool-calls")
    assert sorted(name for name, _ in seen["calls"]) == ["get_time", "get_weather"]
    assert all("city" in arguments for _, arguments in seen["calls"])
    assert "sunny" in seen["answer"]


def check_fault(seen: dict[str, Any], _stack: Stack) -> None:
    assert seen["before"] > 0
    assert seen["error"] in ("api_error", "APIError")
    assert seen["refused"] == 529
    assert "simulated model" in seen["then"]


def check_count(seen: dict[str, Any], _stack: Stack) -> None:
    assert seen["counted"] == seen["billed"] > 10


def check_models(seen: dict[str, Any], _stack: Stack) -> None:
    assert "claude-sim" in seen["ids"]
    assert seen["one"] == "claude-sim"
    assert seen["missing"] == 404


def check_interrupt(seen: dict[str, Any], stack: Stack) -> None:
    assert seen["pieces"] == 5
    wait_until(
        lambda: stack.sim.running() == 0, 5, "the engine to stop working for a client that left"
    )
