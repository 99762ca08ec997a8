"""The client port: connections in, calls out. It holds clients to their deadlines and the process
to its number of connections."""

from __future__ import annotations

import asyncio

import aiohttp.http_parser
from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest

from ferrule.http.connection import Connection, Deadlines, Serve

BACKLOG = 4096
READ_BUFFER_BYTES = 1 << 20
HEADER_LIMIT_BYTES = 16 << 10


class ParserMissing(Exception):
    """aiohttp runs on its pure-Python parser, which is slow and more lenient than is safe at an
    edge."""


async def _unused(request: BaseRequest) -> web.StreamResponse:
    """aiohttp wants a handler; connections of ours call `serve`."""
    raise NotImplementedError


class Server(web.Server):
    """aiohttp's low-level server with connections of ours. `serve` answers every call and never
    fails."""

    def __init__(self, serve: Serve, deadlines: Deadlines, max_connections: int) -> None:
        if aiohttp.http_parser.HttpRequestParser is aiohttp.http_parser.HttpRequestParserPy:
            raise ParserMissing(
                "aiohttp's compiled HTTP parser is missing: reinstall aiohttp from a wheel, or "
                "unset AIOHTTP_NO_EXTENSIONS"
            )
        super().__init__(_unused, handler_cancellation=True)
        self._serve = serve
        self.deadlines = deadlines
        self.max_connections = max_connections
        self._server: asyncio.Server | None = None

    def __call__(self) -> RequestHandler:
        return Connection(
            self,
            self._serve,
            loop=self._loop,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=86_400,  # idle connections are the business of the sweep
            tcp_keepalive=False,
            max_line_size=HEADER_LIMIT_BYTES,
            max_field_size=HEADER_LIMIT_BYTES,
            read_bufsize=READ_BUFFER_BYTES,
            lingering_time=1.0,
        )

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._connections) > self.max_connections:
            transport.abort()

    async def listen(self, host: str, port: int, *, shared: bool) -> tuple[str, int]:
        """Opens the port; `shared`: other workers listen on it too. Returns the address that it
        really is."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self, host, port, backlog=BACKLOG, reuse_port=shared
        )
        address = self._server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    def stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Cuts what is left."""
        self.stop_listening()
        await self.shutdown(0.1)

    def sweep(self, now: float) -> None:
        for connection in self.connections:
            if isinstance(connection, Connection):
                connection.sweep(now, self.deadlines)
