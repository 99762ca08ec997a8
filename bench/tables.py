"""Renders results as tables for a terminal. What was not measured is a dash."""

from collections.abc import Sequence

from figures import Contender, Figure, Results, Row, find_median, find_row
from measures import SCALING_STREAMS, keeps_up

# The project's performance targets (see README.md).
_LITELLM_TIMES = 25
_ROUTER_SHARE = 1.1
_FIRST_TOKEN_P99_US = 5000
_TWO_WORKERS = 1.8


def render(results: Results) -> str:
    parts = [
        f"{results.started_at}, {results.machine['cpu']}, {results.machine['cores']} cores, "
        f"{results.seconds:.0f} s"
    ]
    parts.append("\n".join(map(_format_contender, results.contenders)))
    parts.append(
        _render_grid(
            "CPU per streamed token, µs (lockstep: the proxy is always busy)",
            results.lockstep,
            "us_per_token",
            "{:.2f}",
        )
    )
    parts.append(
        _render_grid(
            "tokens a second and core", results.lockstep, "tokens_per_s_per_core", "{:,.0f}"
        )
    )
    parts.append(
        _render_grid(
            "resident memory per open stream, kB", results.lockstep, "kb_per_stream", "{:.1f}"
        )
    )
    parts.append(
        _render_grid(
            "CPU per short request, µs (64 connections)",
            results.requests,
            "us_per_request",
            "{:.0f}",
        )
    )
    parts.append(
        _render_grid(
            "CPU per request of 185 kB, µs (16 connections)",
            results.big_requests,
            "us_per_request",
            "{:.0f}",
        )
    )
    for name, title in (("first_token", "time to first token"), ("token", "latency of a token")):
        for share in ("p50", "p99"):
            what = f"added to the {title}, {share}, µs over direct (paced, 20 tokens/s a stream)"
            parts.append(_render_added(what, results, f"{name}_{share}_us"))
    parts.append(_render_scaling(results.scaling))
    parts.append(_render_counting(results))
    parts.append(_render_errors(results))
    parts.append(_render_targets(results))
    return "\n\n".join(part for part in parts if part)


def _format_contender(contender: Contender) -> str:
    return (
        f"  {contender.name} {contender.version}"
        if contender.version
        else f"  {contender.name}: not installed ({contender.missing})"
    )


def _format_cell(figure: Figure | None, form: str) -> str:
    return (
        f"{form.format(figure.median)} ({form.format(figure.low)}–{form.format(figure.high)})"
        if figure
        else "–"
    )


def _render_grid(title: str, rows: Sequence[Row], name: str, form: str) -> str:
    sizes = sorted({row.streams for row in rows})
    lines = [title, f"  {'':16s}" + "".join(f"{size:>26,d}" for size in sizes)]
    for proxy in dict.fromkeys(row.proxy for row in rows):
        found = [find_row(rows, proxy, size) for size in sizes]
        if any(row and name in row.figures for row in found):
            lines.append(
                f"  {proxy:16s}"
                + "".join(
                    f"{_format_cell(row.figures.get(name) if row else None, form):>26s}"
                    for row in found
                )
            )
    return "\n".join(lines) if len(lines) > 2 else ""


def compute_added(results: Results, proxy: str, streams: int, name: str) -> float | None:
    """Microseconds over the direct connection; None if not measured or the proxy did not keep
    up."""
    row, direct = (
        find_row(results.paced, proxy, streams),
        find_median(results.paced, "direct", streams, name),
    )
    if row is None or direct is None or name not in row.figures or not keeps_up(row):
        return None
    return row.figures[name].median - direct


def _render_added(title: str, results: Results, name: str) -> str:
    sizes = sorted({row.streams for row in results.paced})
    lines = [title, f"  {'':16s}" + "".join(f"{size:>26,d}" for size in sizes)]
    for proxy in dict.fromkeys(row.proxy for row in results.paced):
        cells = []
        for size in sizes:
            row, extra = (
                find_row(results.paced, proxy, size),
                compute_added(results, proxy, size, name),
            )
            behind = row is not None and not keeps_up(row)
            cells.append(
                f"{'could not keep up' if behind else '–' if extra is None else f'{extra:.0f}':>26s}"
            )
        if proxy != "direct":
            lines.append(f"  {proxy:16s}" + "".join(cells))
    return "\n".join(lines) if len(lines) > 2 else ""


def _render_scaling(rows: Sequence[Row]) -> str:
    lines = ["workers: tokens a second of CPU of the busiest worker (paced, 128 streams a worker)"]
    for row in rows:
        lines.append(
            f"  {row.proxy:16s}{_format_cell(row.figures.get('tokens_per_s'), '{:,.0f}'):>34s}"
        )
    return "\n".join(lines) if rows else ""


def _render_counting(results: Results) -> str:
    lines = ["counting tokens, MB/s on one core"]
    for row in results.counting:
        lines.append(
            f"  {row.counter:16s}{row.tokenizer:18s}{_format_cell(row.mb_per_s, '{:.1f}'):>26s}   "
            f"{row.tokens:,d} tokens"
        )
    return "\n".join(lines) if results.counting else ""


def _render_errors(results: Results) -> str:
    groups = {
        name: getattr(results, name)
        for name in ("lockstep", "requests", "big_requests", "paced", "scaling")
    }
    lines = [
        f"  {name} {row.streams} {row.proxy}: {count} × {kind[:120]}"
        for name, rows in groups.items()
        for row in rows
        for kind, count in row.errors.items()
    ]
    return "\n".join(["errors", *lines]) if lines else "errors: none"


def check_targets(results: Results) -> list[tuple[str, float | None, bool | None]]:
    """(target, measured value, whether it is met); None where this run did not measure it."""

    def ratio(of: float | None, to: float | None) -> float | None:
        return of / to if of is not None and to else None

    def judge(what: str, value: float | None, holds: bool) -> tuple[str, float | None, bool | None]:
        return what, value, None if value is None else holds

    found = []
    own = {
        size: find_median(results.lockstep, "ferrule", size, "us_per_token") for size in (128, 1000)
    }
    times = ratio(find_median(results.lockstep, "litellm", 128, "us_per_token"), own[128])
    found.append(
        judge(
            f"CPU per token at 128: LiteLLM's is at least {_LITELLM_TIMES} ×",
            times,
            (times or 0) >= _LITELLM_TIMES,
        )
    )
    for router in ("sglang-router", "vllm-router"):
        for size in (128, 1000):
            share = ratio(own[size], find_median(results.lockstep, router, size, "us_per_token"))
            found.append(
                judge(
                    f"CPU per token at {size}: at most {_ROUTER_SHARE} × {router}'s",
                    share,
                    (share or 9) <= _ROUTER_SHARE,
                )
            )
    extra = compute_added(results, "ferrule", 128, "first_token_p99_us")
    found.append(
        judge(
            "added time to first token, p99 at 128: at most 5 ms",
            extra and extra / 1000,
            (extra or 0) <= _FIRST_TOKEN_P99_US,
        )
    )
    one, two = (
        find_median(results.scaling, f"ferrule ×{count}", count * SCALING_STREAMS, "tokens_per_s")
        for count in (1, 2)
    )
    gain = ratio(two, one)
    found.append(
        judge(f"two workers: at least {_TWO_WORKERS} × one", gain, (gain or 0) >= _TWO_WORKERS)
    )
    return found


def _render_targets(results: Results) -> str:
    lines = ["targets"]
    for what, value, holds in check_targets(results):
        verdict = {True: "yes", False: "NO", None: "not measured"}[holds]
        lines.append(f"  {verdict:14s}{what:64s}{'' if value is None else f'{value:.2f}'}")
    return "\n".join(lines)
