"""The measurements, and how the mock's report becomes figures. Each measures one proxy once; the
caller repeats it in rounds.

- lockstep: the mock sends a stream's next token when the client has the last one, so the proxy is
  always busy: the CPU time of a token under saturation.
- requests: one-token requests back to back, with short bodies on 64 connections; big requests: an
  agent's body of 185 kB on 16.
- paced: each stream gets 20 tokens a second, and another follows it: latency as users see it, and
  whether the proxy keeps up.
"""

from collections.abc import Callable, Iterator

import msgspec

import bodies
from figures import Row, make_figure
from rig import Proxy, Report, Rig

BIG_KB = 185
SCALING_STREAMS = 128
"""Per worker."""
_LOCKSTEP_TOKENS = {16: 400, 128: 200, 1000: 60}
_LOCKSTEP_TOKENS_SLOW = {16: 60, 128: 20}
_PACED_TOKENS = 30
_PACED_INTERVAL_MS = 50
_PACED_SECONDS = 2.0
_KEEPS_UP_SHARE = 0.95
# A slow proxy needs over twenty seconds just to open 1,000 streams, so it is not measured there.
_MOST_STREAMS_SLOW = 128


class RoundValues(msgspec.Struct):
    """Collects the rounds of one proxy in one measurement."""

    values: dict[str, list[float]] = {}
    errors: dict[str, int] = {}

    def add(self, report: Report, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            self.values.setdefault(name, []).append(value)
        for kind, count in report.errors.items():
            self.errors[kind] = self.errors.get(kind, 0) + count

    def row(self, proxy: str, streams: int, note: str = "") -> Row:
        return Row(
            proxy,
            streams,
            {name: make_figure(values) for name, values in self.values.items()},
            self.errors,
            note,
        )


class Measurement(msgspec.Struct, frozen=True):
    """`group`: the field of Results for its rows. `run(rig, proxy, streams, slow)` measures one
    round."""

    group: str
    streams: int
    run: Callable[[Rig, Proxy, int, bool], tuple[Report, dict[str, float]]]
    slow_too: bool = True


def warm_up(rig: Rig, proxy: Proxy) -> None:
    """Opens connections and fills caches, unmeasured."""
    rig.measure(
        proxy,
        mode="requests",
        body=bodies.build_short(proxy.path),
        streams=4,
        tokens=1,
        seconds=0.5,
    )


def _measure_lockstep(
    rig: Rig, proxy: Proxy, streams: int, slow: bool
) -> tuple[Report, dict[str, float]]:
    tokens = (_LOCKSTEP_TOKENS_SLOW if slow else _LOCKSTEP_TOKENS)[streams]
    report = rig.measure(
        proxy, mode="lockstep", body=bodies.build_short(proxy.path), streams=streams, tokens=tokens
    )
    figures = {
        "round_trip_p50_us": report.token_latency_us.p50,
        "round_trip_p99_us": report.token_latency_us.p99,
    }
    if proxy.pid and report.tokens:
        per_token = report.cpu_us / report.tokens
        figures |= {"us_per_token": per_token, "tokens_per_s_per_core": 1e6 / per_token}
        # An allocator keeps what it once took, so memory is measured only when the number of
        # streams reaches a new peak.
        if streams > proxy.peak_streams:
            figures["kb_per_stream"] = (report.rss_streaming_kb - proxy.idle_kb) / streams
            proxy.peak_streams = streams
    return report, figures


def _measure_short_requests(
    rig: Rig, proxy: Proxy, streams: int, slow: bool
) -> tuple[Report, dict[str, float]]:
    return _measure_requests(rig, proxy, streams, bodies.build_short(proxy.path), slow)


def _measure_big_requests(
    rig: Rig, proxy: Proxy, streams: int, slow: bool
) -> tuple[Report, dict[str, float]]:
    return _measure_requests(rig, proxy, streams, bodies.build_agent(proxy.path, BIG_KB), slow)


def _measure_requests(
    rig: Rig, proxy: Proxy, streams: int, body: str, slow: bool
) -> tuple[Report, dict[str, float]]:
    # Among so many, a request of a slow proxy takes most of a second; it needs longer for an
    # average as accurate.
    seconds, warm_seconds = (5.0, 2.0) if slow else (1.5, 0.3)
    report = rig.measure(
        proxy,
        mode="requests",
        body=body,
        streams=streams,
        tokens=1,
        seconds=seconds,
        warm_seconds=warm_seconds,
    )
    figures = {"requests_per_s": report.requests / max(report.seconds, 1e-9)}
    if proxy.pid and report.requests:
        figures["us_per_request"] = report.cpu_us / report.requests
    return report, figures


def _measure_paced(
    rig: Rig, proxy: Proxy, streams: int, _slow: bool
) -> tuple[Report, dict[str, float]]:
    length_s = _PACED_TOKENS * _PACED_INTERVAL_MS / 1000
    report = rig.measure(
        proxy,
        mode="paced",
        body=bodies.build_short(proxy.path),
        streams=streams,
        tokens=_PACED_TOKENS,
        interval_ms=_PACED_INTERVAL_MS,
        seconds=_PACED_SECONDS,
        warm_seconds=length_s + 0.1,
    )
    # A stream pauses for one interval between two replies.
    offered = (
        streams * report.seconds * 1000 / _PACED_INTERVAL_MS * _PACED_TOKENS / (_PACED_TOKENS + 1)
    )
    figures = {
        "first_token_p50_us": report.first_token_us.p50,
        "first_token_p99_us": report.first_token_us.p99,
        "token_p50_us": report.token_latency_us.p50,
        "token_p99_us": report.token_latency_us.p99,
        "kept_up": report.tokens / max(offered, 1e-9),
    }
    if proxy.pid and report.seconds:
        figures["cpu_share"] = report.cpu_us / 1e6 / report.seconds
    return report, figures


def keeps_up(row: Row) -> bool:
    return row.figures["kept_up"].median >= _KEEPS_UP_SHARE


def list_measurements() -> Iterator[Measurement]:
    for streams in _LOCKSTEP_TOKENS:
        yield Measurement("lockstep", streams, _measure_lockstep, streams <= _MOST_STREAMS_SLOW)
    yield Measurement("requests", 64, _measure_short_requests)
    yield Measurement("big_requests", 16, _measure_big_requests)
    for streams in (16, 128, 1000):
        yield Measurement("paced", streams, _measure_paced, streams <= _MOST_STREAMS_SLOW)


def measure_scaling(rig: Rig, proxy: Proxy, streams: int) -> tuple[Report, dict[str, float]]:
    """Tokens per second of CPU time of the busiest process, which limits a proxy whose workers have
    a core each.

    Paced, with the same number of streams per worker, so that tokens wake a worker equally often.
    Wall-clock throughput would measure the machine: the mock needs a core, and there may be only
    two.
    """
    report, figures = _measure_paced(rig, proxy, streams, _slow=False)
    busiest = max(report.cpu_us_by_pid.values(), default=0.0)
    if not busiest:
        return report, {}
    return report, {
        "tokens_per_s": report.tokens / busiest * 1e6,
        "us_per_token": report.cpu_us / max(report.tokens, 1),
        **figures,
    }
