"""A network that breaks on purpose: a TCP connection in front of a backend with one fault at a
time.

Switch `fault` at any moment; it holds for connections that are made afterwards (`refuse` and
`restore` act on the port itself).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass

from tests.doubles.loop_thread import LoopThread

BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\ncontent-length: "
    b"4\r\nconnection: close\r\n\r\nbusy"
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
GARBAGE = b"\x00\xffthis is not HTTP\r\n\r\n" * 4


@dataclass(frozen=True)
class Fault:
    """`name`: none, hang, reset_after, cut_after, one_byte, latency, busy, head_then_silence,
    garbage. `amount`: bytes or seconds."""

    name: str = "none"
    amount: float = 0


class FaultProxy:
    def __init__(self, threads: LoopThread, target_port: int) -> None:
        self._threads = threads
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.fault = Fault()
        self.connections = 0
        self.port = 0
        self.restore()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def refuse(self) -> None:
        """New connections are refused, those there are reset: a machine that died."""
        self._threads.run(self._close())

    def restore(self) -> None:
        self.fault = Fault()
        if self._server is None:
            self._server = self._threads.run(self._listen())
            self.port = self._server.sockets[0].getsockname()[1]

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=1024)

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            _reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        fault = self.fault
        try:
            match fault.name:
                case "hang":
                    await reader.read(-1)
                case "busy" | "garbage" | "head_then_silence":
                    await reader.read(65536)
                    writer.write(
                        {"busy": BUSY, "garbage": GARBAGE, "head_then_silence": HEAD}[fault.name]
                    )
                    if fault.name == "head_then_silence":
                        await reader.read(-1)
                case _:
                    await self._make_protocol(fault, reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _make_protocol(
        self, fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers.add(back_writer)
        up = asyncio.create_task(_poller(reader, back_writer))
        try:
            await _pump_faulty(fault, back_reader, writer)
        finally:
            up.cancel()
            await asyncio.gather(up, return_exceptions=True)
            self._writers.discard(back_writer)
            back_writer.close()


async def _poller(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


async def _pump_faulty(
    fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    room = int(fault.amount)
    while data := await reader.read(65536):
        if fault.name == "latency":
            await asyncio.sleep(fault.amount)
        if fault.name in ("reset_after", "cut_after"):
            writer.write(data[:room])
            await writer.drain()
            room -= len(data)
            if room <= 0:
                await asyncio.sleep(0.02)  # what was written before must be on the wire
                if fault.name == "reset_after":
                    _reset(writer)
                return
        elif fault.name == "one_byte":
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in data:
                writer.write(bytes((byte,)))
                await writer.drain()
                await asyncio.sleep(0)
        else:
            writer.write(data)
            await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    if writer.is_closing():
        return
    writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    writer.transport.abort()
