"""The client port with a handler of the test's, and a client that sends bytes and reads one answer
after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from ferrule.errors import Failure
from ferrule.http import body
from ferrule.http.connection import Deadlines
from ferrule.http.request import Request
from ferrule.http.response import Response
from ferrule.http.server import Server

LIMIT_BYTES = 1000
DEADLINES = Deadlines(header_s=15, body_s=30, idle_s=90, write_s=60)


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Peer:
    """One connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, raw: bytes) -> None:
        self.writer.write(raw)

    async def reply(self) -> Reply:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        return Reply(
            int(first.split()[1]),
            headers,
            await self.reader.readexactly(int(headers.get("content-length", 0))),
        )

    async def is_cut(self) -> bool:
        """The other side closes or resets, and sends nothing more."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True


class Serving:
    def __init__(self, server: Server, port: int) -> None:
        self.server, self.port = server, port
        self._peers: list[Peer] = []

    async def connect(self) -> Peer:
        self._peers.append(Peer(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self._peers[-1]

    async def ask(self, raw: bytes) -> Reply:
        peer = await self.connect()
        peer.send(raw)
        return await peer.reply()

    async def close(self) -> None:
        await self.server.close()
        for peer in self._peers:
            peer.writer.close()
            with suppress(ConnectionError):
                await peer.writer.wait_closed()


async def echo(request: Request) -> Response:
    """The body back, or the refusal of it."""
    try:
        return Response(200, await body.read(request, LIMIT_BYTES), content_type="text/plain")
    except Failure as failure:
        return Response(
            failure.status,
            failure.message.encode(),
            close_after=failure.closes_connection,
        )


@asynccontextmanager
async def serving(
    serve: Callable[[Request], object] = echo,
    deadlines: Deadlines = DEADLINES,
    max_connections: int = 100,
) -> AsyncIterator[Serving]:
    server = Server(serve, deadlines, max_connections)  # type: ignore[arg-type]
    _, port = await server.listen("127.0.0.1", 0, shared=False)
    opened = Serving(server, port)
    try:
        yield opened
    finally:
        await opened.close()


def post(payload: bytes, headers: Sequence[str] = (), path: str = "/") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(payload)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + payload
