"""The entry point of a worker: alone with the admin port, or one of several under a supervisor."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys

import msgspec
import uvloop

from ferrule.config import Config
from ferrule.process.admin import Admin, open_admin
from ferrule.process.ports import blame_setting
from ferrule.process.snapshot import Snapshot, frame
from ferrule.process.worker import Worker, WorkerSettings
from ferrule.telemetry.logs import set_up

log = logging.getLogger(__name__)


async def serve_alone(settings: WorkerSettings, configuration: Config) -> int:
    """Serves clients and the admin port from this process."""
    worker = Worker(settings, configuration)

    async def ask() -> list[Snapshot]:
        return [worker.snapshot()]

    admin = Admin(ask)
    _on_signals(worker)
    try:
        with blame_setting("listen", configuration.listen, settings):
            address = await worker.start()
        admin_address = await open_admin(admin, configuration, settings)
        log.info("listening on %s:%d, admin on %s:%d", *address, *admin_address)
        await worker.ended.wait()
        await worker.drain()
    finally:
        await worker.close()
        await admin.close()
    return 0


async def serve_under_supervisor(settings: WorkerSettings, control: socket.socket) -> int:
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


async def _answer(
    worker: Worker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    while await reader.read(1):
        writer.write(frame(worker.snapshot()))
        await writer.drain()
    worker.ended.set()  # without a supervisor nobody would restart, drain or scrape this worker


def _on_signals(worker: Worker) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.end)
    loop.add_signal_handler(signal.SIGHUP, worker.reload)


def _main(arguments: list[str]) -> int:
    descriptor, level, settings = arguments
    set_up(level)
    control = socket.socket(fileno=int(descriptor))
    control.setblocking(False)
    return uvloop.run(
        serve_under_supervisor(msgspec.json.decode(settings, type=WorkerSettings), control)
    )


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
