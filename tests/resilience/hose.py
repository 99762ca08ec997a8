"""A backend without pauses, as a process of its own: one stream of chunks as fast as the socket
takes them.

    python -m tests.resilience.hose PORT MEGABYTES

The frames are made once, so that the hose costs next to nothing and what is measured beside it is
the proxy. A count of bytes sent so far is what GET /sent answers.
"""

from __future__ import annotations

import json
import socket
import sys
import threading

FRAME = {
    "id": "c1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "delta": {"content": "water " * 20}, "finish_reason": None}],
}
PIECE = b"data: " + json.dumps(FRAME, separators=(",", ":")).encode() + b"\n\n"
BLOCK = PIECE * 200
CHUNK = b"%x\r\n%b\r\n" % (len(BLOCK), BLOCK)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = PIECE.replace(b'"finish_reason":null', b'"finish_reason":"stop"') + b"data: [DONE]\n\n"
END = b"%x\r\n%b\r\n0\r\n\r\n" % (len(LAST), LAST)

sent_bytes = 0


def main(port: int, megabytes: int) -> None:
    with socket.create_server(("127.0.0.1", port), backlog=64) as server:
        while True:
            peer, _ = server.accept()
            threading.Thread(target=serve, args=(peer, megabytes << 20), daemon=True).start()


def serve(peer: socket.socket, size: int) -> None:
    with peer:
        try:
            head = peer.recv(65536)
            if head.startswith(b"POST"):
                pour(peer, size)
            else:
                body = b"%d" % sent_bytes if b"/sent" in head else b'{"object":"list","data":[]}'
                peer.sendall(
                    b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
                    % (len(body), body)
                )
        except ConnectionError:
            pass


def pour(peer: socket.socket, size: int) -> None:
    global sent_bytes
    peer.sendall(HEAD)
    poured = 0
    while poured < size:
        peer.sendall(CHUNK)
        poured += len(CHUNK)
        sent_bytes += len(CHUNK)
    peer.sendall(END)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
