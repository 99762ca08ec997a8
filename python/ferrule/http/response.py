"""Responses as data, and the one place that knows which headers they carry."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus

from ferrule.errors import Failure, RateLimit

Headers = Iterable[tuple[str, str]]

REASONS = {status.value: status.phrase for status in HTTPStatus} | {
    413: "Request Too Large",
    529: "Overloaded",
}

_EVENT_STREAM = (
    "HTTP/1.1 200 OK\r\n"
    "content-type: text/event-stream; charset=utf-8\r\n"
    "cache-control: no-cache\r\n"
    "x-accel-buffering: no\r\n"
)


class Response:
    """A whole response. `request_id` is empty where no request could be read. `headers`: those
    beside the request's id, framing, type and cache."""

    __slots__ = ("body", "close_after", "content_type", "headers", "request_id", "status")

    def __init__(
        self,
        status: int,
        body: bytes,
        request_id: str = "",
        headers: Headers = (),
        *,
        content_type: str = "application/json",
        close_after: bool = False,
    ) -> None:
        self.status = status
        self.body = body
        self.request_id = request_id
        self.headers = headers
        self.content_type = content_type
        self.close_after = close_after
        """The connection is not used again: draining, or a body that was not read to its end."""

    def encode(self, *, keep_alive: bool, is_default: bool, with_body: bool) -> bytes:
        """Head and body as they go out. `is_default`: the connection is kept unless the head says
        otherwise (HTTP/1.1). Without `with_body` (HEAD) the length is still that of the body."""
        headers = [
            ("content-type", self.content_type),
            ("content-length", str(len(self.body))),
            ("cache-control", "no-store"),
        ]
        if self.request_id:
            headers.append(("request-id", self.request_id))
        headers.extend(self.headers)
        if not (keep_alive and is_default):
            headers.append(("connection", "keep-alive" if keep_alive else "close"))
        head = encode_head(self.status, headers)
        return head + self.body if with_body else head


class StreamedResponse:
    """A response that was streamed: all of it is written already."""

    __slots__ = ()


STREAMED = StreamedResponse()


def encode_head(status: int, headers: Headers) -> bytes:
    """Status line and headers, up to and with the empty line. Values must hold no line break."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def event_stream_head(
    request_id: str, headers: Headers, *, chunked: bool, keep_alive: bool
) -> bytes:
    """The head of a stream of events. Without chunked coding (HTTP/1.0) the end of the connection
    is the end of the stream."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
    framing = "transfer-encoding: chunked\r\n" if chunked else ""
    closing = "" if keep_alive else "connection: close\r\n"
    head = f"{_EVENT_STREAM}request-id: {request_id}\r\n{lines}{framing}{closing}\r\n"
    return head.encode("latin-1", "replace")


# Headers by what they say


def model_headers(limits: Iterable[RateLimit], dropped: tuple[str, ...]) -> list[tuple[str, str]]:
    """Of a model's answer. `limits`: the key's; `dropped`: parameters that were left out."""
    headers = rate_limit_headers(limits)
    if dropped:
        headers.append(("x-ferrule-dropped", ",".join(dropped)))
    return headers


def backend_headers(name: str, affinity: str) -> list[tuple[str, str]]:
    """`affinity`: home, spill, failover or none."""
    return [("x-ferrule-backend", name), ("x-ferrule-affinity", affinity)]


def failure_headers(failure: Failure) -> list[tuple[str, str]]:
    headers = rate_limit_headers(failure.rate_limits)
    if failure.retry_after_s is not None:
        headers.append(("retry-after", str(failure.retry_after_s)))
    if failure.should_retry is not None:
        # https://github.com/anthropics/anthropic-sdk-python: it wins over the SDK's own rules
        headers.append(("x-should-retry", str(failure.should_retry).lower()))
    if failure.allow:
        headers.append(("allow", ", ".join(failure.allow)))
    return headers


def rate_limit_headers(limits: Iterable[RateLimit]) -> list[tuple[str, str]]:
    headers: list[tuple[str, str]] = []
    for limit in limits:
        prefix = f"anthropic-ratelimit-{limit.name}"
        headers.append((f"{prefix}-limit", str(limit.limit)))
        headers.append((f"{prefix}-remaining", str(limit.remaining)))
        headers.append((f"{prefix}-reset", format_time(limit.resets_at)))
    return headers


@lru_cache(maxsize=512)
def format_time(unix_s: int) -> str:
    """RFC 3339, in UTC: how the Messages API writes a time."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))
