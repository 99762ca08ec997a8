"""A client's connection: an asyncio protocol over aiohttp's HTTP parser.

Requests are answered one after the other, each by `handle`. Bodies are read while they arrive, with
back-pressure. Every way in which a client can keep us waiting has a deadline, which a sweep checks
once a second: no timer per connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Protocol

import msgspec
from aiohttp import StreamReader
from aiohttp.http import HttpProcessingError, HttpRequestParser, RawRequestMessage
from aiohttp.web import RequestPayloadError

from ferrule.errors import Failure, envelope
from ferrule.http.request import Request, StreamWriter
from ferrule.http.response import Response, StreamedResponse

Handler = Callable[[Request], Awaitable[Response | StreamedResponse]]

HEADER_LIMIT_BYTES = 16 << 10
"""Of the request line, and of one header."""
READ_BUFFER_BYTES = 1 << 20
"""Of a body: at twice as much unread, the socket is not read until the handler has caught up."""
PIPELINED_REQUESTS = 32
"""Parsed ahead of the one being answered; then the socket is not read."""
LINGER_S = 1.0
UNSENT_BYTES = 128 << 10
"""What the kernel may hold for a client beyond what is on its way: with megabytes there, a client
that reads slowly would look like one that reads nothing."""
BODY_PROGRESS_BYTES = 8 << 10
"""A body makes progress when this much of it, or its end, has come: single bytes are a stall."""


class Deadlines(msgspec.Struct, frozen=True):
    """How long a client may take, in seconds (`edge` in the configuration)."""

    header_s: float
    body_s: float
    idle_s: float
    write_s: float


class Owner(Protocol):
    """The server, as its connections know it."""

    def opened(self, connection: Connection) -> None: ...
    def closed(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    """One client connection."""

    __slots__ = (
        "_can_write", "_handle", "_has_message", "_is_closing", "_is_queue_full",
        "_is_reading_paused", "_is_upgraded", "_is_writing_paused", "_loop", "_messages", "_owner",
        "_parser", "_task", "descriptor", "head_since", "idle_since", "request", "stalled_bytes",
        "stalled_since", "transport", "writer",
    )  # fmt: skip

    def __init__(self, handle: Handler, owner: Owner, loop: asyncio.AbstractEventLoop) -> None:
        self._handle, self._owner, self._loop = handle, owner, loop
        self._parser: HttpRequestParser | None = HttpRequestParser(
            self,  # type: ignore[arg-type]  # what it uses of a protocol is below
            loop,
            READ_BUFFER_BYTES,
            max_line_size=HEADER_LIMIT_BYTES,
            max_field_size=HEADER_LIMIT_BYTES,
            payload_exception=RequestPayloadError,
            auto_decompress=False,
            max_msg_queue_size=PIPELINED_REQUESTS,
        )
        self._messages: list[tuple[RawRequestMessage, StreamReader] | HttpProcessingError] = []
        self._task: asyncio.Task[None] | None = None
        self._has_message: asyncio.Future[None] | None = None
        self._can_write: asyncio.Future[None] | None = None
        self._is_reading_paused = False
        self._is_queue_full = False
        self._is_writing_paused = False
        self._is_upgraded = False
        self._is_closing = False
        self.transport: asyncio.Transport | None = None
        self.descriptor: int | None = None
        self.request: Request | None = None
        """The one being answered."""
        self.writer: StreamWriter | None = None
        """Whatever streams the response from outside Python."""
        self.head_since: float | None = None
        """When the first byte of a head that is not complete came."""
        self.idle_since = monotonic()
        self.stalled_since: float | None = None
        self.stalled_bytes = 0

    # Called by the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        client: socket.socket = transport.get_extra_info("socket")
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self.descriptor = client.fileno()
        self._task = self._loop.create_task(self._serve())
        self._owner.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.transport = None
        self._owner.closed(self)
        if self.writer is not None:
            self.writer.client_lost()
        if self.request is not None:
            self.request.content.set_exception(exc or ConnectionResetError("the client has gone"))
        if self._task is not None:
            self._task.cancel()
        # All three refer to this object, the last by the bodies of requests still waiting.
        # Requests make so few cycles that the collector runs rarely.
        self._task = self._parser = None
        self._messages.clear()

    def data_received(self, data: bytes) -> None:
        if self._is_closing or self._is_upgraded:
            return
        request = self.request
        if request is None:
            if self.head_since is None:
                self.head_since = monotonic()
        elif request.body_since is not None:
            request.body_bytes += len(data)
            if request.body_bytes >= BODY_PROGRESS_BYTES:
                request.body_since, request.body_bytes = monotonic(), 0
        self._parse(data)

    def eof_received(self) -> bool:
        """A client that sends nothing more has gone: the transport closes."""
        return False

    def pause_writing(self) -> None:
        self._is_writing_paused = True
        if self.writer is not None:
            self.writer.client_paused()

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        if self._can_write is not None and not self._can_write.done():
            self._can_write.set_result(None)
        if self.writer is not None:
            self.writer.client_resumed()

    # What the parser's StreamReader uses of a protocol

    @property
    def connected(self) -> bool:
        return self.transport is not None

    def pause_reading(self) -> None:
        self._is_reading_paused = True
        if self._parser is not None:
            self._parser.pause_reading()
        if self.transport is not None:
            self.transport.pause_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        if not self._is_reading_paused:
            return
        self._is_reading_paused = False
        if resume_parser:
            self._parse(b"")  # the bytes left when it was paused
        self._read_on()

    def _read_on(self) -> None:
        if self._is_reading_paused or self._is_queue_full or self.transport is None:
            return
        self.transport.resume_reading()

    def _parse(self, data: bytes) -> None:
        if self._parser is None:
            return
        try:
            messages, self._is_upgraded, _ = self._parser.feed_data(data)
            self._messages += messages
        except HttpProcessingError as invalid:
            self._messages.append(invalid)
        if len(self._messages) >= PIPELINED_REQUESTS and not self._is_queue_full:
            self._is_queue_full = True
            if self.transport is not None:
                self.transport.pause_reading()
        if self._messages and self._has_message is not None and not self._has_message.done():
            self._has_message.set_result(None)

    # The loop over requests

    async def _serve(self) -> None:
        """Answers requests until the connection cannot carry another."""
        handle = self._handle
        try:
            while True:
                if self._messages:
                    await asyncio.sleep(0)  # pipelined requests take turns with other connections
                else:
                    self._has_message = self._loop.create_future()
                    await self._has_message
                    self._has_message = None
                message = self._next_message()
                self.head_since = None
                if isinstance(message, HttpProcessingError):
                    self._refuse()
                    return
                content = message[1]
                request = self.request = Request(message[0], content, self, monotonic())
                try:
                    keeps_alive = self._write(request, await handle(request))
                except ConnectionError:
                    return
                finally:
                    self.request = self.writer = None
                    self.idle_since = monotonic()
                if self._is_writing_paused:
                    await self._wait_until_written()
                if not (content.is_eof() or await self._drain(content)):
                    return
                if not keeps_alive or self._is_closing or self._is_upgraded:
                    return
        finally:
            if self.transport is not None:
                self.transport.close()

    def _next_message(self) -> tuple[RawRequestMessage, StreamReader] | HttpProcessingError:
        message = self._messages.pop(0)
        if self._parser is not None:
            self._parser.message_consumed()
        if self._is_queue_full and len(self._messages) <= PIPELINED_REQUESTS // 2:
            self._is_queue_full = False
            self._parse(b"")
            self._read_on()
        return message

    def _write(self, request: Request, response: Response | StreamedResponse) -> bool:
        """Whether the connection can carry another request afterwards."""
        if isinstance(response, StreamedResponse):
            return request.outlives_stream
        if self.transport is None:
            raise ConnectionResetError("the client has gone")
        keep_alive = request.keeps_alive and not response.close_after
        self.transport.write(
            response.encode(
                keep_alive=keep_alive,
                is_default=request.takes_chunks,
                with_body=request.method != "HEAD",
            )
        )
        return keep_alive

    def _refuse(self) -> None:
        """Answers what the HTTP parser does not take."""
        if self.transport is not None:
            body = envelope(Failure(400, "The request is not valid HTTP."), "")
            response = Response(400, body)
            self.transport.write(
                response.encode(keep_alive=False, is_default=False, with_body=True)
            )

    async def _wait_until_written(self) -> None:
        """A client that does not read its responses gets no further one. Until then the write
        deadline alone holds."""
        self._can_write = self._loop.create_future()
        await self._can_write
        self._can_write = None
        self.head_since, self.idle_since = None, monotonic()

    async def _drain(self, content: StreamReader) -> bool:
        """Whether the rest of a request's body came. A body that was refused unread gets a moment,
        so that its sender reads the refusal."""
        try:
            async with asyncio.timeout(LINGER_S):
                while not content.is_eof():
                    await content.readany()
        except Exception:  # noqa: BLE001  (whatever is wrong with it: the connection ends)
            return False
        return True

    # Called by the request's handler, and by the server

    def attach(self, writer: StreamWriter) -> None:
        """Lets `writer` write to the transport until the request ends. What an earlier response
        left there holds it from the start."""
        self.writer = writer
        if self._is_writing_paused:
            writer.client_paused()

    async def close(self, timeout_s: float) -> None:
        """Ends the connection; a request being answered is given `timeout_s`, then cancelled."""
        self._is_closing = True
        task = self._task
        if task is not None and self.request is not None:
            self.request.content.set_exception(asyncio.CancelledError())
            await asyncio.wait([task], timeout=timeout_s)
        if task is not None:
            task.cancel()
        if self.transport is not None:
            self.transport.close()

    def sweep(self, now: float, deadlines: Deadlines) -> None:
        """Closes the connection if a deadline has passed; called once a second."""
        transport = self.transport
        if transport is None:
            return
        request = self.request
        if self._reads_nothing(transport, now, deadlines.write_s):
            transport.abort()
        elif self._is_writing_paused:
            return
        elif request is None:
            if self.head_since is not None:
                if now - self.head_since > deadlines.header_s:
                    transport.abort()
            elif now - self.idle_since > deadlines.idle_s:
                transport.close()
        elif request.body_since is not None and now - request.body_since > deadlines.body_s:
            request.body_since = None
            request.content.set_exception(TimeoutError("the body stalled"))

    def _reads_nothing(self, transport: asyncio.Transport, now: float, limit_s: float) -> bool:
        waiting = transport.get_write_buffer_size()
        if waiting == 0 or waiting < self.stalled_bytes or self.stalled_since is None:
            self.stalled_since = now if waiting else None
        self.stalled_bytes = waiting
        return self.stalled_since is not None and now - self.stalled_since > limit_s
