"""A call: one request of a client, as everybody behind the HTTP server knows it."""

from __future__ import annotations

from asyncio import Transport
from collections.abc import Mapping
from random import getrandbits
from typing import TYPE_CHECKING

from aiohttp.helpers import set_exception
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from ferrule.http.routes import route_of

if TYPE_CHECKING:
    from ferrule._core import ResponseStream
    from ferrule.http.connection import Connection


class Request:
    """`received_at`: seconds, monotonic. `content`: the body. `stream`: the stream that is told to
    the client, once there is one."""

    __slots__ = (
        "argument", "connection", "content", "headers", "keeps_alive", "method", "methods",
        "raw_path", "received_at", "request_id", "route", "stream", "takes_chunks",
    )  # fmt: skip

    def __init__(
        self,
        message: RawRequestMessage,
        content: StreamReader,
        connection: Connection,
        received_at: float,
    ) -> None:
        self.method = message.method
        self.raw_path = message.path
        self.headers: Mapping[str, str] = message.headers
        """Found by their names in any case."""
        self.content = content
        self.connection = connection
        self.route, self.methods, self.argument = route_of(message.path)
        self.received_at = received_at
        self.request_id = f"req_{getrandbits(96):024x}"
        self.stream: ResponseStream | None = None
        self.keeps_alive = not message.should_close
        """Whether the connection is to carry another request: the client wants it, and the process
        is not draining."""
        self.takes_chunks = message.version >= (1, 1)
        """HTTP/1.0 knows no chunked coding."""

    @property
    def transport(self) -> Transport | None:
        """The client's; None when it has gone."""
        return self.connection.transport

    def take_body(self) -> bytes:
        """The body, if it came whole with its head; else nothing. Five calls into aiohttp's reader
        would say the same."""
        content = self.content
        if content is EMPTY_PAYLOAD or not content._eof or content._exception is not None:
            return b""
        if len(content._buffer) != 1 or self.connection._reading_paused:
            return b""
        return content._buffer.popleft()

    @property
    def outlives_stream(self) -> bool:
        """Whether the connection can carry another request after a stream: without chunked coding
        its end is the stream's."""
        return self.keeps_alive and self.takes_chunks

    def _cancel(self, error: BaseException) -> None:
        """aiohttp's name for it: whoever waits for the body gets `error`."""
        set_exception(self.content, error)


_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))


def message_id() -> str:
    """`msg_` and a random UUID (version 4), put together by hand: uuid.UUID takes ten times as
    long."""
    h = f"{getrandbits(128):032x}"
    return f"msg_{h[:8]}-{h[8:12]}-4{h[13:16]}-{_VARIANT[h[16]]}{h[17:20]}-{h[20:]}"
