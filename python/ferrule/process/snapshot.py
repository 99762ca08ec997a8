"""What a worker reports of itself, and its frame on the socket to the supervisor: a length of four
bytes, then msgpack."""

from __future__ import annotations

import msgspec

from ferrule.telemetry.metrics import Family
from ferrule.telemetry.status import ConfigView, PoolView, WorkerView

LENGTH_BYTES = 4
"""The frame's length, big-endian, without itself."""


class Snapshot(msgspec.Struct):
    """One worker's state and counts at one moment."""

    worker: WorkerView
    pools: list[PoolView]
    families: list[Family]
    is_ready: bool
    is_draining: bool
    reason: str | None
    config: ConfigView | None = None


_encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Snapshot).decode


def frame(snapshot: Snapshot) -> bytes:
    body = _encode(snapshot)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body
