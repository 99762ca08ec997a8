"""Claude Code, headless, shut into a home of its own: a dummy key, no telemetry, no updates, and no
way out but loopback."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.clients.stack import CACHE, NODE_MODULES

TIMEOUT_S = 50.0
# Names of tools that the simulated model is asked to call. It fills every required string in with
# "sample".
ARGUMENT = "sample"
READ_TEXT = "what the file says"
BASH_TEXT = "what the command says"


class ClaudeCode:
    """`home` is a fresh directory with a work directory and a `PATH` in which the command `sample`
    exists."""

    def __init__(self, url: str, home: Path, model: str = "claude-sim") -> None:
        if not (CACHE / "node" / ".done").exists():
            pytest.skip("the npm packages are not installed: tests/clients/install.sh")
        self._binary = NODE_MODULES / ".bin" / "claude"
        self.home, self.work = home, home / "work"
        self.work.mkdir()
        (self.work / ARGUMENT).write_text(READ_TEXT + "\n")
        tools = home / "bin"
        tools.mkdir()
        command = tools / ARGUMENT
        command.write_text(f"#!/bin/sh\necho {BASH_TEXT}\n")
        command.chmod(0o755)
        self._env = {
            "HOME": str(home),
            "PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin",
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "sk-dummy",
            "ANTHROPIC_MODEL": model,
            "ANTHROPIC_SMALL_FAST_MODEL": model,
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_BUG_COMMAND": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            # Whatever is left that wants to call home finds a closed port.
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "NO_PROXY": "127.0.0.1",
        }

    def start(
        self, prompt: str, *args: str, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        own = {**self._env, **(env or {})}
        argv = [
            str(self._binary),
            "-p",
            prompt,
            "--output-format",
            "stream-json",
            "--verbose",
            *args,
        ]
        return subprocess.Popen(
            argv,
            cwd=self.work,
            env={name: value for name, value in own.items() if value},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, prompt: str, *args: str, env: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """The events of one run, to its end."""
        process = self.start(prompt, *args, env=env)
        try:
            out, errors = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"Claude Code did not end: {process.communicate()}") from None
        events = list(read_events(out))
        assert events, (process.returncode, errors[-2000:])
        return events

    def interrupt(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)


def read_events(out: str) -> Iterator[dict[str, Any]]:
    for line in out.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def result(events: list[dict[str, Any]]) -> dict[str, Any]:
    assert events[-1]["type"] == "result", events[-1]
    return events[-1]


def blocks(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The content blocks of this kind, in the order in which they came."""
    messages = [event["message"] for event in events if event["type"] in ("assistant", "user")]
    return [
        block
        for message in messages
        for block in message["content"]
        if isinstance(block, dict) and block["type"] == kind
    ]
