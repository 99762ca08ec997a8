"""Keep-alive connections to one backend.

uvicorn closes idle connections after 5 s, so none is kept longer than 3 s. If the backend closes
one just as it is picked, the caller retries on a fresh connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from time import monotonic
from urllib.parse import urlsplit

from ferrule._core import Poller, UpstreamConnection

KEEP_IDLE_S = 3.0


class ConnectFailed(Exception):
    """The backend could not be reached. The text says why, and never names the address."""


class BackendConnections:
    """Connections to one backend. `url` may have a path, which is prefixed to every route;
    `authorization` is the header's value."""

    def __init__(
        self, url: str, authorization: str | None, connect_s: float, poller: Poller
    ) -> None:
        parts = urlsplit(url)
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.base_path = parts.path.rstrip("/")
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.authorization = authorization
        self.connect_s = connect_s
        self._poller = poller
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"host: {host}:{self.port}" if parts.port else f"host: {host}",
            "content-type: application/json",
            "accept-encoding: identity",
        ]
        if authorization is not None:
            lines.append(f"authorization: {authorization}")
        self._headers = "\r\n".join(lines)
        self._origin = f"{parts.scheme}://{host}:{self.port}"
        self.control_headers = {
            "content-type": "application/json",
            **({"authorization": authorization} if authorization else {}),
        }
        """For control requests: probes, lists of models, counts."""
        self._idle: deque[UpstreamConnection] = deque()
        self._is_closed = False

    def request_head(self, path: str, length: int, extra: str = "") -> bytes:
        """The head of a POST with a body of `length` bytes; `extra` holds whole header lines, each
        with its line end."""
        return (
            f"POST {self.base_path}{path} HTTP/1.1\r\n{self._headers}\r\n{extra}content-length: "
            f"{length}\r\n\r\n"
        ).encode("latin-1")

    def url(self, path: str) -> str:
        return f"{self._origin}{self.base_path}{path}"

    def take_idle(self) -> UpstreamConnection | None:
        """An idle connection that is fresh enough, or None. One that has yet to read the end of its
        last response's framing stays for later."""
        for _ in range(len(self._idle)):
            connection = self._idle.pop()
            if not connection.is_open or monotonic() - connection.idle_since >= KEEP_IDLE_S:
                connection.close()
            elif connection.is_reusable:
                return connection
            else:
                self._idle.appendleft(connection)
        return None

    async def connect(self) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.connect_s):
                _, connection = await loop.create_connection(  # type: ignore[type-var]  # a protocol by its methods, not its ancestry
                    self._make_protocol,
                    self.host,
                    self.port,
                    ssl=self.tls,
                    server_hostname=self.host if self.tls else None,
                )
        except TimeoutError as late:
            raise ConnectFailed("the backend did not accept a connection in time") from late
        except ssl.SSLError as wrong:
            raise ConnectFailed("the backend's TLS is not valid") from wrong
        except OSError as refused:
            raise ConnectFailed("the backend could not be reached") from refused
        return connection

    def _make_protocol(self) -> UpstreamConnection:
        """TLS is decrypted by the transport; a plain socket is read by the poller."""
        return UpstreamConnection() if self.tls else UpstreamConnection(self._poller)

    def give_back(self, connection: UpstreamConnection) -> None:
        """Keeps a connection for the next request, unless it is closed."""
        if connection.is_open and not self._is_closed:
            self._idle.append(connection)
        else:
            connection.close()

    def sweep(self, now: float) -> None:
        """Closes what was idle for too long; called once a second."""
        while self._idle and (
            now - self._idle[0].idle_since > KEEP_IDLE_S or not self._idle[0].is_open
        ):
            self._idle.popleft().close()

    def close(self) -> None:
        """Closes idle connections now, those in use when they are given back."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()
