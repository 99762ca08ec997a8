"""Reads a request's body within the limit, before and after inflation. Inflation stops at the
limit."""

from __future__ import annotations

import zlib

from aiohttp.streams import StreamReader

from ferrule.errors import Failure
from ferrule.http.request import Request

CONTENT_CODINGS = ("gzip", "deflate")


async def read(request: Request, limit_bytes: int) -> bytes:
    """The whole body, inflated. Raises Failure 413, 415, 400 or 408."""
    coding = request.headers.get("content-encoding")
    if coding is not None:
        coding = _parse_coding(coding.strip().lower())
    raw = request.take_body() or await _receive(request, limit_bytes)
    if len(raw) > limit_bytes:
        raise _too_large(limit_bytes)
    return raw if coding is None else _inflate(raw, coding, limit_bytes)


def _parse_coding(coding: str) -> str | None:
    if coding in ("", "identity"):
        return None
    if coding not in CONTENT_CODINGS:
        raise Failure(
            415,
            f"content-encoding: {coding[:40]!r} is not supported; send the body as it is, or "
            f"coded as gzip or deflate",
        )
    return coding


async def _receive(request: Request, limit_bytes: int) -> bytes:
    """Waits for the body. One whose announced length is over the limit is refused at once."""
    promised = request.headers.get("content-length")
    if promised is not None and int(promised) > limit_bytes:
        raise _too_large(limit_bytes)
    transport = request.client.transport
    if request.headers.get("expect", "").lower() == "100-continue" and transport is not None:
        transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.body_since = request.received_at
    try:
        return await _collect(request.content, limit_bytes)
    except TimeoutError as stalled:
        raise Failure(
            408, "The request's body did not arrive in time.", closes_connection=True
        ) from stalled
    finally:
        request.body_since = None


async def _collect(content: StreamReader, limit_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        chunk = await content.readany()
        if not chunk:
            return b"".join(chunks)
        size += len(chunk)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        chunks.append(chunk)


def _inflate(raw: bytes, coding: str, limit_bytes: int) -> bytes:
    windows = (
        (31,) if coding == "gzip" else (15, -15)
    )  # deflate comes with and without the zlib header
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
    return Failure(
        413,
        f"The request is larger than {limit_bytes // (1 << 20)} MB.",
        closes_connection=True,
    )
