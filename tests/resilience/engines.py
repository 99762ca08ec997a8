"""Simulated engines as processes of their own, to be killed, drained and started again on the same
port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.doubles.backend import wait_until
from tests.doubles.client import Client
from tests.doubles.proxy import ROOT, free_port


class Sim:
    """One `ferrule sim` that obeys `[[tokens:N]]`."""

    def __init__(self, *, tokens_per_second: float = 20, drain_s: float = 0) -> None:
        self.port = free_port()
        self._options = [
            "--tokens-per-second",
            str(tokens_per_second),
            "--drain-s",
            str(drain_s),
            "--ttft-ms",
            "0",
            "--model",
            "m",
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns once it answers."""
        path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
        command = [
            sys.executable,
            "-m",
            "ferrule",
            "sim",
            "--port",
            str(self.port),
            "--scripted",
            *self._options,
        ]
        self._process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.DEVNULL
        )
        wait_until(self._answers, 15, "a simulated engine to answer")

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def drain(self) -> None:
        """SIGTERM; returns when the process has ended."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            self._process = None

    def _answers(self) -> bool:
        try:
            return Client(f"127.0.0.1:{self.port}", timeout_s=2).get("/health").status == 200
        except OSError:
            return False
