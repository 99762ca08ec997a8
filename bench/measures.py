"""What is measured and how a run's report becomes figures. Each measurement takes one proxy; the
rounds are the caller's.

lockstep   the next token of a stream is sent when the client has the last one: the proxy is always
busy, so its CPU per token is its cost requests   one-token requests back to back on 64 connections,
short bodies; `big`: the 185 kB body of an agent on 16 paced      every stream gets 20 tokens a
second and is followed by another: latency as users have it, and whether the proxy keeps up
"""

from collections.abc import Callable, Iterator

import msgspec

import bodies
from figures import Row, figure
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
# A slow proxy takes more than twenty seconds only to open 1,000 streams: it is not given so many.
_MOST_STREAMS_SLOW = 128


class Gathered(msgspec.Struct):
    """All rounds of one proxy in one measurement, as they come in."""

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
            {name: figure(values) for name, values in self.values.items()},
            self.errors,
            note,
        )


class Measurement(msgspec.Struct, frozen=True):
    """`group`: the field of Results its rows go to. `run(rig, proxy, streams, slow)` makes one
    round of it."""

    group: str
    streams: int
    run: Callable[[Rig, Proxy, int, bool], tuple[Report, dict[str, float]]]
    slow_too: bool = True


def warm(rig: Rig, proxy: Proxy) -> None:
    """Opens connections and fills caches; what it costs is nobody's figure."""
    rig.order(
        proxy, mode="requests", body=bodies.short(proxy.path), streams=4, tokens=1, seconds=0.5
    )


def _in_lockstep(
    rig: Rig, proxy: Proxy, streams: int, slow: bool
) -> tuple[Report, dict[str, float]]:
    tokens = (_LOCKSTEP_TOKENS_SLOW if slow else _LOCKSTEP_TOKENS)[streams]
    report = rig.order(
        proxy, mode="lockstep", body=bodies.short(proxy.path), streams=streams, tokens=tokens
    )
    figures = {
        "round_trip_p50_us": report.token_latency_us.p50,
        "round_trip_p99_us": report.token_latency_us.p99,
    }
    if proxy.pid and report.tokens:
        per_token = report.cpu_us / report.tokens
        figures |= {"us_per_token": per_token, "tokens_per_s_per_core": 1e6 / per_token}
        # Later an allocator still has what it once took: only the first time says what so many
        # streams need.
        if streams > proxy.most_streams:
            figures["kb_per_stream"] = (report.rss_streaming_kb - proxy.idle_kb) / streams
            proxy.most_streams = streams
    return report, figures


def _short_requests(
    rig: Rig, proxy: Proxy, streams: int, slow: bool
) -> tuple[Report, dict[str, float]]:
    return _requests(rig, proxy, streams, bodies.short(proxy.path), slow)


def _big_requests(
    rig: Rig, proxy: Proxy, streams: int, slow: bool
) -> tuple[Report, dict[str, float]]:
    return _requests(rig, proxy, streams, bodies.agent(proxy.path, BIG_KB), slow)


def _requests(
    rig: Rig, proxy: Proxy, streams: int, body: str, slow: bool
) -> tuple[Report, dict[str, float]]:
    # A request of a slow proxy takes a good part of a second among so many: it needs longer for as
    # true an average.
    seconds, warm_seconds = (5.0, 2.0) if slow else (1.5, 0.3)
    report = rig.order(
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


def _paced(rig: Rig, proxy: Proxy, streams: int, _slow: bool) -> tuple[Report, dict[str, float]]:
    length_s = _PACED_TOKENS * _PACED_INTERVAL_MS / 1000
    report = rig.order(
        proxy,
        mode="paced",
        body=bodies.short(proxy.path),
        streams=streams,
        tokens=_PACED_TOKENS,
        interval_ms=_PACED_INTERVAL_MS,
        seconds=_PACED_SECONDS,
        warm_seconds=length_s + 0.1,
    )
    # A stream rests for one interval between two replies.
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


def plan() -> Iterator[Measurement]:
    for streams in _LOCKSTEP_TOKENS:
        yield Measurement("lockstep", streams, _in_lockstep, streams <= _MOST_STREAMS_SLOW)
    yield Measurement("requests", 64, _short_requests)
    yield Measurement("big_requests", 16, _big_requests)
    for streams in (16, 128, 1000):
        yield Measurement("paced", streams, _paced, streams <= _MOST_STREAMS_SLOW)


def scaling(rig: Rig, proxy: Proxy, streams: int) -> tuple[Report, dict[str, float]]:
    """Tokens per second of CPU that the busiest process spends: what limits a proxy of several
    workers, each with a core of its own.

    Paced, and with as many streams per worker whatever their number, so that each token wakes a
    worker as often. Wall-clock throughput would say nothing: the mock takes a core for itself, and
    there are as few as two.
    """
    report, figures = _paced(rig, proxy, streams, _slow=False)
    busiest = max(report.cpu_us_by_pid.values(), default=0.0)
    if not busiest:
        return report, {}
    return report, {
        "tokens_per_s": report.tokens / busiest * 1e6,
        "us_per_token": report.cpu_us / max(report.tokens, 1),
        **figures,
    }
