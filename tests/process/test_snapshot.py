"""A snapshot on the socket between a worker and its supervisor."""

from __future__ import annotations

from ferrule.process.snapshot import LENGTH_BYTES, Snapshot, decode, frame
from ferrule.telemetry.metrics import Metrics
from ferrule.telemetry.status import ConfigView, WorkerView


def test_a_frame_is_its_length_and_a_body_that_reads_as_it_was_written() -> None:
    metrics = Metrics()
    metrics.requests.inc("messages", "m", "200")
    config = ConfigView(True, None, "2026-01-01T00:00:00+00:00")
    snapshot = Snapshot(WorkerView(7, 3), [], metrics.families(), False, True, "draining", config)
    framed = frame(snapshot)
    assert int.from_bytes(framed[:LENGTH_BYTES], "big") == len(framed) - LENGTH_BYTES
    assert decode(framed[LENGTH_BYTES:]) == snapshot
