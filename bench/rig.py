"""Starts the mock and the proxies on their CPUs, sends orders to the mock, and stops everything it
started.

Proxies run on the first CPU available to this process, the mock (backend and clients) on the last.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from peers import KEY, ROOT, Launch, Peer, Placement

MOCK = ROOT / "bench/mock/target/release/ferrule-bench-mock"
_READY_S = 90.0
_TERM_S = 3.0


class Spread(msgspec.Struct, frozen=True):
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0


class Report(msgspec.Struct):
    """One run as the mock measured it: `run::Report` in bench/mock."""

    seconds: float = 0.0
    requests: int = 0
    tokens: int = 0
    errors: dict[str, int] = {}
    cpu_us: float = 0.0
    cpu_us_by_pid: dict[str, float] = {}
    token_latency_us: Spread = Spread()
    first_token_us: Spread = Spread()
    rss_standing_kb: int = 0
    rss_streaming_kb: int = 0


class Proxy(msgspec.Struct):
    """A running proxy. Pid 0: no proxy, but the mock itself."""

    name: str
    path: str
    port: int
    pid: int
    idle_kb: int = 0
    admin_port: int = 0
    peak_streams: int = 0
    """The most streams it has had open at a time."""


class Rig:
    """A context manager that stops everything it started."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ferrule-bench-"))
        self.backend_port = find_free_port()
        self._running: list[subprocess.Popen[str]] = []
        self._logs: dict[int, Path] = {}
        allowed = sorted(os.sched_getaffinity(0))
        self._proxy_cpus, self._mock_cpus = {allowed[0]}, {allowed[-1]}

    def __enter__(self) -> "Rig":
        subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=MOCK.parents[2], check=True)
        self._mock = self._start(
            [str(MOCK), str(self.backend_port)], self._mock_cpus, {}, pipes=True
        )
        wait_until_ready(f"http://127.0.0.1:{self.backend_port}/health", self._mock)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in reversed(self._running):
            _end(process)
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def direct(self) -> Proxy:
        """No proxy: the baseline of all other rows."""
        return Proxy("direct", "/v1/chat/completions", self.backend_port, 0)

    def launch(self, peer: Peer, workers: int = 1, every_cpu: bool = False) -> Proxy:
        """Raises RuntimeError with the end of its log if the proxy does not become ready."""
        placement = Placement(
            find_free_port(), find_free_port(), self.backend_port, self.directory, workers
        )
        launch: Launch = peer.launch(placement)
        cpus = os.sched_getaffinity(0) if every_cpu else self._proxy_cpus
        process = self._start(launch.argv, cpus, launch.env)
        wait_until_ready(launch.ready_url, process, self._logs[process.pid])
        return Proxy(
            peer.name,
            peer.path,
            placement.port,
            process.pid,
            measure_resident_kb(process.pid),
            placement.admin_port,
        )

    def start_backend(self, argv: list[str]) -> None:
        """Starts another backend in place of the mock; proxies launched later use it."""
        self.backend_port = find_free_port()
        process = self._start([*argv, "--port", str(self.backend_port)], self._mock_cpus, {})
        wait_until_ready(
            f"http://127.0.0.1:{self.backend_port}/health", process, self._logs[process.pid]
        )

    def measure(self, proxy: Proxy, **order: object) -> Report:
        """Runs one measurement. `order`: mode, body, streams, tokens and times, as `run::Order` in
        bench/mock has them."""
        pids = [int(pid) for pid in list_process_tree(proxy.pid)] if proxy.pid else []
        line = msgspec.json.encode(
            {"port": proxy.port, "path": proxy.path, "key": KEY, "pids": pids, **order}
        )
        assert self._mock.stdin is not None and self._mock.stdout is not None
        self._mock.stdin.write(line.decode() + "\n")
        self._mock.stdin.flush()
        report = self._mock.stdout.readline()
        if not report:
            raise RuntimeError("the mock exited")
        return msgspec.json.decode(report, type=Report)

    def end(self, proxy: Proxy) -> None:
        for process in self._running:
            if process.pid == proxy.pid:
                _end(process)
                self._running.remove(process)
                return

    def _start(
        self, argv: list[str], cpus: set[int], env: Mapping[str, str], pipes: bool = False
    ) -> subprocess.Popen[str]:
        log = (self.directory / f"{len(self._logs)}.log").open("w")
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else log,
            stderr=log,
            text=True,
            cwd=ROOT,
            env={**os.environ, **env},
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        )
        self._logs[process.pid] = Path(log.name)
        self._running.append(process)
        return process


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(url: str, process: subprocess.Popen[str], log: Path | None = None) -> None:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=1) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    tail = log.read_text()[-1500:] if log else ""
    raise RuntimeError(f"{url} did not become ready\n{tail}")


def list_process_tree(pid: int) -> list[str]:
    """The process ids of a process and its descendants."""
    children: dict[str, list[str]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        children.setdefault(parent, []).append(entry)
    pids, unvisited = [], [str(pid)]
    while unvisited:
        pids.append(unvisited.pop())
        unvisited += children.get(pids[-1], [])
    return pids


def measure_resident_kb(pid: int) -> int:
    total = 0
    for member in list_process_tree(pid):
        try:
            status = Path(f"/proc/{member}/status").read_text()
        except OSError:
            continue
        total += next(
            (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")), 0
        )
    return total


def _end(process: subprocess.Popen[str]) -> None:
    """Stops the whole process group, since a proxy may have started workers."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(_TERM_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
