"""One request of a client, as everything behind the HTTP server sees it."""

from __future__ import annotations

from asyncio import Transport
from collections.abc import Mapping
from random import getrandbits
from typing import TYPE_CHECKING, Protocol

from aiohttp import StreamReader
from aiohttp.http import RawRequestMessage

from ferrule.http.routes import route_of

if TYPE_CHECKING:
    from ferrule._core import ResponseStream


class StreamWriter(Protocol):
    """Writes to the client's transport from Rust; told when to hold back."""

    def client_paused(self) -> None: ...
    def client_resumed(self) -> None: ...
    def client_lost(self) -> None: ...


class Client(Protocol):
    """The connection a request came on, as far as its handler may use it."""

    descriptor: int | None
    """The socket's; None before the connection is made."""

    @property
    def transport(self) -> Transport | None:
        """None once the client has gone."""

    def attach(self, writer: StreamWriter) -> None:
        """Lets `writer` write to the transport until the request ends."""


class Request:
    """`received_at`: seconds, monotonic. `content`: the body. `stream`: the response in progress,
    where it is a streamed one."""

    __slots__ = (
        "argument", "body_bytes", "body_since", "client", "content", "headers", "keeps_alive",
        "method", "methods", "raw_path", "received_at", "request_id", "route", "stream",
        "takes_chunks",
    )  # fmt: skip

    def __init__(
        self,
        message: RawRequestMessage,
        content: StreamReader,
        client: Client,
        received_at: float,
    ) -> None:
        self.method = message.method
        self.raw_path = message.path
        self.headers: Mapping[str, str] = message.headers
        """Names match in any case."""
        self.content = content
        self.client = client
        self.route, self.methods, self.argument = route_of(message.path)
        self.received_at = received_at
        self.request_id = f"req_{getrandbits(96):024x}"
        self.stream: ResponseStream | None = None
        self.keeps_alive = not message.should_close
        """Whether the connection carries another request: the client wants it, and the process is
        not draining."""
        self.takes_chunks = message.version >= (1, 1)
        """HTTP/1.0 has no chunked coding."""
        self.body_since: float | None = None
        """When the body last made progress; None while nothing waits for it."""
        self.body_bytes = 0
        """Bytes of it since then."""

    def take_body(self) -> bytes:
        """The body, if all of it is there; else nothing."""
        content = self.content
        if content.is_eof() and content.exception() is None:
            return content.read_nowait()
        return b""

    @property
    def outlives_stream(self) -> bool:
        """Whether the connection can carry another request after a stream. Without chunked coding
        the end of the connection is the end of the stream."""
        return self.keeps_alive and self.takes_chunks


_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))


def message_id() -> str:
    """`msg_` and a random UUID (version 4). Put together by hand: uuid.UUID takes ten times as
    long."""
    h = f"{getrandbits(128):032x}"
    return f"msg_{h[:8]}-{h[8:12]}-4{h[13:16]}-{_VARIANT[h[16]]}{h[17:20]}-{h[20:]}"
