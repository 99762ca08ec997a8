"""What a run's constants mean for a pool: cores and memory for so many backends. Written into
README.md from the JSON, never by hand."""

from pathlib import Path

import msgspec

from figures import Figure, Results, Row, find
from measures import BIG_KB
from tables import added

README = Path(__file__).resolve().parent / "README.md"
# A core that is busier than this adds queueing to every token.
_BUSY = 0.6
_BEGIN, _END = "<!-- results: written by run.py -->\n", "<!-- end of results -->\n"


class Constants(msgspec.Struct, frozen=True):
    """Of ferrule, from one run. CPU in microseconds."""

    token_us: dict[int, float]
    """By streams per worker."""
    request_us: float
    body_us_per_kb: float
    stream_kb: float
    idle_mb: float

    def cores(
        self, tokens_per_s: float, requests_per_s: float, body_kb: float, streams: int
    ) -> float:
        token_us = self.token_us[1000 if streams > 500 else 128]
        return (
            tokens_per_s * token_us
            + requests_per_s * (self.request_us + body_kb * self.body_us_per_kb)
        ) / 1e6


class Load(msgspec.Struct, frozen=True):
    """Backends of one kind, all slots busy."""

    name: str
    slots: int
    tokens_per_s_per_stream: float
    tokens_per_reply: int
    body_kb: float


LOADS = (
    Load("chat: 64 slots, 40 tokens/s each, 400 tokens a reply, 4 kB requests", 64, 40, 400, 4),
    Load(
        "agents: 64 slots, 40 tokens/s each, 400 tokens a reply, 185 kB requests",
        64,
        40,
        400,
        BIG_KB,
    ),
    Load(
        "small model, fast: 256 slots, 100 tokens/s each, 200 tokens a reply, 8 kB requests",
        256,
        100,
        200,
        8,
    ),
)


def constants(results: Results) -> Constants | None:
    def figure(rows: list[Row], streams: int, name: str) -> float | None:
        row = find(rows, "ferrule", streams)
        return row.figures[name].median if row and name in row.figures else None

    tokens = {size: figure(results.lockstep, size, "us_per_token") for size in (128, 1000)}
    short, big = (
        figure(results.requests, 64, "us_per_request"),
        figure(results.big_requests, 16, "us_per_request"),
    )
    stream_kb = figure(results.lockstep, 1000, "kb_per_stream")
    idle = next((one.idle_mb for one in results.contenders if one.name == "ferrule"), None)
    known = {size: value for size, value in tokens.items() if value is not None}
    if len(known) < 2 or short is None or big is None or stream_kb is None or idle is None:
        return None
    return Constants(known, short, max(0.0, big - short) / BIG_KB, stream_kb, idle)


def write_readme(results: Results) -> None:
    """Replaces what stands between the two marks."""
    text = README.read_text()
    head, _, rest = text.partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    README.write_text(head + _BEGIN + "\n" + markdown(results) + "\n" + _END + tail)


def markdown(results: Results) -> str:
    machine = results.machine
    about = (
        f"{results.started_at[:10]}, {machine['cpu']}, {machine['cores']} cores, Linux "
        f"{machine['kernel']}, Python {machine['python']}"
    )
    parts = [f"Measured {about}; medians of the rounds with their range.", _comparison(results)]
    found = constants(results)
    if found is not None:
        parts += [_constants(found), _pools(found)]
    return "\n\n".join(parts) + "\n"


def _comparison(results: Results) -> str:
    columns: tuple[tuple[str, list[Row], int, str, str], ...] = (
        ("µs CPU per token, 128 streams", results.lockstep, 128, "us_per_token", "{:.1f}"),
        ("1,000 streams", results.lockstep, 1000, "us_per_token", "{:.1f}"),
        ("µs CPU per request", results.requests, 64, "us_per_request", "{:,.0f}"),
        ("185 kB request", results.big_requests, 16, "us_per_request", "{:,.0f}"),
        ("kB per stream", results.lockstep, 1000, "kb_per_stream", "{:.0f}"),
    )
    heads = ["", *(column[0] for column in columns), "added first token p50 / p99, ms, 128 streams"]
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " --- |" * (len(heads) - 1)]
    for one in results.contenders:
        if one.version is None:
            lines.append(f"| {one.name} | not installed |" + " |" * (len(heads) - 2))
            continue
        cells = [
            _cell(find(rows, one.name, streams), name, form)
            for _, rows, streams, name, form in columns
        ]
        label = f"{one.name} {one.version}, {'translating' if one.translates else 'pass-through'}"
        lines.append("| " + " | ".join([label, *cells, _first_token(results, one.name)]) + " |")
    return "\n".join(lines)


def _cell(row: Row | None, name: str, form: str) -> str:
    figure: Figure | None = row.figures.get(name) if row else None
    return (
        f"{form.format(figure.median)} ({form.format(figure.low)}–{form.format(figure.high)})"
        if figure
        else "–"
    )


def _first_token(results: Results, name: str) -> str:
    extra = [added(results, name, 128, f"first_token_{share}_us") for share in ("p50", "p99")]
    return " / ".join("–" if value is None else f"{value / 1000:.2f}" for value in extra)


def _constants(found: Constants) -> str:
    rows = {
        "a streamed token": (
            f"{found.token_us[128]:.1f} µs at 128 streams a worker, {found.token_us[1000]:.1f} "
            f"µs at 1,000"
        ),
        "a request": (
            f"{found.request_us:.0f} µs, and {found.body_us_per_kb:.2f} µs for each kB of its body"
        ),
        "an open stream": f"{found.stream_kb:.0f} kB",
        "a worker": f"{found.idle_mb:.0f} MB when idle",
    }
    return "\n".join(
        [
            "| constant | of this run |",
            "| --- | --- |",
            *(f"| {name} | {value} |" for name, value in rows.items()),
        ]
    )


def _pools(found: Constants) -> str:
    lines = [
        "| what a backend does | backends one core carries | streams on that core | their memory |",
        "| --- | --- | --- | --- |",
    ]
    for load in LOADS:
        tokens_per_s = load.slots * load.tokens_per_s_per_stream
        one = found.cores(tokens_per_s, tokens_per_s / load.tokens_per_reply, load.body_kb, 1000)
        backends = int(_BUSY / one)
        streams = backends * load.slots
        memory_mb = streams * found.stream_kb / 1000 + found.idle_mb
        lines.append(f"| {load.name} | {backends} | {streams:,d} | {memory_mb:,.0f} MB |")
    return "\n".join(lines)
