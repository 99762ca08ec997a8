"""Claude Code in front of a real vLLM: tools in one turn, and their results back."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.clients.claude_code import ARGUMENT, ClaudeCode, blocks, result
from tests.doubles.proxy import Ferrule

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
# Results come back with the name of the script that is played next.
NEXT = "[[script:agent_done]]"


@pytest.mark.cell("vLLM", "Claude Code")
def test_several_tools_in_one_turn_and_their_results(proxy: Ferrule, tmp_path: Path) -> None:
    claude = ClaudeCode(f"http://{proxy.listen}", tmp_path, model="claude-tiny")
    (claude.work / ARGUMENT).write_text(f"the file says {NEXT}\n")
    (claude.home / "bin" / ARGUMENT).write_text(f"#!/bin/sh\necho 'the command says {NEXT}'\n")
    events = claude.run("Do both. [[script:agent_tools]]", "--allowedTools", "Bash,Read")
    assert [block["name"] for block in blocks(events, "tool_use")] == ["Read", "Bash"]
    results = " ".join(str(block["content"]) for block in blocks(events, "tool_result"))
    assert "the file says" in results
    assert "the command says" in results
    end = result(events)
    assert not end["is_error"], end["result"]
    assert end["result"].strip() == "Both tools have answered. The work is done."
