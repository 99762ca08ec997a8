"""Derives cost constants from a run, and from them the cores and memory that a pool needs. Writes
both, with the comparison, between two marks of README.md."""

from pathlib import Path

import msgspec

from figures import Figure, Results, Row, find_row
from measures import BIG_KB
from tables import compute_added

README = Path(__file__).resolve().parent / "README.md"
# Busier cores add queueing delay to every token.
_BUSY = 0.6
_BEGIN, _END = "<!-- results: written by run.py -->\n", "<!-- end of results -->\n"


class Constants(msgspec.Struct, frozen=True):
    """The cost of ferrule, from one run. CPU time in microseconds, measured under saturation."""

    token_us: dict[int, float]
    """By number of streams per worker."""
    request_us: float
    body_us_per_kb: float
    stream_kb: float
    idle_mb: float

    def estimate_cores(
        self, tokens_per_s: float, requests_per_s: float, body_kb: float, streams: int
    ) -> float:
        token_us = self.token_us[1000 if streams > 500 else 128]
        return (
            tokens_per_s * token_us
            + requests_per_s * (self.request_us + body_kb * self.body_us_per_kb)
        ) / 1e6


class PoolLoad(msgspec.Struct, frozen=True):
    """One kind of backend with all slots busy."""

    name: str
    slots: int
    tokens_per_s_per_stream: float
    tokens_per_reply: int
    body_kb: float


POOL_LOADS = (
    PoolLoad("chat: 64 slots, 40 tokens/s each, 400 tokens a reply, 4 kB requests", 64, 40, 400, 4),
    PoolLoad(
        "agents: 64 slots, 40 tokens/s each, 400 tokens a reply, 185 kB requests",
        64,
        40,
        400,
        BIG_KB,
    ),
    PoolLoad(
        "small model, fast: 256 slots, 100 tokens/s each, 200 tokens a reply, 8 kB requests",
        256,
        100,
        200,
        8,
    ),
)


def derive_constants(results: Results) -> Constants | None:
    def figure(rows: list[Row], streams: int, name: str) -> float | None:
        row = find_row(rows, "ferrule", streams)
        return row.figures[name].median if row and name in row.figures else None

    tokens = {size: figure(results.lockstep, size, "us_per_token") for size in (128, 1000)}
    short, big = (
        figure(results.requests, 64, "us_per_request"),
        figure(results.big_requests, 16, "us_per_request"),
    )
    stream_kb = figure(results.lockstep, 1000, "kb_per_stream")
    idle = next((peer.idle_mb for peer in results.contenders if peer.name == "ferrule"), None)
    known = {size: value for size, value in tokens.items() if value is not None}
    if len(known) < 2 or short is None or big is None or stream_kb is None or idle is None:
        return None
    return Constants(known, short, max(0.0, big - short) / BIG_KB, stream_kb, idle)


def write_readme(results: Results) -> None:
    """Replaces the text between the two marks."""
    text = README.read_text()
    head, _, rest = text.partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    README.write_text(head + _BEGIN + "\n" + render_markdown(results) + "\n" + _END + tail)


def render_markdown(results: Results) -> str:
    machine = results.machine
    about = (
        f"{results.started_at[:10]}, {machine['cpu']}, {machine['cores']} cores, Linux "
        f"{machine['kernel']}, Python {machine['python']}"
    )
    parts = [
        f"Measured {about}; medians of the rounds with their range.",
        _render_comparison(results),
    ]
    constants = derive_constants(results)
    if constants is not None:
        parts += [_render_constants(constants), _render_pools(constants)]
    return "\n\n".join(parts) + "\n"


def _render_comparison(results: Results) -> str:
    columns: tuple[tuple[str, list[Row], int, str, str], ...] = (
        ("µs CPU per token, 128 streams", results.lockstep, 128, "us_per_token", "{:.1f}"),
        ("1,000 streams", results.lockstep, 1000, "us_per_token", "{:.1f}"),
        ("µs CPU per request", results.requests, 64, "us_per_request", "{:,.0f}"),
        ("185 kB request", results.big_requests, 16, "us_per_request", "{:,.0f}"),
        ("kB per stream", results.lockstep, 1000, "kb_per_stream", "{:.0f}"),
    )
    heads = ["", *(column[0] for column in columns), "added first token p50 / p99, ms, 128 streams"]
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " --- |" * (len(heads) - 1)]
    for contender in results.contenders:
        if contender.version is None:
            lines.append(f"| {contender.name} | not installed |" + " |" * (len(heads) - 2))
            continue
        cells = [
            _format_cell(find_row(rows, contender.name, streams), name, form)
            for _, rows, streams, name, form in columns
        ]
        kind = "translating" if contender.translates else "pass-through"
        label = f"{contender.name} {contender.version}, {kind}"
        first_token = _format_first_token(results, contender.name)
        lines.append("| " + " | ".join([label, *cells, first_token]) + " |")
    return "\n".join(lines)


def _format_cell(row: Row | None, name: str, form: str) -> str:
    figure: Figure | None = row.figures.get(name) if row else None
    return (
        f"{form.format(figure.median)} ({form.format(figure.low)}–{form.format(figure.high)})"
        if figure
        else "–"
    )


def _format_first_token(results: Results, name: str) -> str:
    extra = [
        compute_added(results, name, 128, f"first_token_{share}_us") for share in ("p50", "p99")
    ]
    return " / ".join("–" if value is None else f"{value / 1000:.2f}" for value in extra)


def _render_constants(constants: Constants) -> str:
    rows = {
        "a streamed token": (
            f"{constants.token_us[128]:.1f} µs at 128 streams a worker, "
            f"{constants.token_us[1000]:.1f} µs at 1,000"
        ),
        "a request": (
            f"{constants.request_us:.0f} µs, and {constants.body_us_per_kb:.2f} µs for each kB of "
            f"its body"
        ),
        "an open stream": f"{constants.stream_kb:.0f} kB",
        "a worker": f"{constants.idle_mb:.0f} MB when idle",
    }
    return "\n".join(
        [
            "| constant | of this run |",
            "| --- | --- |",
            *(f"| {name} | {value} |" for name, value in rows.items()),
        ]
    )


def _render_pools(constants: Constants) -> str:
    lines = [
        "| what a backend does | backends one core carries | streams on that core | their memory |",
        "| --- | --- | --- | --- |",
    ]
    for load in POOL_LOADS:
        tokens_per_s = load.slots * load.tokens_per_s_per_stream
        cores = constants.estimate_cores(
            tokens_per_s, tokens_per_s / load.tokens_per_reply, load.body_kb, 1000
        )
        backends = int(_BUSY / cores)
        streams = backends * load.slots
        memory_mb = streams * constants.stream_kb / 1000 + constants.idle_mb
        lines.append(f"| {load.name} | {backends} | {streams:,d} | {memory_mb:,.0f} MB |")
    return "\n".join(lines)
