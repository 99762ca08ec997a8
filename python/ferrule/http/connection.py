"""A client's connection: aiohttp's HTTP parser and request loop, with deadlines and flow control of
our own.

aiohttp cuts a half-sent header only after its keep-alive time and a stalled body never; one sweep a
second does it here.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Protocol

import msgspec
from aiohttp import web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import ERROR, RequestHandler, _ErrInfo

from ferrule.errors import Failure, envelope
from ferrule.http.request import Request
from ferrule.http.response import Response, StreamedResponse

Serve = Callable[[Request], Awaitable[Response | StreamedResponse]]

LINGER_S = 1.0
UNSENT_BYTES = 128 << 10
"""What the kernel may hold for a client beyond what is on its way: with megabytes there, a slow
reader would look like none."""
BODY_PROGRESS_BYTES = 8 << 10
"""A body gets on when so much more of it, or its end, has come: a byte now and then is a stall."""


class Deadlines(msgspec.Struct, frozen=True):
    """How long a client may take, in seconds."""

    header_s: float = 15
    body_s: float = 30
    idle_s: float = 90
    write_s: float = 60


class Writer(Protocol):
    """Whoever writes to the client's transport from outside Python: it must know when to hold."""

    def client_paused(self) -> None: ...
    def client_resumed(self) -> None: ...
    def client_lost(self) -> None: ...


class Connection(RequestHandler):
    """One client connection. `writer` is the stream being told to it, if any."""

    __slots__ = (
        "_serve",
        "body_bytes",
        "body_since",
        "descriptor",
        "head_since",
        "idle_since",
        "stalled_bytes",
        "stalled_since",
        "writer",
    )

    def __init__(self, manager: web.Server, serve: Serve, **settings: Any) -> None:
        super().__init__(manager, **settings)
        self._serve = serve
        self._current_request: Request | None = None  # type: ignore[assignment]  # all that aiohttp does with it is cancel it
        self.writer: Writer | None = None
        self.descriptor: int | None = None
        self.head_since: float | None = None
        self.body_since: float | None = None
        """When the body last got on; None: nobody waits for one."""
        self.body_bytes = 0
        self.idle_since = monotonic()
        self.stalled_since: float | None = None
        self.stalled_bytes = 0

    # What the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        client = transport.get_extra_info("socket")
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self.descriptor = client.fileno()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self.writer is not None:
            self.writer.client_lost()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._current_request is None:
            if self.head_since is None:
                self.head_since = monotonic()
        elif self.body_since is not None:
            self.body_bytes += len(data)
            if self.body_bytes >= BODY_PROGRESS_BYTES:
                self.body_since, self.body_bytes = monotonic(), 0
        super().data_received(data)

    def resume_reading(self, resume_parser: bool = True) -> None:
        """aiohttp asks after every read of a body, and would run its parser over nothing each
        time."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.writer is not None:
            self.writer.client_paused()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.writer is not None:
            self.writer.client_resumed()

    # The loop over requests

    async def start(self) -> None:
        """aiohttp's own loop, less what an edge does not need: a task and a writer for each
        request, an access log."""
        while not self._force_close:
            if self._messages:
                await asyncio.sleep(
                    0
                )  # requests that came in one go take turns with everybody else's
            else:
                self._waiter = self._loop.create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            message, payload = self._next_message()
            if self._manager is None:
                return
            self.head_since, self.body_bytes = None, 0
            if isinstance(message, _ErrInfo):
                self._refuse(message)
                break
            call = self._current_request = Request(message, payload, self, monotonic())
            try:
                keeps_alive = (await self._serve(call)).write(call)
            except ConnectionError:
                break
            except BaseException:
                self.force_close()
                raise
            finally:
                self._current_request = self.writer = self.body_since = None
                self.idle_since = monotonic()
            if self._paused and not await self._has_caught_up():
                break
            if (
                not (payload.is_eof() or await self._has_read(payload))
                or not keeps_alive
                or self._close
                or self._upgraded
            ):
                break
        if not self._force_close:
            self._task_handler = None
            if self.transport is not None:
                self.transport.close()

    async def _has_caught_up(self) -> bool:
        """A client that does not read its answers gets no further one. Until then the write
        deadline alone holds."""
        try:
            await self._drain_helper()
        except ConnectionError:
            return False
        self.head_since, self.idle_since = None, monotonic()
        return True

    def _refuse(self, error: _ErrInfo) -> None:
        """What the HTTP parser does not take."""
        answer = Response(
            error.status, envelope(Failure(error.status, "The request is not valid HTTP."), "")
        )
        answer.close_after = True
        if self.transport is not None:
            answer.write(Request(ERROR, EMPTY_PAYLOAD, self, 0.0))

    def _next_message(self) -> tuple[RawRequestMessage | _ErrInfo, StreamReader]:
        message, payload = self._messages.popleft()
        if self._parser is not None:
            self._parser.message_consumed()
        if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
            self._resume_reading_if_drained()
        return message, payload

    async def _has_read(self, payload: StreamReader) -> bool:
        """Whether the request's body came to its end. One that was refused unread gets a moment, so
        that its sender reads the refusal."""
        try:
            async with asyncio.timeout(LINGER_S):
                while not payload.is_eof():
                    await payload.readany()
        except Exception:  # noqa: BLE001  (whatever the parser found in it: the connection ends)
            return False
        return True

    # What the request handler tells

    def write_through(self, writer: Writer) -> None:
        """`writer` writes to the transport until the request ends. What an earlier answer left
        there holds it from the start."""
        self.writer = writer
        if self._paused:
            writer.client_paused()

    # The sweep

    def sweep(self, now: float, deadlines: Deadlines) -> None:
        """Cuts a client that keeps us waiting; called once a second."""
        transport = self.transport
        if transport is None:
            return
        if self._reads_nothing(now, deadlines.write_s):
            transport.abort()
        elif self._paused:
            return
        elif self._current_request is None:
            if self.head_since is not None:
                if now - self.head_since > deadlines.header_s:
                    transport.abort()
            elif now - self.idle_since > deadlines.idle_s:
                transport.close()
        elif self.body_since is not None and now - self.body_since > deadlines.body_s:
            self.body_since = None
            self._current_request._cancel(TimeoutError("the body stalled"))

    def _reads_nothing(self, now: float, limit_s: float) -> bool:
        waiting = self.transport.get_write_buffer_size() if self.transport is not None else 0
        if waiting == 0 or waiting < self.stalled_bytes or self.stalled_since is None:
            self.stalled_since = now if waiting else None
        self.stalled_bytes = waiting
        return self.stalled_since is not None and now - self.stalled_since > limit_s
