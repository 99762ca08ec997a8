"""Clients that want to hold a server up: each opens a connection, misbehaves until it is cut, and
knows how long that took."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

from tests.doubles.client import post
from tests.doubles.proxy import REQ

DRIP_S = 0.4
SMALL_BUFFER_BYTES = 4096


class Attacker:
    """`drips`: what is sent at first, and then one after the other every 0.4 s. `reads`: whether
    answers are read at all."""

    def __init__(self, address: str, drips: Iterator[bytes], *, reads: bool = True) -> None:
        host, port = address.split(":")
        self._address = host, int(port)
        self._drips = drips
        self._reads = reads
        self.lasted_s: float | None = None
        """Until it was cut; None: it was not."""
        self.answer = b""

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as attacker:
            attacker.setblocking(False)
            attacker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
            await loop.sock_connect(attacker, self._address)
            begin = time.monotonic()
            sending = asyncio.create_task(self._send(attacker))
            try:
                await (self._read(attacker) if self._reads else sending)
                self.lasted_s = time.monotonic() - begin
            finally:
                sending.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await sending

    async def _send(self, attacker: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            for drip in self._drips:
                await loop.sock_sendall(attacker, drip)
                await asyncio.sleep(DRIP_S)

    async def _read(self, attacker: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while data := await loop.sock_recv(attacker, 65536):
                self.answer += data


def slow_header() -> Iterator[bytes]:
    yield b"POST /v1/messages HTTP/1.1\r\nhost: x\r\n"
    for n in range(1000):
        yield b"x-%d: y\r\n" % n


def slow_body() -> Iterator[bytes]:
    yield (
        b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-type: "
        b"application/json\r\ncontent-length: 100000\r\n\r\n{"
    )
    while True:
        yield b" "


def slow_chunks() -> Iterator[bytes]:
    yield b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    while True:
        yield b"1\r\n \r\n"


def slow_read() -> Iterator[bytes]:
    """Asks for a long stream, reads nothing of it, and goes on asking."""
    yield post(
        "/v1/messages",
        REQ(
            stream=True,
            max_tokens=4000,
            messages=[{"role": "user", "content": "[[tokens:4000]] long"}],
        ),
    )
    while True:
        yield post("/v1/models", {})


def flood() -> Iterator[bytes]:
    """Thousands of requests whose answers are never read."""
    body = json.dumps({"model": "m", "messages": []}).encode()
    asked = (
        b"POST /v1/messages/count_tokens HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
        % len(body)
        + body
    )
    while True:
        yield asked * 10_000


def idle() -> Iterator[bytes]:
    while True:
        yield b""


@asynccontextmanager
async def attacked(
    address: str, count: int, drips: Callable[[], Iterator[bytes]], *, reads: bool = True
) -> AsyncIterator[list[Attacker]]:
    """While it lasts, so many attackers are at work."""
    attackers = [Attacker(address, drips(), reads=reads) for _ in range(count)]
    work = [asyncio.create_task(attacker.run()) for attacker in attackers]
    try:
        yield attackers
    finally:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
