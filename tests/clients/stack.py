"""What the clients talk to: `ferrule sim --scripted`, a breakable wire in front of it, and the
proxy; and where the clients are."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.backend import wait_until
from tests.doubles.client import Client
from tests.doubles.fault_proxy import FaultProxy
from tests.doubles.loop_thread import LoopThread
from tests.doubles.proxy import ROOT, Ferrule, free_port

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("FERRULE_CACHE", ROOT / ".cache")) / "clients"
NODE_MODULES = CACHE / "node" / "node_modules"
MODEL = "claude-sim"
PROGRAM_TIMEOUT_S = 50.0


class Sim:
    """A `ferrule sim` process."""

    def __init__(self, *args: str) -> None:
        self.port = free_port()
        path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "ferrule",
                "sim",
                "--port",
                str(self.port),
                "--model",
                "sim",
                "--scripted",
                *args,
            ],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.DEVNULL,
        )
        self._client = Client(f"127.0.0.1:{self.port}", timeout_s=5)
        wait_until(self._is_up, 30, "the sim to listen")

    def _is_up(self) -> bool:
        assert self.process.poll() is None, f"the sim ended with {self.process.returncode}"
        try:
            return self._client.get("/health").status == 200
        except OSError:
            return False

    def running(self) -> float:
        """Requests that the engine works on."""
        found = re.search(r"num_requests_running\S* ([\d.]+)", self._client.get("/metrics").text)
        assert found
        return float(found[1])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)


class Stack:
    """Client → ferrule → wire → sim."""

    def __init__(self, threads: LoopThread, new_proxy: Callable[..., Ferrule]) -> None:
        self.sim = Sim("--reasoning", "--tokens-per-second", "400", "--ttft-ms", "5")
        self.wire = FaultProxy(threads, self.sim.port)
        config = {
            "dialect": "anthropic",
            "drain_grace_s": 2,
            "pools": {"sims": {"backends": [self.wire.url], "retries": 0}},
            "models": [
                {"id": MODEL, "pool": "sims", "upstream": "sim", "aliases": ["claude-*", "sim"]}
            ],
        }
        self.proxy = new_proxy(config)
        self.url = f"http://{self.proxy.listen}"

    def stop(self) -> None:
        self.wire.refuse()
        self.sim.stop()


def require_venv(name: str) -> str:
    if not (CACHE / name / ".done").exists():
        pytest.skip(f"the venv {name!r} is not installed: tests/clients/install.sh")
    return str(CACHE / name / "bin" / "python")


def require_node() -> str:
    if not (CACHE / "node" / ".done").exists():
        pytest.skip("the npm packages are not installed: tests/clients/install.sh")
    node = NODE_MODULES / ".bin" / "node"
    found = str(node) if node.exists() else shutil.which("node")
    if found is None:
        pytest.skip("there is no node on this machine")
    return found


def run_program(
    argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> dict[str, Any]:
    """Runs a client program to its end; what it printed last is what it saw."""
    own = {"HOME": str(CACHE), "PATH": os.environ["PATH"], "NO_PROXY": "127.0.0.1", **(env or {})}
    done = subprocess.run(
        argv, env=own, cwd=cwd, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S
    )
    assert done.returncode == 0, (
        f"{argv[-2:]} ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    )
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen
