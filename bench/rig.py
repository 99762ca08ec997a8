"""Starts the mock and the proxies on their CPUs, gives orders to the mock, and ends everything it
started.

Proxies run on the first CPU this process may use, the mock (backend and clients) on the last.
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

from peers import KEY, ROOT, Launch, Peer, Place

MOCK = ROOT / "bench/mock/target/release/ferrule-bench-mock"
_READY_S = 90.0
_TERM_S = 3.0


class Spread(msgspec.Struct, frozen=True):
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0


class Report(msgspec.Struct):
    """One run as the mock saw it; its fields are `run::Report` of bench/mock."""

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
    """A proxy that stands. Pid 0: no proxy, the mock itself."""

    name: str
    path: str
    port: int
    pid: int
    idle_kb: int = 0
    admin_port: int = 0
    most_streams: int = 0
    """The largest number it has had open at a time."""


class Rig:
    """A context: everything started in it is ended with it."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ferrule-bench-"))
        self.backend_port = free_port()
        self._running: list[subprocess.Popen[str]] = []
        self._logs: dict[int, Path] = {}
        allowed = sorted(os.sched_getaffinity(0))
        self._proxy_cpus, self._mock_cpus = {allowed[0]}, {allowed[-1]}

    def __enter__(self) -> "Rig":
        subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=MOCK.parents[2], check=True)
        self._mock = self._start(
            [str(MOCK), str(self.backend_port)], self._mock_cpus, {}, pipes=True
        )
        wait_for(f"http://127.0.0.1:{self.backend_port}/health", self._mock)
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
        """No proxy at all: what every other row is compared with."""
        return Proxy("direct", "/v1/chat/completions", self.backend_port, 0)

    def launch(self, peer: Peer, workers: int = 1, every_cpu: bool = False) -> Proxy:
        """Raises RuntimeError with the end of its log when the proxy does not become ready."""
        place = Place(free_port(), free_port(), self.backend_port, self.directory, workers)
        launch: Launch = peer.launch(place)
        cpus = os.sched_getaffinity(0) if every_cpu else self._proxy_cpus
        process = self._start(launch.argv, cpus, launch.env)
        wait_for(launch.ready_url, process, self._logs[process.pid])
        return Proxy(
            peer.name,
            peer.path,
            place.port,
            process.pid,
            resident_kb(process.pid),
            place.admin_port,
        )

    def start_backend(self, argv: list[str]) -> None:
        """Another backend in the place of the mock: what is launched from now on stands in front of
        it."""
        self.backend_port = free_port()
        process = self._start([*argv, "--port", str(self.backend_port)], self._mock_cpus, {})
        wait_for(f"http://127.0.0.1:{self.backend_port}/health", process, self._logs[process.pid])

    def order(self, proxy: Proxy, **order: object) -> Report:
        """One run; the caller names mode, body, streams, tokens and times (see `run::Order`)."""
        pids = [int(pid) for pid in tree(proxy.pid)] if proxy.pid else []
        line = msgspec.json.encode(
            {"port": proxy.port, "path": proxy.path, "key": KEY, "pids": pids, **order}
        )
        assert self._mock.stdin is not None and self._mock.stdout is not None
        self._mock.stdin.write(line.decode() + "\n")
        self._mock.stdin.flush()
        answer = self._mock.stdout.readline()
        if not answer:
            raise RuntimeError("the mock ended")
        return msgspec.json.decode(answer, type=Report)

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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(url: str, process: subprocess.Popen[str], log: Path | None = None) -> None:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    tail = log.read_text()[-1500:] if log else ""
    raise RuntimeError(f"{url} did not become ready\n{tail}")


def tree(pid: int) -> list[str]:
    """The process and all that descend from it."""
    children: dict[str, list[str]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        children.setdefault(parent, []).append(entry)
    found, left = [], [str(pid)]
    while left:
        found.append(left.pop())
        left += children.get(found[-1], [])
    return found


def resident_kb(pid: int) -> int:
    total = 0
    for member in tree(pid):
        try:
            status = Path(f"/proc/{member}/status").read_text()
        except OSError:
            continue
        total += next(
            (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")), 0
        )
    return total


def _end(process: subprocess.Popen[str]) -> None:
    """The whole group: a proxy may have started workers of its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(_TERM_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
