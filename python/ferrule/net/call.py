"""A call: one request of a client, as everybody behind the HTTP server knows it."""

from __future__ import annotations

from collections.abc import Mapping
from random import getrandbits
from typing import TYPE_CHECKING

from aiohttp.web_request import BaseRequest

from ferrule.net.api import Route
from ferrule.net.connection import Connection

if TYPE_CHECKING:
    from ferrule._core import Exchange


class Call:
    """`received_at`: seconds, monotonic. `exchange`: the stream that is being told to the client, once there is one."""

    __slots__ = ("argument", "connection", "exchange", "methods", "received_at", "request", "request_id", "route", "wants_close")

    def __init__(self, request: BaseRequest, connection: Connection, route: Route, received_at: float) -> None:
        self.request = request
        self.connection = connection
        self.route = route.name
        self.methods = route.methods
        self.argument = route.argument
        self.received_at = received_at
        self.request_id = f"req_{getrandbits(96):024x}"
        self.exchange: Exchange | None = None
        self.wants_close = False
        """No further request on this connection (the process is draining)."""

    @property
    def headers(self) -> Mapping[str, str]:
        return self.request.headers

    @property
    def keeps_alive(self) -> bool:
        return self.request.keep_alive and not self.wants_close

    @property
    def takes_chunks(self) -> bool:
        """HTTP/1.0 knows no chunked coding."""
        return self.request.version >= (1, 1)

    @property
    def outlives_stream(self) -> bool:
        """Whether the connection can carry another request after a stream: without chunked coding its end is the stream's."""
        return self.keeps_alive and self.takes_chunks


def message_id() -> str:
    """`msg_` and a random UUID (version 4), put together by hand: uuid.UUID takes ten times as long."""
    h = f"{getrandbits(128):032x}"
    return f"msg_{h[:8]}-{h[8:12]}-4{h[13:16]}-{'89ab'[int(h[16], 16) & 3]}{h[17:20]}-{h[20:]}"
