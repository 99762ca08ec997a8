"""A client's deadlines, by a clock of the test's; and who is told that the client's transport is
full."""

from __future__ import annotations

import asyncio
import gc
import inspect
import re
from time import monotonic

import pytest
from aiohttp import StreamReader
from tests.app_state import until
from tests.http.serving import Peer, Serving, post, serving

from ferrule.http import connection as connection_module
from ferrule.http.connection import Connection
from ferrule.http.request import Request
from ferrule.http.response import Response, StreamedResponse


async def connected(server: Serving) -> tuple[Peer, Connection]:
    peer = await server.connect()
    await until(lambda: server.server.connections)
    connection = next(iter(server.server.connections))
    assert isinstance(connection, Connection)
    return peer, connection


async def test_a_half_sent_head_is_cut() -> None:
    async with serving() as server:
        peer, connection = await connected(server)
        peer.send(b"POST / HTTP/1.1\r\nhost")
        await until(lambda: connection.head_since is not None)
        server.server.sweep(monotonic() + 14)
        assert connection.transport is not None
        server.server.sweep(monotonic() + 16)
        assert await peer.is_cut()


async def test_a_stalled_body_is_answered_with_408_and_cut() -> None:
    async with serving() as server:
        peer, connection = await connected(server)
        peer.send(post(b"1234567890")[:-5])
        await until(lambda: connection.request and connection.request.body_since is not None)
        server.server.sweep(monotonic() + 29)
        peer.send(b"6")
        await until(lambda: connection.request and connection.request.body_bytes > 0)
        server.server.sweep(monotonic() + 31)
        assert (await peer.reply()).status == 408
        assert await peer.is_cut()


async def test_a_body_that_gets_on_has_its_deadline_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "BODY_PROGRESS_BYTES", 4)
    async with serving() as server:
        peer, connection = await connected(server)
        peer.send(post(b"1234567890")[:-8])
        await until(lambda: connection.request and connection.request.body_since is not None)
        connection.request.body_since = 0.0
        peer.send(b"345")
        await until(lambda: connection.request and connection.request.body_bytes == 3)
        assert connection.request.body_since == 0.0
        peer.send(b"6")
        await until(lambda: connection.request and connection.request.body_since != 0.0)
        server.server.sweep(monotonic() + 29)
        peer.send(b"7890")
        assert (await peer.reply()).status == 200


async def test_an_idle_connection_is_closed_and_a_used_one_is_not() -> None:
    async with serving() as server:
        peer, _ = await connected(server)
        server.server.sweep(monotonic() + 89)
        peer.send(post(b"x"))
        assert (await peer.reply()).status == 200
        server.server.sweep(monotonic() + 89)
        peer.send(post(b"x"))
        assert (await peer.reply()).status == 200
        server.server.sweep(monotonic() + 91)
        assert await peer.is_cut()


async def test_a_request_under_way_has_no_idle_deadline() -> None:
    gate = asyncio.Event()

    async def serve(request: Request) -> Response | StreamedResponse:
        await gate.wait()
        return Response(200, b"{}")

    async with serving(serve) as server:
        peer, _ = await connected(server)
        peer.send(post(b""))
        await until(lambda: next(iter(server.server.connections)).request is not None)
        server.server.sweep(monotonic() + 3600)
        gate.set()
        assert (await peer.reply()).status == 200


class Listener:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def client_paused(self) -> None:
        self.heard.append("paused")

    def client_resumed(self) -> None:
        self.heard.append("resumed")

    def client_lost(self) -> None:
        self.heard.append("lost")


async def test_the_writer_hears_of_a_full_transport_and_one_that_reads_nothing_is_cut() -> None:
    writer, gate = Listener(), asyncio.Event()

    async def serve(request: Request) -> Response | StreamedResponse:
        request.client.attach(writer)
        assert request.client.transport is not None
        request.client.transport.write(bytes(16 << 20))
        await gate.wait()
        return StreamedResponse()

    async with serving(serve) as server:
        peer, _ = await connected(server)
        peer.send(post(b""))
        await until(lambda: writer.heard == ["paused"])
        begin = monotonic()
        server.server.sweep(begin)
        server.server.sweep(begin + 59)
        assert writer.heard == ["paused"]
        server.server.sweep(begin + 61)
        await until(lambda: writer.heard == ["paused", "lost"])
        gate.set()


async def test_a_client_that_reads_on_is_heard_of_too() -> None:
    writer, gate = Listener(), asyncio.Event()

    async def serve(request: Request) -> Response | StreamedResponse:
        request.client.attach(writer)
        assert request.client.transport is not None
        request.client.transport.write(bytes(16 << 20))
        await gate.wait()
        return StreamedResponse()

    async with serving(serve) as server:
        peer, _ = await connected(server)
        peer.send(post(b""))
        await until(lambda: writer.heard == ["paused"])
        await peer.reader.readexactly(16 << 20)
        await until(lambda: writer.heard == ["paused", "resumed"])
        gate.set()


async def test_a_writer_that_begins_behind_a_full_transport_is_held_from_the_start() -> None:
    writer, gate = Listener(), asyncio.Event()

    async def serve(request: Request) -> Response | StreamedResponse:
        assert request.client.transport is not None
        request.client.transport.write(bytes(16 << 20))
        request.client.attach(writer)
        await gate.wait()
        return StreamedResponse()

    async with serving(serve) as server:
        peer, _ = await connected(server)
        peer.send(post(b""))
        await until(lambda: writer.heard == ["paused"])
        await peer.reader.readexactly(16 << 20)
        await until(lambda: writer.heard == ["paused", "resumed"])
        gate.set()


GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /",
        post(b"12345"),
        post(b"12345")[:-2],
        post(b"") + GET * 5,
        post(b"") + post(b"12345") * 5,
        post(b"") + post(b"12345")[:-2],
        post(b"") + b"\0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
    ],
    ids=[
        "nothing", "part of a head", "a request", "part of a body", "requests behind it",
        "bodies behind it", "part of a body behind it", "nonsense behind it", "a bad chunk",
    ],
)  # fmt: skip
async def test_a_lost_connection_is_freed_without_the_collector(sent: bytes) -> None:
    async def serve(request: Request) -> Response:
        await asyncio.Event().wait()
        raise AssertionError

    def connections() -> int:
        return sum(type(each) is Connection for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        async with serving(serve) as server:
            peer = await server.connect()
            await until(lambda: server.server.connections)
            peer.send(sent)
            await asyncio.sleep(0.05)
            peer.writer.close()
            await until(lambda: not server.server.connections)
            await until(lambda: connections() == 0)
    finally:
        gc.enable()


async def test_what_the_parser_refuses_is_said_in_the_envelope() -> None:
    async with serving() as server:
        peer, _ = await connected(server)
        peer.send(
            b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        reply = await peer.reply()
        assert reply.status == 400
        assert b'"type":"error"' in reply.body
        assert await peer.is_cut()


def test_the_parser_asks_no_more_of_a_protocol_than_a_connection_gives() -> None:
    """aiohttp's `StreamReader` takes a connection for its own `BaseProtocol`; a new version may use
    more of it."""
    used = set(re.findall(r"self\._protocol\.(\w+)", inspect.getsource(StreamReader)))
    assert used == {"connected", "pause_reading", "resume_reading"}
    assert all(hasattr(Connection, name) for name in used)
