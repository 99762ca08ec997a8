"""A plain HTTP client on one socket per request: nothing is retried, reused or decoded, and a
caller may leave at any moment."""

from __future__ import annotations

import http.client
import json
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from typing import Any


@dataclass
class Answer:
    status: int
    headers: Message
    """Names are compared without case; `headers[name]` is None where there is none."""
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode()

    def json(self) -> Any:
        return json.loads(self.content)


class Open:
    """An answer that is being read."""

    def __init__(self, connection: http.client.HTTPConnection, peer: socket.socket) -> None:
        response = connection.getresponse()
        self._connection = connection
        self._response = response
        self._socket = peer
        self.status = response.status
        self.headers: Message = response.headers

    def read_some(self) -> bytes:
        """What has come; b"" at the end. Raises `http.client.IncompleteRead` when the body breaks
        off."""
        return self._response.read1(65536)

    def __iter__(self) -> Iterator[bytes]:
        while data := self.read_some():
            yield data

    def read_until(self, text: bytes) -> bytes:
        """Reads until `text` has come, or to the end."""
        data = b""
        while text not in data and (part := self.read_some()):
            data += part
        return data

    def read(self) -> bytes:
        return b"".join(self)

    def reset(self) -> None:
        """Leaves at once, with a reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self._response.close()
        self._connection.close()
        self._socket.close()


class Client:
    def __init__(self, address: str, timeout_s: float = 30.0) -> None:
        self._address = address
        self._timeout_s = timeout_s

    def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        with self.open(method, path, body, headers) as answer:
            return Answer(answer.status, answer.headers, answer.read())

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.request("GET", path, None, headers)

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        return self.request("POST", path, body, headers)

    @contextmanager
    def open(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[Open]:
        """`body`: bytes as they are, anything else as JSON."""
        connection = http.client.HTTPConnection(self._address, timeout=self._timeout_s)
        sent = {name.lower(): value for name, value in (headers or {}).items()}
        if body is not None:
            sent.setdefault("content-type", "application/json")
        data = (
            body
            if isinstance(body, bytes) or body is None
            else json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
        )
        try:
            connection.connect()
            peer = (
                connection.sock
            )  # getresponse() forgets the socket where the answer ends the connection
            connection.request(method, path, data, sent)
            answer = Open(connection, peer)
            try:
                yield answer
            finally:
                answer.close()
        finally:
            connection.close()

    def raw(self, data: bytes, *, limit: int = 1 << 20) -> bytes:
        """Sends bytes as they are and reads until the peer closes or nothing comes for a second."""
        host, port = self._address.split(":")
        with socket.create_connection((host, int(port)), timeout=self._timeout_s) as connection:
            connection.sendall(data)
            connection.settimeout(1.0)
            received = b""
            try:
                while len(received) < limit and (part := connection.recv(65536)):
                    received += part
            except (TimeoutError, ConnectionResetError):
                pass
            return received


def post(path: str, body: Any) -> bytes:
    """A whole request as bytes, for tests that hold the socket themselves."""
    data = json.dumps(body).encode()
    return (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: "
        f"application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    ).encode() + data
