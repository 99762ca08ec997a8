"""The port itself: how many connections it takes, what ends a handler, and a port that several
workers share."""

from __future__ import annotations

import asyncio

import aiohttp.http_parser
import pytest
from tests.app_state import until
from tests.http.serving import DEADLINES, echo, post, serving

from ferrule.http.request import Request
from ferrule.http.response import Response
from ferrule.http.server import ParserMissing, Server


async def test_past_the_limit_connections_are_refused() -> None:
    async with serving(max_connections=1) as server:
        first, second = await server.connect(), await server.connect()
        assert await second.is_cut()
        first.send(post(b"x"))
        assert (await first.reply()).status == 200


async def test_a_call_knows_its_route_and_when_it_came() -> None:
    calls: list[Request] = []

    async def serve(request: Request) -> Response:
        calls.append(request)
        return Response(200, b"{}")

    async with serving(serve) as server:
        await server.ask(post(b"", path="/api/v1/models/org%2Fm?x=1"))
    assert [(request.route, request.argument) for request in calls] == [("model", "org/m")]
    assert calls[0].received_at > 0


async def test_a_client_that_leaves_ends_its_handler() -> None:
    ended = asyncio.Event()

    async def serve(request: Request) -> Response:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set()
            raise
        raise AssertionError

    async with serving(serve) as server:
        peer = await server.connect()
        peer.send(post(b""))
        await until(lambda: any(connection.request for connection in server.server.connections))
        peer.writer.transport.abort()
        await asyncio.wait_for(ended.wait(), 5)


async def test_a_head_that_is_too_long_is_refused() -> None:
    async with serving() as server:
        reply = await server.ask(b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n")
        assert reply.status in (400, 414)


async def test_once_closed_nothing_listens() -> None:
    async with serving() as server:
        peer = await server.connect()
        await until(lambda: server.server.connections)
        await server.server.close()
        assert await peer.is_cut()
        with pytest.raises(OSError, match="Connect call failed"):
            await server.connect()


async def test_the_slow_parser_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        aiohttp.http_parser, "HttpRequestParser", aiohttp.http_parser.HttpRequestParserPy
    )
    with pytest.raises(ParserMissing):
        Server(echo, DEADLINES, 1)
