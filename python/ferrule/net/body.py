"""A request's body: read within limits, before and after inflation. A bomb is refused when it passes the limit, not when it has burst."""

from __future__ import annotations

import zlib

from aiohttp.web_request import BaseRequest

from ferrule.errors import Failure
from ferrule.net.connection import Connection

CONTENT_CODINGS = ("gzip", "deflate")


async def read(request: BaseRequest, connection: Connection, limit_bytes: int, now: float) -> bytes:
    """The whole body, inflated. Raises Failure 413, 415, 400 or 408."""
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity", *CONTENT_CODINGS):
        raise Failure(415, f"content-encoding: {coding[:40]!r} is not supported; send the body as it is, or coded as gzip or deflate")
    promised = request.headers.get("content-length")
    if promised is not None and int(promised) > limit_bytes:
        raise _too_large(limit_bytes)
    if request.headers.get("expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    connection.body_since = now
    try:
        raw = await _collect(request, limit_bytes)
    except TimeoutError as stalled:
        raise Failure(408, "The request's body did not arrive in time.", headers={"connection": "close"}) from stalled
    finally:
        connection.body_since = None
    return raw if coding in ("", "identity") else _inflate(raw, coding, limit_bytes)


async def _collect(request: BaseRequest, limit_bytes: int) -> bytes:
    content = request.content
    first = await content.readany()
    if content.is_eof() and not content.total_bytes > len(first):
        if len(first) > limit_bytes:
            raise _too_large(limit_bytes)
        return first
    pieces, size = [first], len(first)
    while True:
        piece = await content.readany()
        if not piece:
            return b"".join(pieces)
        size += len(piece)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        pieces.append(piece)


def _inflate(raw: bytes, coding: str, limit_bytes: int) -> bytes:
    windows = (31,) if coding == "gzip" else (15, -15)  # deflate comes with and without the zlib header
    for window in windows:
        inflater = zlib.decompressobj(window)
        try:
            body = inflater.decompress(raw, limit_bytes + 1)
        except zlib.error:
            continue
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
        if not inflater.eof or inflater.unused_data:
            break
        return body
    raise Failure(400, f"content-encoding: the body is not valid {coding}")


def _too_large(limit_bytes: int) -> Failure:
    return Failure(413, f"The request is larger than {limit_bytes // (1 << 20)} MB.", headers={"connection": "close"})
