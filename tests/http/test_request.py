"""Names that a call gives, and what its request allows."""

from __future__ import annotations

import re
from uuid import UUID

import pytest
from tests.http.serving import serving

from ferrule.http.request import Request, message_id
from ferrule.http.response import Response


def test_message_ids_hold_a_uuid_of_version_4() -> None:
    ids = {message_id() for _ in range(100)}
    assert len(ids) == 100
    for one in ids:
        assert one.startswith("msg_")
        assert UUID(one[4:]).version == 4
        assert str(UUID(one[4:])) == one[4:]


@pytest.mark.parametrize(
    ("version", "extra", "wants_close", "keeps", "chunks"),
    [
        ("1.1", "", False, True, True),
        ("1.1", "connection: close\r\n", False, False, True),
        ("1.1", "", True, False, True),
        ("1.0", "", False, False, False),
        ("1.0", "connection: keep-alive\r\n", False, True, False),
    ],
)
async def test_what_the_request_allows(
    version: str, extra: str, wants_close: bool, keeps: bool, chunks: bool
) -> None:
    seen: list[tuple[bool, bool, bool, str, str | None]] = []

    async def serve(request: Request) -> Response:
        request.keeps_alive = request.keeps_alive and not wants_close
        seen.append(
            (
                request.keeps_alive,
                request.takes_chunks,
                request.outlives_stream,
                request.request_id,
                request.headers.get("x-one"),
            )
        )
        return Response(200, b"{}")

    async with serving(serve) as server:
        await server.ask(f"GET / HTTP/{version}\r\nhost: x\r\nX-One: 1\r\n{extra}\r\n".encode())
    ((keeps_alive, takes_chunks, outlives_stream, request_id, header),) = seen
    assert (keeps_alive, takes_chunks, outlives_stream, header) == (
        keeps,
        chunks,
        keeps and chunks,
        "1",
    )
    assert re.fullmatch(r"req_[0-9a-f]{24}", request_id)
