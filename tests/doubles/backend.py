"""A backend that plays what a test wrote down, byte for byte, and keeps what it was sent.

Raw sockets: framing, resets and silences are the script's. Probe routes answer as a healthy vLLM
does unless overridden.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.doubles.frames import Canned
from tests.doubles.loop_thread import LoopThread

REASONS = {
    200: "OK",
    204: "No Content",
    400: "Bad Request",
    404: "Not Found",
    429: "Too Many Requests",
    500: "Internal Server Error",
}


@dataclass(frozen=True)
class Pause:
    seconds: float


class Reset:
    """The connection is reset (RST)."""


class Close:
    """The connection is closed without the end of the body."""


class Hold:
    """Nothing more happens until the peer goes away or the test calls `release`."""

    def __init__(self) -> None:
        self._released = threading.Event()

    def release(self) -> None:
        self._released.set()

    @property
    def is_released(self) -> bool:
        return self._released.is_set()


Step = bytes | Pause | Reset | Close | Hold


@dataclass
class Reply:
    """`framing`: chunked (each bytes step is one HTTP chunk), length (`content_length` overrides
    the true one) or close."""

    steps: Sequence[Step] = ()
    status: int = 200
    headers: Sequence[tuple[str, str]] = (("content-type", "text/event-stream; charset=utf-8"),)
    framing: str = "chunked"
    content_length: int | None = None
    sends_head: bool = True
    ends_body: bool = True


@dataclass
class Seen:
    """One request as it came."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int
    at: float
    closed_at: float | None = None
    closed: threading.Event = field(default_factory=threading.Event)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Play = Reply | Canned | Callable[[Seen], "Reply | Canned"]


def stream(*steps: Step, **kwargs: Any) -> Reply:
    return Reply(steps=steps, **kwargs)


def whole(value: Any, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Reply:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Reply(
        (body,), status, [("content-type", "application/json"), *headers], framing="length"
    )


def refusal(
    status: int,
    message: str = "no",
    headers: Sequence[tuple[str, str]] = (),
    kind: str = "InternalServerError",
) -> Reply:
    return whole(
        {"error": {"message": message, "type": kind, "param": None, "code": status}},
        status,
        headers,
    )


OVERLAP_S = 0.02
"""Requests that are under way together for so long count as parallel: one that has ended is counted
out a moment after its last byte."""


class ScriptedBackend:
    """`play(a, b, …)`: the first chat request gets a, the next b, …; the last one stays. Safe to
    call from any thread."""

    def __init__(
        self, threads: LoopThread, *, model: str = "m", max_model_len: int = 32768
    ) -> None:
        self._threads = threads
        self.model = model
        self.max_model_len = max_model_len
        self.token_count = 77
        self.keep_alive_s: float | None = None
        self.requests: list[Seen] = []
        """Chat requests."""
        self.others: list[Seen] = []
        self.routes: dict[tuple[str, str], Play] = {}
        self.prefix = ""
        """A path in front of every route."""
        self.inflight = self.most_inflight = 0
        self.connections = 0
        self.open_connections: set[_Connection] = set()
        self._plays: list[Play] = [Canned("Hello.")]
        self._lock = threading.Lock()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    def start(self) -> None:
        """Listens, after a `stop` on the same port again."""
        self._server = self._threads.run(self._listen())
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Refuses new connections and resets those there are."""
        self._threads.run(self._end())

    def reset(self) -> None:
        self.play(Canned("Hello."))
        self.requests.clear()
        self.others.clear()
        self.routes.clear()
        self.token_count = 77
        self.keep_alive_s = None
        self.most_inflight = 0

    def note_inflight(self) -> None:
        self.most_inflight = max(self.most_inflight, self.inflight)

    def play(self, *plays: Play) -> None:
        with self._lock:
            self._plays = list(plays)

    @property
    def last(self) -> Seen:
        return self.requests[-1]

    def wait_for_requests(self, count: int, timeout_s: float = 5.0) -> None:
        wait_until(
            lambda: len(self.requests) >= count,
            timeout_s,
            f"{count} requests at the backend, saw {len(self.requests)}",
        )

    # In the loop's thread

    async def _listen(self) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            lambda: _Connection(self), "127.0.0.1", self.port, backlog=1024
        )

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self.open_connections):
            connection.reset()

    def choose(self, seen: Seen) -> Reply:
        path = seen.target.split("?")[0]
        if not path.startswith(self.prefix):
            return whole({"detail": "Not Found"}, 404)
        path = path.removeprefix(self.prefix)
        is_chat = path == "/v1/chat/completions"
        (self.requests if is_chat else self.others).append(seen)
        override = self.routes.get((seen.method, path))
        if override is not None:
            return _as_reply(override, seen)
        if is_chat:
            with self._lock:
                play = self._plays.pop(0) if len(self._plays) > 1 else self._plays[0]
            return _as_reply(play, seen)
        return self._probe(path)

    def _probe(self, path: str) -> Reply:
        match path:
            case "/v1/models":
                entry = {
                    "id": self.model,
                    "object": "model",
                    "created": 1,
                    "owned_by": "vllm",
                    "max_model_len": self.max_model_len,
                }
                return whole({"object": "list", "data": [entry]})
            case "/version":
                return whole({"version": "0.33.0"})
            case "/health":
                return whole(b"")
            case "/tokenize":
                return whole(
                    {"count": self.token_count, "max_model_len": self.max_model_len, "tokens": []}
                )
            case _:
                return whole({"detail": "Not Found"}, 404)


def _as_reply(play: Play, seen: Seen) -> Reply:
    if callable(play):
        return _as_reply(play(seen), seen)
    if isinstance(play, Canned):
        return stream(*play.frames()) if seen.json.get("stream") else whole(play.whole())
    return play


class _Connection(asyncio.Protocol):
    def __init__(self, backend: ScriptedBackend) -> None:
        self._backend = backend
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._seen: Seen | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._room = asyncio.Event()
        self._room.set()
        self.gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._backend.connections += 1
        self._number = self._backend.connections
        self._backend.open_connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._task is None or self._task.done():
            self._next()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self._room.set()
        self._backend.open_connections.discard(self)
        if self._seen is not None and self._seen.closed_at is None:
            self._seen.closed_at = time.monotonic()
            self._seen.closed.set()

    def reset(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _next(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        parsed = _parse(self._buffer, self._number)
        if parsed is not None:
            self._seen, self._buffer = parsed
            self._task = asyncio.get_running_loop().create_task(self._answer(self._seen))

    async def _answer(self, seen: Seen) -> None:
        backend = self._backend
        reply = backend.choose(seen)
        backend.inflight += 1
        asyncio.get_running_loop().call_later(OVERLAP_S, backend.note_inflight)
        try:
            finished = await self._play(reply)
        finally:
            backend.inflight -= 1
        if not finished or self.gone.is_set() or self._transport is None:
            return
        if reply.framing == "close":
            self._transport.close()
            return
        if backend.keep_alive_s is not None:
            self._idle = asyncio.get_running_loop().call_later(
                backend.keep_alive_s, self._transport.close
            )
        self._task = None
        self._next()

    async def _play(self, reply: Reply) -> bool:
        """False when the connection has ended before the body."""
        assert self._transport is not None
        if reply.sends_head:
            self._transport.write(_head(reply))
        for step in reply.steps:
            if self.gone.is_set():
                return False
            match step:
                case bytes():
                    self._transport.write(_framed(step, reply.framing))
                    await self._room.wait()
                case Pause(seconds):
                    await self._sleep(seconds)
                case Hold():
                    while not step.is_released and not self.gone.is_set():
                        await self._sleep(0.02)
                case Reset():
                    await asyncio.sleep(0.02)  # what was written before must be on the wire
                    self.reset()
                    return False
                case Close():
                    self._transport.close()
                    return False
        if reply.framing == "chunked" and reply.ends_body:
            self._transport.write(b"0\r\n\r\n")
        return True

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.gone.wait()
        except TimeoutError:
            pass


def _head(reply: Reply) -> bytes:
    lines = [
        f"HTTP/1.1 {reply.status} {REASONS.get(reply.status, 'Status')}",
        *(f"{name}: {value}" for name, value in reply.headers),
    ]
    if reply.framing == "chunked":
        lines.append("transfer-encoding: chunked")
    elif reply.framing == "length" and reply.status != 204:
        actual = sum(len(step) for step in reply.steps if isinstance(step, bytes))
        lines.append(
            f"content-length: {actual if reply.content_length is None else reply.content_length}"
        )
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _framed(data: bytes, framing: str) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data) if framing == "chunked" and data else data


def _parse(buffer: bytes, connection: int) -> tuple[Seen, bytes] | None:
    head, separator, rest = buffer.partition(b"\r\n\r\n")
    if not separator:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = [
        (name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines)
    ]
    seen = Seen(method, target, headers, b"", connection, time.monotonic())
    if (seen.header("transfer-encoding") or "").lower() == "chunked":
        unchunked = _unchunk(rest)
        if unchunked is None:
            return None
        seen.body, rest = unchunked
        return seen, rest
    length = int(seen.header("content-length") or 0)
    if len(rest) < length:
        return None
    seen.body, rest = rest[:length], rest[length:]
    return seen, rest


def _unchunk(data: bytes) -> tuple[bytes, bytes] | None:
    body = b""
    while True:
        size, separator, data = data.partition(b"\r\n")
        if not separator:
            return None
        length = int(size, 16)
        if len(data) < length + 2:
            return None
        body, data = body + data[:length], data[length + 2 :]
        if length == 0:
            return body, data


def wait_until(condition: Callable[[], Any], timeout_s: float, what: str) -> None:
    """Polls for something that another process or thread brings about."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s} s in vain for {what}")
        time.sleep(0.01)
