"""Which headers an answer carries, and when the connection is kept."""

from __future__ import annotations

import pytest
from tests.http.serving import serving

from ferrule.http.request import Request
from ferrule.http.response import Response, StreamedResponse, encode_head, event_stream_head


def test_heads() -> None:
    assert encode_head(200, [("a", "1")]) == b"HTTP/1.1 200 OK\r\na: 1\r\n\r\n"
    assert encode_head(529, []) == b"HTTP/1.1 529 Overloaded\r\n\r\n"
    assert encode_head(499, []) == b"HTTP/1.1 499 Unknown\r\n\r\n"


@pytest.mark.parametrize(
    ("chunked", "keep_alive", "present", "absent"),
    [
        (True, True, b"transfer-encoding: chunked", b"connection: close"),
        (False, False, b"connection: close", b"transfer-encoding"),
    ],
)
def test_heads_of_streams(chunked: bool, keep_alive: bool, present: bytes, absent: bytes) -> None:
    received = event_stream_head("r", [], chunked=chunked, keep_alive=keep_alive)
    for line in (
        b"text/event-stream",
        b"cache-control: no-cache",
        b"x-accel-buffering: no",
        b"request-id: r",
        present,
    ):
        assert line in received
    assert absent not in received


@pytest.mark.parametrize(
    ("request_line", "extra", "connection", "has_body"),
    [
        ("GET / HTTP/1.1", "", None, True),
        ("HEAD / HTTP/1.1", "", None, False),
        ("GET / HTTP/1.1", "connection: close\r\n", "close", True),
        ("GET / HTTP/1.0", "", "close", True),
        ("GET / HTTP/1.0", "connection: keep-alive\r\n", "keep-alive", True),
    ],
)
async def test_whole_answers(
    request_line: str, extra: str, connection: str | None, has_body: bool
) -> None:
    async def serve(request: Request) -> Response | StreamedResponse:
        return Response(200, b"{}", "r")

    async with serving(serve) as server:
        peer = await server.connect()
        peer.send(f"{request_line}\r\nhost: x\r\n{extra}\r\n".encode())
        received = (await peer.reader.readuntil(b"\r\n\r\n")).decode()
        assert "content-length: 2\r\n" in received
        assert "content-type: application/json\r\n" in received
        assert "cache-control: no-store\r\n" in received
        assert "request-id: r\r\n" in received
        assert (
            (f"connection: {connection}\r\n" in received)
            if connection
            else ("connection:" not in received)
        )
        if has_body:
            assert await peer.reader.readexactly(2) == b"{}"
        if connection == "close":
            assert await peer.is_cut()


async def test_an_answer_may_end_its_connection() -> None:
    async def serve(request: Request) -> Response | StreamedResponse:
        return Response(413, b"", close_after=True)

    async with serving(serve) as server:
        peer = await server.connect()
        peer.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await peer.reply()).headers["connection"] == "close"
        assert await peer.is_cut()


async def test_what_was_told_already_is_told_once() -> None:
    async def serve(request: Request) -> Response | StreamedResponse:
        assert request.client.transport is not None
        request.client.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n!")
        return StreamedResponse()

    async with serving(serve) as server:
        peer = await server.connect()
        for _ in range(2):
            peer.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await peer.reply()).body == b"!"
