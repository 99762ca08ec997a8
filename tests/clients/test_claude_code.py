"""Claude Code through ferrule: a text turn, tools whose results come back, a broken stream,
/context, discovery, interruption."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clients.claude_code import BASH_TEXT, READ_TEXT, ClaudeCode, blocks, result
from tests.clients.stack import Stack
from tests.doubles.backend import wait_until
from tests.doubles.fault_proxy import Fault

pytestmark = pytest.mark.live
NAME = "Claude Code"


@pytest.fixture
def claude(stack: Stack, tmp_path: Path) -> ClaudeCode:
    return ClaudeCode(stack.url, tmp_path)


@pytest.fixture
def calm_wire(stack: Stack) -> Iterator[None]:
    """No connection from before is used again, and none is faulty afterwards."""
    stack.wire.refuse()
    stack.wire.restore()
    stack.proxy.wait_until_ready()
    yield
    stack.wire.fault = Fault()


@pytest.mark.cell(NAME, "text")
def test_text_turn(claude: ClaudeCode) -> None:
    end = result(claude.run("Say something."))
    assert not end["is_error"]
    assert "simulated model" in end["result"]
    assert end["usage"]["output_tokens"] > 10


@pytest.mark.cell(NAME, "tools")
def test_several_tools_in_one_turn_and_their_results(claude: ClaudeCode) -> None:
    events = claude.run("Use Read and then Bash, please.", "--allowedTools", "Bash,Read")
    assert {block["name"] for block in blocks(events, "tool_use")} == {"Read", "Bash"}
    results = [str(block["content"]) for block in blocks(events, "tool_result")]
    assert any(READ_TEXT in text for text in results)
    assert any(BASH_TEXT in text for text in results)
    end = result(events)
    assert not end["is_error"]
    assert end["num_turns"] >= 2
    assert READ_TEXT in end["result"] or BASH_TEXT in end["result"], (
        "the model was not shown the results"
    )


@pytest.mark.cell(NAME, "fault")
@pytest.mark.usefixtures("calm_wire")
def test_broken_stream_is_tried_again(claude: ClaudeCode, stack: Stack) -> None:
    stack.wire.fault = Fault("cut_after", 1200)

    def heal_after_the_first_fault() -> None:
        wait_until(
            lambda: stack.proxy.metric("stream_end_total", reason="backend_error") > before,
            30,
            "a broken stream",
        )
        stack.wire.fault = Fault()

    before = stack.proxy.metric("stream_end_total", reason="backend_error")
    healer = threading.Thread(target=heal_after_the_first_fault)
    healer.start()
    end = result(claude.run("Say something after a fault."))
    healer.join(30)
    assert stack.proxy.metric("stream_end_total", reason="backend_error") > before
    assert not end["is_error"], end["result"]
    assert "simulated model" in end["result"]


@pytest.mark.cell(NAME, "count")
def test_context_counts_tokens(claude: ClaudeCode, stack: Stack) -> None:
    def counted(**labels: str) -> float:
        return stack.proxy.metric("requests_total", route="count_tokens", **labels)

    before = counted()
    end = result(claude.run("/context"))
    assert not end["is_error"]
    assert "Context Usage" in end["result"]
    assert counted() > before + 5
    assert counted() == counted(code="200")


@pytest.mark.cell(NAME, "models")
def test_models_are_discovered(claude: ClaudeCode) -> None:
    """Discovery is not done where non-essential traffic is off; the closed proxy keeps the rest of
    it from leaving."""
    env = {
        "CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "",
    }
    claude.run("Say something.", env=env)
    cached = claude.home / ".claude" / "cache" / "gateway-models.json"
    assert "claude-sim" in cached.read_text()


@pytest.mark.cell(NAME, "interrupt")
def test_interruption_stops_the_engine(claude: ClaudeCode, stack: Stack) -> None:
    process = claude.start("Say very much. [[tokens:20000]]")
    wait_until(lambda: stack.sim.running() > 0, 30, "the engine to begin")
    claude.interrupt(process)
    wait_until(
        lambda: stack.sim.running() == 0, 5, "the engine to stop working for a client that left"
    )
