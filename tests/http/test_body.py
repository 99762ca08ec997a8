"""Bodies within limits: however they are framed and coded, what is too much is refused when it
passes the limit."""

from __future__ import annotations

import gzip
import zlib

import pytest
from tests.http.serving import LIMIT_BYTES, post, serving

RAW_DEFLATE = zlib.compressobj(wbits=-15)
CODED = {
    "gzip": gzip.compress(b"hello"),
    "deflate": zlib.compress(b"hello"),
    "raw deflate": RAW_DEFLATE.compress(b"hello") + RAW_DEFLATE.flush(),
}
BOMB = gzip.compress(bytes(10_000_000))


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (post(b"hello"), b"hello"),
        (post(b""), b""),
        (post(b"hello", ["content-encoding: identity"]), b"hello"),
        (post(CODED["gzip"], ["content-encoding: GZIP"]), b"hello"),
        (post(CODED["deflate"], ["content-encoding: deflate"]), b"hello"),
        (post(CODED["raw deflate"], ["content-encoding: deflate"]), b"hello"),
        (post(b"x" * LIMIT_BYTES), b"x" * LIMIT_BYTES),
        (
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: "
            b"chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
            b"hello",
        ),
    ],
    ids=["plain", "empty", "identity", "gzip", "deflate", "raw-deflate", "at-the-limit", "chunked"],
)
async def test_read(raw: bytes, body: bytes) -> None:
    async with serving() as server:
        reply = await server.ask(raw)
        assert (reply.status, reply.body) == (200, body)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (post(b"x" * (LIMIT_BYTES + 1)), 413),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n", 413),
        (
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n7d0\r\n"
            + b"x" * 2000
            + b"\r\n0\r\n\r\n",
            413,
        ),
        (post(gzip.compress(bytes(LIMIT_BYTES + 1)), ["content-encoding: gzip"]), 413),
        (post(b"hello", ["content-encoding: br"]), 415),
        (post(b"hello", ["content-encoding: gzip"]), 400),
        (post(CODED["gzip"][:-1], ["content-encoding: gzip"]), 400),
        (post(CODED["gzip"] + b"x", ["content-encoding: gzip"]), 400),
    ],
    ids=["length", "promised", "chunked", "inflated", "coding", "not-gzip", "cut", "more-behind"],
)
async def test_refused(raw: bytes, status: int) -> None:
    async with serving() as server:
        reply = await server.ask(raw)
        assert reply.status == status, reply.body


async def test_a_bomb_is_refused_when_it_passes_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.http.serving.LIMIT_BYTES", 100_000)
    async with serving() as server:
        assert (await server.ask(post(BOMB, ["content-encoding: gzip"]))).status == 413


async def test_pieces_that_come_one_by_one() -> None:
    async with serving() as server:
        peer = await server.connect()
        peer.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n")
        for byte in b"abc":
            peer.send(bytes([byte]))
            await peer.writer.drain()
        assert (await peer.reply()).body == b"abc"


async def test_expect_is_answered_before_the_body() -> None:
    async with serving() as server:
        peer = await server.connect()
        peer.send(
            b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n"
        )
        assert await peer.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        peer.send(b"abc")
        assert (await peer.reply()).body == b"abc"


async def test_what_is_too_large_is_refused_before_it_is_asked_for() -> None:
    async with serving() as server:
        reply = await server.ask(
            b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9999\r\nexpect: 100-continue\r\n\r\n"
        )
        assert reply.status == 413
