"""Streams that wait in a full pool's queue for longer than `ping_after_s`, by the bytes on the
wire."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import pytest
from tests.doubles.backend import Hold, ScriptedBackend, stream
from tests.doubles.frames import Canned, D
from tests.doubles.proxy import REQ, Ferrule, config_for

PINGS = {"/v1/messages": b"event: ping", "/v1/chat/completions": b": ping"}
LAST = {"/v1/messages": b'"message_stop"', "/v1/chat/completions": b"data: [DONE]"}


def read_until(connection: socket.socket, end: bytes) -> bytes:
    connection.settimeout(10)
    received = b""
    while end not in received and (part := connection.recv(65536)):
        received += part
    return received


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("path", list(PINGS))
def test_a_ping_in_the_queue_has_a_complete_head(
    backend: ScriptedBackend, new_proxy: Callable[..., Ferrule], path: str, version: str
) -> None:
    proxy = new_proxy(
        config_for(backend.url, pool={"slots": 1, "max_inflight": 1}, ping_after_s=0.3)
    )
    held = Hold()
    backend.play(stream(D({"content": "a"}), held), Canned("Hi."))
    body = json.dumps(REQ(stream=True)).encode()
    head = f"POST {path} HTTP/{version}\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    with proxy.open_stream():
        backend.wait_for_requests(1)
        host, port = proxy.listen.split(":")
        waiting = socket.create_connection((host, int(port)))
        waiting.sendall(head.encode() + body)
        received = read_until(waiting, PINGS[path])
        first, _, rest = received.partition(b"\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"content-type: text/event-stream" in first
        assert b"request-id: req_" in first
        assert (b"transfer-encoding: chunked" in first) is (version == "1.1")
        assert b"x-ferrule-backend" not in first
        assert PINGS[path] in rest
        assert b"HTTP/1.1" not in rest
    answered = read_until(waiting, LAST[path])
    assert b"Hi." in answered
    assert b"HTTP/1.1" not in answered
    waiting.close()
