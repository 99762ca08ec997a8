"""The samples of a load run, and their summary: percentiles, goodput under an SLO, errors by kind,
affinity.

Samples are in seconds, summaries in milliseconds. Knows nothing of HTTP or schedules.
"""

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec


class Sample(msgspec.Struct):
    """One turn of one session. `error` is None for a complete reply."""

    session: str
    turn: int
    started_s: float
    ttft_s: float | None = None
    e2e_s: float = 0.0
    gaps_s: list[float] = []
    input_tokens: int = 0
    cache_read_tokens: int = 0
    output_tokens: int = 0
    stop_reason: str | None = None
    backend: str | None = None
    affinity: str | None = None
    error: str | None = None

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first."""
        if self.ttft_s is None or self.output_tokens < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)


class Slo(msgspec.Struct, frozen=True):
    """A reply is good if it is complete and within every limit that is set (milliseconds)."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def holds(self, sample: Sample) -> bool:
        if sample.error is not None or sample.ttft_s is None:
            return False
        limits = (
            (self.ttft_ms, sample.ttft_s),
            (self.tpot_ms, sample.tpot_s),
            (self.e2e_ms, sample.e2e_s),
        )
        return all(
            limit is None or value is None or value * 1000 <= limit for limit, value in limits
        )


class Spread(msgspec.Struct):
    """Milliseconds. `count` 0: nothing was measured, and the other fields are meaningless."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0


class Affinity(msgspec.Struct):
    """Where the turns of sessions went. `returned`: share of turns after a session's first that the
    backend of the turn before served."""

    decisions: dict[str, int]
    turns_by_backend: dict[str, int]
    returned: float | None
    cached_share: float | None
    """Share of input tokens read from the engines' prefix caches; None if no engine reported
    any."""


class Summary(msgspec.Struct):
    requests: int
    completed: int
    errors: dict[str, int]
    seconds: float
    requests_per_s: float
    output_tokens_per_s: float
    input_tokens: int
    output_tokens: int
    ttft_ms: Spread
    itl_ms: Spread
    tpot_ms: Spread
    e2e_ms: Spread
    goodput_per_s: float
    good_share: float
    affinity: Affinity


def compute_spread(values_s: Sequence[float]) -> Spread:
    if not values_s:
        return Spread()
    ordered = sorted(values_s)

    def at(share: float) -> float:
        return round(ordered[round((len(ordered) - 1) * share)] * 1000, 3)

    mean = round(sum(ordered) / len(ordered) * 1000, 3)
    return Spread(
        count=len(ordered),
        mean=mean,
        p50=at(0.5),
        p90=at(0.9),
        p95=at(0.95),
        p99=at(0.99),
        max=at(1.0),
    )


def summarise(samples: Sequence[Sample], seconds: float, slo: Slo) -> Summary:
    whole = [sample for sample in samples if sample.error is None]
    good = sum(slo.holds(sample) for sample in samples)
    span = max(seconds, 1e-9)
    output = sum(sample.output_tokens for sample in samples)
    return Summary(
        requests=len(samples),
        completed=len(whole),
        errors=dict(
            Counter(sample.error for sample in samples if sample.error is not None).most_common()
        ),
        seconds=round(seconds, 3),
        requests_per_s=round(len(whole) / span, 3),
        output_tokens_per_s=round(output / span, 1),
        input_tokens=sum(sample.input_tokens + sample.cache_read_tokens for sample in samples),
        output_tokens=output,
        ttft_ms=compute_spread([sample.ttft_s for sample in whole if sample.ttft_s is not None]),
        itl_ms=compute_spread([gap for sample in whole for gap in sample.gaps_s]),
        tpot_ms=compute_spread([tpot for sample in whole if (tpot := sample.tpot_s) is not None]),
        e2e_ms=compute_spread([sample.e2e_s for sample in whole]),
        goodput_per_s=round(good / span, 3),
        good_share=round(good / len(samples), 4) if samples else 0.0,
        affinity=compute_affinity(samples),
    )


def compute_affinity(samples: Sequence[Sample]) -> Affinity:
    last: dict[str, str] = {}
    later = returned = 0
    for sample in sorted(samples, key=lambda sample: sample.started_s):
        if sample.backend is None:
            continue
        before = last.get(sample.session)
        later += before is not None
        returned += before == sample.backend
        last[sample.session] = sample.backend
    cached = sum(sample.cache_read_tokens for sample in samples)
    taken = sum(sample.input_tokens for sample in samples) + cached
    return Affinity(
        decisions=dict(
            Counter(sample.affinity for sample in samples if sample.affinity).most_common()
        ),
        turns_by_backend=dict(
            Counter(sample.backend for sample in samples if sample.backend).most_common()
        ),
        returned=round(returned / later, 4) if later else None,
        cached_share=round(cached / taken, 4) if cached else None,
    )


def render_table(summary: Summary) -> str:
    """The summary as a table of text."""
    rows = [
        f"{'':10s}{'count':>9s}{'mean':>10s}{'p50':>10s}{'p90':>10s}{'p95':>10s}{'p99':>10s}{'max':>10s}   (ms)",
    ]
    for name, part in (
        ("TTFT", summary.ttft_ms),
        ("ITL", summary.itl_ms),
        ("TPOT", summary.tpot_ms),
        ("E2E", summary.e2e_ms),
    ):
        figures = "".join(
            f"{value:10.2f}"
            for value in (part.mean, part.p50, part.p90, part.p95, part.p99, part.max)
        )
        rows.append(f"{name:10s}{part.count:9d}{figures if part.count else '         -' * 6}")
    rows.append("")
    rows.append(
        f"requests {summary.requests}, whole {summary.completed}, {summary.requests_per_s:.2f}/s "
        f"over {summary.seconds:.1f} s; "
        f"{summary.output_tokens_per_s:.0f} output tokens/s; {summary.input_tokens} tokens in, "
        f"{summary.output_tokens} out"
    )
    rows.append(f"goodput {summary.goodput_per_s:.2f}/s ({summary.good_share:.1%} within the SLO)")
    rows.extend(f"error {count:6d} × {kind}" for kind, count in summary.errors.items())
    return "\n".join(rows)


def render_affinity(part: Affinity) -> str:
    rows = [
        "affinity: "
        + (
            ", ".join(f"{name} {count}" for name, count in part.decisions.items())
            or "the proxy reported none"
        )
    ]
    rows.extend(f"  backend {name}: {count} turns" for name, count in part.turns_by_backend.items())
    if part.returned is not None:
        rows.append(
            f"  later turns that came back to the backend of the turn before: {part.returned:.1%}"
        )
    if part.cached_share is not None:
        rows.append(f"  input tokens read from the engines' prefix caches: {part.cached_share:.1%}")
    return "\n".join(rows)


def write_csv(path: Path, samples: Sequence[Sample]) -> None:
    """One row per request, without the gaps between tokens: the JSON has their percentiles."""
    columns = [name for name in Sample.__struct_fields__ if name != "gaps_s"]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "tpot_s"])
        for sample in samples:
            writer.writerow([*(getattr(sample, name) for name in columns), sample.tpot_s])
