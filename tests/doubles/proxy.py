"""The proxy as a user runs it: a process with a config file, two ports and a log; and a client for
its routes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any

import yaml
from tests.doubles.backend import wait_until
from tests.doubles.client import Answer, Client, Open
from tests.doubles.events import Event, assert_stream_invariant, read_events

ROOT = Path(__file__).parents[2]
READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def config_for(*backends: str, **top: Any) -> dict[str, Any]:
    """A config with one pool `p` and one model `m`; `pool` and `model` entries are merged in, the
    rest is top level."""
    pool = {"backends": list(backends), "engine": "vllm", **top.pop("pool", {})}
    model = {"id": "m", "pool": "p", "aliases": ["claude-haiku-*"], **top.pop("model", {})}
    return {
        "dialect": "anthropic",
        "drain_grace_s": 5,
        "pools": {"p": pool},
        "models": [model],
        **top,
    }


def REQ(**overrides: Any) -> dict[str, Any]:
    """The small request of the cases, with members replaced, added, or (None) removed."""
    body = {
        "model": "m",
        "max_tokens": 64,
        "messages": [{"role": "user", "content": "hi"}],
        **overrides,
    }
    return {key: value for key, value in body.items() if value is not None}


@dataclass
class Streamed:
    """A streamed answer, read to its end."""

    status: int
    headers: Message
    raw: bytes
    times: list[float] = field(default_factory=list)
    """When each read came, in seconds after the request was sent."""

    @property
    def events(self) -> list[Event]:
        return read_events(self.raw)

    @property
    def message(self) -> dict[str, Any]:
        assert self.status == 200, (self.status, self.raw)
        return assert_stream_invariant(self.events)


class Ferrule:
    """`with Ferrule(config, folder) as proxy:` starts it, waits until it is ready, and at the end
    terminates it and wants status 0."""

    def __init__(
        self,
        config: Mapping[str, Any] | None,
        folder: Path,
        *,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        waits: bool = True,
        before: Sequence[str] = (),
    ) -> None:
        """`before`: a command that starts the proxy's own, such as one that gives it a
        namespace."""
        self.folder = folder
        self.listen, self.admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.config_path = folder / "ferrule.yaml"
        self._log_path = folder / "ferrule.log"
        options = ["--listen", self.listen, "--admin", self.admin, *args]
        if config is not None:
            self.write_config(config)
            options += ["--config", str(self.config_path)]
        path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", "ferrule", "serve", *options],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": path, **(env or {})},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.client = Client(self.listen)
        self._admin_client = Client(self.admin, timeout_s=10.0)
        if waits:
            self.wait_until_ready()

    def __enter__(self) -> Ferrule:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # The process

    def write_config(self, config: Mapping[str, Any]) -> None:
        self.config_path.write_text(yaml.safe_dump(dict(config), sort_keys=False))

    def wait_until_ready(self) -> None:
        self.wait_for_readyz(200)

    def wait_for_readyz(self, status: int, timeout_s: float = READY_TIMEOUT_S) -> None:
        def seen() -> bool:
            assert self.process.poll() is None, (
                f"ferrule ended with {self.process.returncode}:\n{self.log()}"
            )
            return self.readyz() == status

        try:
            wait_until(seen, timeout_s, f"/readyz {status}")
        except AssertionError as error:
            if self.process.poll() is None:
                self.process.kill()
            raise AssertionError(f"{error}\n{self.log()}") from error

    def readyz(self) -> int | None:
        try:
            return self._admin_client.get("/readyz").status
        except OSError:
            return None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self, expect: int = 0) -> None:
        """SIGTERM, and the exit status that a drained proxy has."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(5)
            raise AssertionError(
                f"ferrule did not stop within {STOP_TIMEOUT_S} s:\n{self.log()[-3000:]}"
            ) from None
        assert status == expect, f"ferrule ended with {status}:\n{self.log()[-3000:]}"

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def log_lines(self) -> list[dict[str, Any]]:
        """The access log: lines that are JSON objects with a request id."""
        lines = []
        for line in self.log().splitlines():
            if line.startswith("{"):
                value = json.loads(line)
                if "request_id" in value:
                    lines.append(value)
        return lines

    def memory_kb(self) -> int:
        """Resident memory of all its processes."""
        return sum(_resident_kb(pid) for pid in _tree(self.process.pid))

    # The client side

    def ask(
        self, path: str = "/v1/messages", headers: Mapping[str, str] | None = None, **overrides: Any
    ) -> Answer:
        """One request that is not streamed."""
        return self.client.post(path, REQ(**overrides), headers)

    def message(self, **overrides: Any) -> dict[str, Any]:
        """The message that answers one request; anything but 200 is a failure."""
        answer = self.ask(**overrides)
        assert answer.status == 200, (answer.status, answer.text)
        message: dict[str, Any] = answer.json()
        return message

    def stream(
        self, path: str = "/v1/messages", headers: Mapping[str, str] | None = None, **overrides: Any
    ) -> Streamed:
        """One streamed request, read to its end."""
        begin = time.monotonic()
        with self.open_stream(path, headers, **overrides) as answer:
            parts, times = [], []
            for part in answer:
                parts.append(part)
                times.append(time.monotonic() - begin)
            return Streamed(answer.status, answer.headers, b"".join(parts), times)

    @contextmanager
    def open_stream(
        self, path: str = "/v1/messages", headers: Mapping[str, str] | None = None, **overrides: Any
    ) -> Iterator[Open]:
        with self.client.open(
            "POST", path, REQ(**{"stream": True, **overrides}), headers
        ) as answer:
            yield answer

    # The admin side

    def status(self) -> Any:
        return self._admin_client.get("/status").json()

    def admin_get(self, path: str) -> Answer:
        return self._admin_client.get(path)

    def samples(self) -> list[tuple[str, dict[str, str], float]]:
        text = self._admin_client.get("/metrics").text
        found = (_SAMPLE.match(line) for line in text.splitlines())
        return [(match[1], _labels(match[2]), float(match[3])) for match in found if match]

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples called `ferrule_NAME` that carry these labels."""
        wanted = f"ferrule_{name}"
        return sum(
            value
            for key, own, value in self.samples()
            if key == wanted and labels.items() <= own.items()
        )

    def wait_for_metric(
        self, name: str, value: float, timeout_s: float = 5.0, **labels: str
    ) -> None:
        def describe() -> str:
            return f"{name}{labels} = {value}, is {self.metric(name, **labels)}"

        deadline = time.monotonic() + timeout_s
        while self.metric(name, **labels) != value:
            assert time.monotonic() < deadline, f"waited {timeout_s} s in vain for {describe()}"
            time.sleep(0.03)


def assert_error(answer: Answer, status: int, kind: str, *parts: str) -> str:
    """An answer in the error envelope; returns its message."""
    assert answer.status == status, (answer.status, answer.text)
    assert answer.headers["content-type"].split(";")[0] == "application/json"
    body = answer.json()
    body = body.get("detail", body)
    assert body["type"] == "error"
    assert body["error"]["type"] == kind, body
    assert answer.headers["request-id"]
    assert body.get("request_id", answer.headers["request-id"]) == answer.headers["request-id"]
    message: str = body["error"]["message"]
    for part in parts:
        assert part in message, message
    return message


def _labels(text: str | None) -> dict[str, str]:
    return dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', text or ""))


def _tree(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(entry))
    found, queue = [], [pid]
    while queue:
        current = queue.pop()
        found.append(current)
        queue += children.get(current, [])
    return found


def _resident_kb(pid: int) -> int:
    try:
        match = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(match[1]) if match else 0
