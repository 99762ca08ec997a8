"""Answers as bytes: one head, one body, one write. The only place that knows which headers an
answer carries."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

from ferrule.http.request import Request

Headers = Iterable[tuple[str, str]]

REASONS = {status.value: status.phrase for status in HTTPStatus} | {
    413: "Request Too Large",
    529: "Overloaded",
}


_EVENT_STREAM = (
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: "
    "no-cache\r\nx-accel-buffering: no\r\n"
)


def head(status: int, headers: Headers) -> bytes:
    """The status line and headers, up to and with the empty line. Values come from us alone, or
    were checked to hold no line break."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def event_stream_head(headers: Headers, *, chunked: bool, keep_alive: bool) -> bytes:
    """The head of a stream of events. Without chunked coding (HTTP/1.0) the end of the connection
    is the end of the stream."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
    framing = "transfer-encoding: chunked\r\n" if chunked else ""
    closing = "" if keep_alive else "connection: close\r\n"
    return f"{_EVENT_STREAM}{lines}{framing}{closing}\r\n".encode("latin-1", "replace")


class Response:
    """A whole answer. `headers` are those beside framing, type and cache."""

    def __init__(
        self,
        status: int,
        body: bytes,
        headers: Headers = (),
        content_type: str = "application/json",
    ) -> None:
        self.status = status
        self.payload = body
        self.extra = headers
        self.type = content_type
        self.close_after = False
        """Set: the connection is not used again (draining, or a body that was not read to its
        end)."""

    def write(self, call: Request) -> bool:
        """To the client; whether the connection can carry another request after it."""
        keeps = call.keeps_alive and not self.close_after
        connection = (
            []
            if keeps and call.takes_chunks
            else [("connection", "keep-alive" if keeps else "close")]
        )
        fixed = [
            ("content-type", self.type),
            ("content-length", str(len(self.payload))),
            ("cache-control", "no-store"),
        ]
        transport = call.transport
        if transport is None:
            raise ConnectionResetError("the client has gone")
        transport.write(
            head(self.status, [*fixed, *self.extra, *connection])
            + (b"" if call.method == "HEAD" else self.payload)
        )
        return keeps


class StreamedResponse:
    """An answer that the connection has written already, head and all."""

    def write(self, call: Request) -> bool:
        return call.outlives_stream
