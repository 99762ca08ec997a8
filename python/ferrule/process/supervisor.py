"""Runs several workers as one instance: starts and restarts them, forwards signals, aggregates
their metrics.

Each worker has a socket to the supervisor and sends a snapshot on request. When the socket closes,
one of the two has died.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path
from time import monotonic

import msgspec

from ferrule.admission.stores.shared import SharedStore
from ferrule.backends.pool import WorkerId
from ferrule.config import Config
from ferrule.process.admin import Admin, open_admin
from ferrule.process.ports import blame_setting, reserve
from ferrule.process.snapshot import LENGTH_BYTES, Snapshot, decode
from ferrule.process.worker import WorkerSettings

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 2.0
BACKOFF_FIRST_S = 0.2
BACKOFF_MAX_S = 10.0
STEADY_S = 30.0
"""A worker that ran this long is restarted without back-off."""
EXTRA_GRACE_S = 5.0


class Child:
    """One worker: its process, if it runs, and the socket to it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: asyncio.subprocess.Process | None = None
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.lock = asyncio.Lock()
        self.last: Snapshot | None = None
        self._pending = 0
        """Snapshots requested and not yet read; those of requests that timed out come first."""
        self._length: int | None = None
        """Of the frame being read."""

    def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.streams = reader, writer
        self._pending, self._length = 0, None

    async def snapshot(self) -> Snapshot | None:
        """None if the worker has never answered. If it is late, its last snapshot, marked not
        ready."""
        if self.streams is None:
            return None
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S), self.lock:
                self.last = await self._request_snapshot(*self.streams)
                return self.last
        except TimeoutError:
            return (
                None
                if self.last is None
                else msgspec.structs.replace(
                    self.last, is_ready=False, reason="a worker does not answer"
                )
            )
        except (OSError, asyncio.IncompleteReadError, msgspec.MsgspecError):
            return None

    async def _request_snapshot(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Snapshot:
        writer.write(b"?")
        self._pending += 1
        while True:
            if self._length is None:
                self._length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
            answer = await reader.readexactly(self._length)
            self._pending, self._length = self._pending - 1, None
            if self._pending == 0:
                return decode(answer)


class Supervisor:
    def __init__(self, settings: WorkerSettings, configuration: Config, log_level: str) -> None:
        self._settings = settings
        self._config = configuration
        self._log_level = log_level
        self._children = [Child(number) for number in range(configuration.workers)]
        self._admin = Admin(self._snapshots)
        self._ended = asyncio.Event()
        self._is_ending = False

    async def run(self) -> int:
        with blame_setting("listen", self._config.listen, self._settings):
            held, port = reserve(self._config.listen.host, self._config.listen.port)
        try:
            address = await open_admin(self._admin, self._config, self._settings)
            await self._supervise(port, address)
        finally:
            held.close()
        return 0

    async def _supervise(self, port: int, admin: tuple[str, int]) -> None:
        loop = asyncio.get_running_loop()
        with tempfile.TemporaryDirectory(prefix="ferrule-", dir=_memory_folder()) as folder:
            counts_file = str(Path(folder) / "limits")
            SharedStore.create(counts_file, self._config.workers)
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop)
            loop.add_signal_handler(signal.SIGHUP, self._forward_signal, signal.SIGHUP)
            keepers = [
                loop.create_task(self._keep_running(child, port, counts_file))
                for child in self._children
            ]
            log.info(
                "listening on %s:%d with %d workers, admin on %s:%d",
                self._config.listen.host,
                port,
                len(self._children),
                *admin,
            )
            await self._ended.wait()
            await self._shut_down(keepers)

    async def _keep_running(self, child: Child, port: int, counts_file: str) -> None:
        """Keeps one worker running, with exponential back-off while it dies early."""
        pause_s = BACKOFF_FIRST_S
        while not self._is_ending:
            began = monotonic()
            ended = await self._run_once(child, port, counts_file)
            if self._is_ending:
                return
            lived_s = monotonic() - began
            pause_s = BACKOFF_FIRST_S if lived_s > STEADY_S else min(BACKOFF_MAX_S, pause_s * 2)
            log.error(
                "worker %d %s after %.1f s; a new one starts in %.1f s",
                child.number,
                ended,
                lived_s,
                pause_s,
            )
            await asyncio.sleep(pause_s)

    async def _run_once(self, child: Child, port: int, counts_file: str) -> str:
        """Runs a worker once; returns how it ended."""
        try:
            process = await self._start(child, port, counts_file)
        except OSError as failure:  # out of memory or descriptors: may pass
            return f"could not be started ({failure})"
        status = await process.wait()
        self._retire(child, counts_file)
        return f"ended with status {status}"

    async def _start(self, child: Child, port: int, counts_file: str) -> asyncio.subprocess.Process:
        ours, theirs = socket.socketpair()
        worker_id = WorkerId(child.number, len(self._children))
        settings = msgspec.structs.replace(
            self._settings, worker_id=worker_id, counts_file=counts_file, port=port
        )
        arguments = [
            sys.executable,
            "-m",
            "ferrule.process.run_worker",
            str(theirs.fileno()),
            self._log_level,
            msgspec.json.encode(settings).decode(),
        ]
        # In a session of its own, so that Ctrl-C reaches the supervisor alone.
        try:
            child.process = await asyncio.create_subprocess_exec(
                *arguments, pass_fds=[theirs.fileno()], start_new_session=True
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        child.connect(*await asyncio.open_connection(sock=ours))
        return child.process

    def _retire(self, child: Child, counts_file: str) -> None:
        if child.last is not None:
            self._admin.aggregator.retire(child.last.families)
            child.last = None
        if child.streams is not None:
            child.streams[1].close()
            child.streams = None
        SharedStore(counts_file, None).release_worker(child.number)

    async def _snapshots(self) -> list[Snapshot]:
        answers = await asyncio.gather(*(child.snapshot() for child in self._children))
        return [answer for answer in answers if answer is not None]

    def _stop(self) -> None:
        if self._ended.is_set():
            self._forward_signal(signal.SIGTERM)  # the second signal makes them exit at once
        self._ended.set()

    def _forward_signal(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.process is not None and child.process.returncode is None:
                child.process.send_signal(number)

    async def _shut_down(self, keepers: list[asyncio.Task[None]]) -> None:
        self._is_ending = True
        self._forward_signal(signal.SIGTERM)
        running = [child.process.wait() for child in self._children if child.process is not None]
        try:
            async with asyncio.timeout(self._config.drain_grace_s + EXTRA_GRACE_S):
                await asyncio.gather(*running)
        except TimeoutError:
            self._forward_signal(signal.SIGKILL)
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        await self._admin.close()


def _memory_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
