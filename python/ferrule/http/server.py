"""The client port: listens, limits the number of connections, enforces their deadlines."""

from __future__ import annotations

import asyncio

import aiohttp.http_parser

from ferrule.http.connection import Connection, Deadlines, Handler

BACKLOG = 4096
CLOSE_S = 0.1


class ParserMissing(Exception):
    """aiohttp runs on its pure-Python parser, which is slow and more lenient than is safe at an
    edge."""


class Server:
    """`handle` answers every request; it raises only CancelledError."""

    def __init__(self, handle: Handler, deadlines: Deadlines, max_connections: int) -> None:
        if aiohttp.http_parser.HttpRequestParser is aiohttp.http_parser.HttpRequestParserPy:
            raise ParserMissing(
                "aiohttp's compiled HTTP parser is missing: reinstall aiohttp from a wheel, "
                "or unset AIOHTTP_NO_EXTENSIONS"
            )
        self._handle = handle
        self.deadlines = deadlines
        self.max_connections = max_connections
        self.connections: set[Connection] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int, *, shared: bool) -> tuple[str, int]:
        """Opens the port; `shared`: other workers listen on it too. Returns the address in use."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self._handle, self, loop),
            host,
            port,
            backlog=BACKLOG,
            reuse_port=shared,
        )
        address = self._server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    def stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Closes the port and all connections."""
        self.stop_listening()
        await asyncio.gather(*(connection.close(CLOSE_S) for connection in self.connections))

    def sweep(self, now: float) -> None:
        for connection in list(self.connections):
            connection.sweep(now, self.deadlines)

    # Called by the connections

    def opened(self, connection: Connection) -> None:
        self.connections.add(connection)
        if len(self.connections) > self.max_connections and connection.transport is not None:
            connection.transport.abort()

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
