"""Answers as bytes: one head, one body, one write. The only place that knows which headers an answer carries.

aiohttp asks a response for `prepare`, `write_eof` and `keep_alive`; that is all these classes take from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.web_request import BaseRequest

Headers = Iterable[tuple[str, str]]

REASONS = {status.value: status.phrase for status in HTTPStatus} | {413: "Request Too Large", 529: "Overloaded"}


_EVENT_STREAM = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"


def head(status: int, headers: Headers) -> bytes:
    """The status line and headers, up to and with the empty line. Values come from us alone, or were checked to hold no line break."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def event_stream_head(headers: Headers, *, chunked: bool, keep_alive: bool) -> bytes:
    """The head of a stream of events. Without chunked coding (HTTP/1.0) the end of the connection is the end of the stream."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
    framing = "transfer-encoding: chunked\r\n" if chunked else ""
    closing = "" if keep_alive else "connection: close\r\n"
    return f"{_EVENT_STREAM}{lines}{framing}{closing}\r\n".encode("latin-1", "replace")


class Answer(web.StreamResponse):
    """A whole answer. `headers` are those beside framing, type and cache."""

    def __init__(self, status: int, body: bytes, headers: Headers = (), content_type: str = "application/json") -> None:
        super().__init__(status=status)
        self.payload = body
        self.extra = headers
        self.type = content_type
        self.close_after = False
        """Set: the connection is not used again (draining, or a body that was not read to its end)."""

    async def prepare(self, request: BaseRequest) -> None:
        keeps = request.keep_alive and not self.close_after
        self._keep_alive = keeps
        connection = [] if keeps and request.version >= (1, 1) else [("connection", "keep-alive" if keeps else "close")]
        fixed = [("content-type", self.type), ("content-length", str(len(self.payload))), ("cache-control", "no-store")]
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client has gone")
        transport.write(head(self.status, [*fixed, *self.extra, *connection]) + (b"" if request.method == "HEAD" else self.payload))

    async def write_eof(self, data: bytes = b"") -> None:
        self._eof_sent = True


class Told(web.StreamResponse):
    """An answer that the relay has written already, head and all."""

    def __init__(self, *, keep_alive: bool) -> None:
        super().__init__()
        self._keep_alive = keep_alive

    async def prepare(self, request: BaseRequest) -> Any:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        self._eof_sent = True
