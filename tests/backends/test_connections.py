"""Connections to a backend: how they are addressed, kept and given up, and how trouble is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

import pytest
from tests.doubles.proxy import free_port

from ferrule._core import Poller
from ferrule.backends.connections import KEEP_IDLE_S, BackendConnections, ConnectFailed


@pytest.mark.parametrize(
    ("url", "path", "host"),
    [
        ("http://10.0.0.1:8000", "/v1/models", "10.0.0.1:8000"),
        ("http://vllm", "/v1/models", "vllm"),
        ("http://vllm:8000/tenant/a/", "/tenant/a/v1/models", "vllm:8000"),
        ("http://[fd00::1]:8000", "/v1/models", "[fd00::1]:8000"),
        ("https://vllm/x", "/x/v1/models", "vllm"),
    ],
)
def test_addresses(url: str, path: str, host: str) -> None:
    upstream = BackendConnections(url, "Bearer k", 1.0, Poller())
    head = upstream.request_head("/v1/models", 7, "x-extra: 1\r\n").decode()
    assert head.startswith(f"POST {path} HTTP/1.1\r\nhost: {host}\r\n")
    assert head.endswith("x-extra: 1\r\ncontent-length: 7\r\n\r\n")
    assert "authorization: Bearer k\r\n" in head
    assert upstream.url("/v1/models").endswith(path)
    assert upstream.control_headers["authorization"] == "Bearer k"


def test_without_a_key_no_header_is_sent() -> None:
    upstream = BackendConnections("http://vllm", None, 1.0, Poller())
    assert "authorization" not in upstream.request_head("/", 0).decode()
    assert "authorization" not in upstream.control_headers


@asynccontextmanager
async def listening(upstream_url: str = "http://127.0.0.1:{}") -> AsyncIterator[BackendConnections]:
    """An upstream whose backend accepts connections and says nothing."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    upstream = BackendConnections(
        upstream_url.format(server.sockets[0].getsockname()[1]), None, 0.3, Poller()
    )
    try:
        yield upstream
    finally:
        upstream.close()
        server.close()
        for writer in writers:
            writer.close()


async def test_a_connection_is_kept_for_a_moment() -> None:
    async with listening() as upstream:
        connection = await upstream.connect()
        upstream.give_back(connection)
        assert upstream.take_idle() is connection
        assert upstream.take_idle() is None
        upstream.give_back(connection)
        upstream.sweep(monotonic() + KEEP_IDLE_S - 0.5)
        assert connection.is_open
        upstream.sweep(monotonic() + KEEP_IDLE_S + 0.5)
        assert not connection.is_open
        assert upstream.take_idle() is None


async def test_what_is_closed_is_not_kept() -> None:
    async with listening() as upstream:
        connection = await upstream.connect()
        connection.close()
        upstream.give_back(connection)
        assert upstream.take_idle() is None


async def test_the_newest_is_taken_first() -> None:
    async with listening() as upstream:
        first, second = await upstream.connect(), await upstream.connect()
        upstream.give_back(first)
        upstream.give_back(second)
        assert upstream.take_idle() is second


async def test_after_close_nothing_is_kept() -> None:
    async with listening() as upstream:
        lent, idle = await upstream.connect(), await upstream.connect()
        upstream.give_back(idle)
        upstream.close()
        assert not idle.is_open
        upstream.give_back(lent)
        assert not lent.is_open


async def test_trouble_is_named_without_the_address() -> None:
    port = free_port()
    with pytest.raises(ConnectFailed, match=r"^the backend could not be reached$"):
        await BackendConnections(f"http://127.0.0.1:{port}", None, 1.0, Poller()).connect()
    async with listening("https://127.0.0.1:{}") as upstream:
        with pytest.raises(ConnectFailed, match="in time"):
            await upstream.connect()
