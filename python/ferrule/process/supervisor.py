"""Several serving processes as one: starts them, restarts those that die, passes signals on, adds up what they count.

Each worker has a socket to the supervisor, over which it answers for its snapshot; when that closes, one of the two has died.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import msgspec

from ferrule.admission.stores.shared import SharedStore
from ferrule.backends.pool import Place
from ferrule.config import Address, Config, ConfigError, Problem, reason_of
from ferrule.http.server import reserve
from ferrule.process.admin import Admin
from ferrule.process.worker import Settings, Snapshot, Worker

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 2.0
BACKOFF_FIRST_S = 0.2
BACKOFF_MAX_S = 10.0
STEADY_S = 30.0
"""A worker that ran this long starts again at once when it dies."""
EXTRA_GRACE_S = 5.0

_LENGTH_BYTES = 4
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Snapshot).decode


class _Child:
    """One worker's place: its process, if it runs, and the socket to it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: asyncio.subprocess.Process | None = None
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.asking = asyncio.Lock()
        self.last: Snapshot | None = None
        self._owed = 0
        """Answers to come: those of earlier questions that nobody waited for come first."""
        self._length: int | None = None
        """Of the answer whose body is to come."""

    def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.streams = reader, writer
        self._owed, self._length = 0, None

    async def snapshot(self) -> Snapshot | None:
        """None when the worker has never answered; of one that is late, what it last counted, as not ready."""
        if self.streams is None:
            return None
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S), self.asking:
                self.last = await self._ask(*self.streams)
                return self.last
        except TimeoutError:
            return None if self.last is None else msgspec.structs.replace(self.last, is_ready=False, reason="a worker does not answer")
        except (OSError, asyncio.IncompleteReadError, msgspec.MsgspecError):
            return None

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Snapshot:
        writer.write(b"?")
        self._owed += 1
        while True:
            if self._length is None:
                self._length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
            answer = await reader.readexactly(self._length)
            self._owed, self._length = self._owed - 1, None
            if self._owed == 0:
                return _decode(answer)


class Supervisor:
    def __init__(self, settings: Settings, configuration: Config, log_level: str) -> None:
        self._settings = settings
        self._config = configuration
        self._log_level = log_level
        self._children = [_Child(number) for number in range(configuration.workers)]
        self._admin = Admin(self._snapshots)
        self._ended = asyncio.Event()
        self._is_ending = False

    async def run(self) -> int:
        with _opening("listen", self._config.listen, self._settings):
            held, port = reserve(self._config.listen.host, self._config.listen.port)
        try:
            address = await _open_admin(self._admin, self._config, self._settings)
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
            loop.add_signal_handler(signal.SIGHUP, self._pass_on, signal.SIGHUP)
            keepers = [loop.create_task(self._keep(child, port, counts_file)) for child in self._children]
            log.info("listening on %s:%d with %d workers, admin on %s:%d", self._config.listen.host, port, len(self._children), *admin)
            await self._ended.wait()
            await self._end(keepers)

    async def _keep(self, child: _Child, port: int, counts_file: str) -> None:
        """Keeps one worker running, with a growing pause when it dies young."""
        pause_s = BACKOFF_FIRST_S
        while not self._is_ending:
            began = monotonic()
            ended = await self._run(child, port, counts_file)
            if self._is_ending:
                return
            lived_s = monotonic() - began
            pause_s = BACKOFF_FIRST_S if lived_s > STEADY_S else min(BACKOFF_MAX_S, pause_s * 2)
            log.error("worker %d %s after %.1f s; a new one starts in %.1f s", child.number, ended, lived_s, pause_s)
            await asyncio.sleep(pause_s)

    async def _run(self, child: _Child, port: int, counts_file: str) -> str:
        """One life of a worker; returns how it ended."""
        try:
            process = await self._start(child, port, counts_file)
        except OSError as failure:  # no memory, no descriptor: there may be in a moment
            return f"could not be started ({failure})"
        status = await process.wait()
        self._bury(child, counts_file)
        return f"ended with status {status}"

    async def _start(self, child: _Child, port: int, counts_file: str) -> asyncio.subprocess.Process:
        ours, theirs = socket.socketpair()
        place = Place(child.number, len(self._children))
        settings = msgspec.structs.replace(self._settings, place=place, counts_file=counts_file, port=port)
        arguments = [
            sys.executable,
            "-m",
            "ferrule.process.supervisor",
            str(theirs.fileno()),
            self._log_level,
            msgspec.json.encode(settings).decode(),
        ]
        # A session of its own: Ctrl-C reaches the supervisor alone, which then ends the workers in order.
        try:
            child.process = await asyncio.create_subprocess_exec(*arguments, pass_fds=[theirs.fileno()], start_new_session=True)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        child.connect(*await asyncio.open_connection(sock=ours))
        return child.process

    def _bury(self, child: _Child, counts_file: str) -> None:
        if child.last is not None:
            self._admin.aggregate.bury(child.last.families)
            child.last = None
        if child.streams is not None:
            child.streams[1].close()
            child.streams = None
        SharedStore(counts_file, None).forget_worker(child.number)

    async def _snapshots(self) -> list[Snapshot]:
        answers = await asyncio.gather(*(child.snapshot() for child in self._children))
        return [answer for answer in answers if answer is not None]

    def _stop(self) -> None:
        if self._ended.is_set():
            self._pass_on(signal.SIGTERM)  # their second one, which ends them at once
        self._ended.set()

    def _pass_on(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.process is not None and child.process.returncode is None:
                child.process.send_signal(number)

    async def _end(self, keepers: list[asyncio.Task[None]]) -> None:
        self._is_ending = True
        self._pass_on(signal.SIGTERM)
        running = [child.process.wait() for child in self._children if child.process is not None]
        try:
            async with asyncio.timeout(self._config.drain_grace_s + EXTRA_GRACE_S):
                await asyncio.gather(*running)
        except TimeoutError:
            self._pass_on(signal.SIGKILL)
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        await self._admin.close()


def _memory_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextmanager
def _opening(setting: str, address: Address, settings: Settings) -> Iterator[None]:
    """What keeps a port from being opened, as a problem of the setting or the flag that names it."""
    try:
        yield
    except OSError as trouble:
        path = setting if getattr(settings.flags, setting) is None else f"--{setting}"
        raise ConfigError([Problem(path, f"{address}: {reason_of(trouble)}")]) from None


async def _open_admin(admin: Admin, configuration: Config, settings: Settings) -> tuple[str, int]:
    address = configuration.admin
    try:
        with _opening("admin", address, settings):
            return await admin.listen(address.host, address.port)
    except ConfigError:
        await admin.close()
        raise


# The worker's side


async def serve_alone(settings: Settings, configuration: Config) -> int:
    """One process that is worker and admin in one."""
    worker = Worker(settings, configuration)

    async def ask() -> list[Snapshot]:
        return [worker.snapshot()]

    admin = Admin(ask)
    _on_signals(worker)
    try:
        with _opening("listen", configuration.listen, settings):
            address = await worker.start()
        admin_address = await _open_admin(admin, configuration, settings)
        log.info("listening on %s:%d, admin on %s:%d", *address, *admin_address)
        await worker.ended.wait()
        await worker.drain()
    finally:
        await worker.close()
        await admin.close()
    return 0


async def serve_under_supervisor(settings: Settings, control: socket.socket) -> int:
    worker = Worker(settings, settings.read())
    _on_signals(worker)
    await worker.start()
    reader, writer = await asyncio.open_connection(sock=control)
    answering = asyncio.get_running_loop().create_task(_answer(worker, reader, writer))
    await worker.ended.wait()
    await worker.drain()
    answering.cancel()
    await worker.close()
    return 0


async def _answer(worker: Worker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1):
        snapshot = _encode(worker.snapshot())
        writer.write(len(snapshot).to_bytes(_LENGTH_BYTES, "big") + snapshot)
        await writer.drain()
    worker.ended.set()  # the supervisor is gone: nobody would count, restart or drain us


def _on_signals(worker: Worker) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.end)
    loop.add_signal_handler(signal.SIGHUP, worker.reload)


def _main(arguments: list[str]) -> int:
    import uvloop

    from ferrule.telemetry.logs import set_up

    descriptor, level, settings = arguments
    set_up(level)
    control = socket.socket(fileno=int(descriptor))
    control.setblocking(False)
    return uvloop.run(serve_under_supervisor(msgspec.json.decode(settings, type=Settings), control))


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
