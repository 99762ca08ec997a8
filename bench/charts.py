"""Draws the results as SVG charts that need no plotting library. Bars are medians, whiskers the
range of the rounds."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import msgspec

from figures import Figure, Results, find_row
from tables import compute_added

_WIDTH, _LABELS, _BAR, _GAP, _TOP = 720, 190, 22, 8, 56
_STYLE = 'font-family="system-ui, sans-serif" font-size="13" role="img"'
_OWN, _OTHER, _INK, _FAINT = "#c2410c", "#94a3b8", "#334155", "#cbd5e1"


class Bar(msgspec.Struct):
    label: str
    figure: Figure
    text: str
    is_own: bool


def draw(title: str, unit: str, bars: Sequence[Bar]) -> str:
    """Horizontal bars. A bar longer than six times the median is cut, with its value beside it."""
    height = _TOP + len(bars) * (_BAR + _GAP) + 16
    values = sorted(bar.figure.high for bar in bars)
    limit = min(values[-1], 6 * values[len(values) // 2]) or 1.0
    room = _WIDTH - _LABELS - 130
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" {_STYLE}>',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="24" font-size="16" font-weight="600" '
        f'fill="{_INK}">{escape(title)}</text>',
        f'<text x="12" y="43" fill="{_INK}" opacity="0.75">{escape(unit)}</text>',
    ]
    for index, bar in enumerate(bars):
        parts += _draw_bar(bar, _TOP + index * (_BAR + _GAP), room / limit, room)
    return "\n".join([*parts, "</svg>\n"])


def _draw_bar(bar: Bar, top: int, scale: float, room: int) -> list[str]:
    length = min(bar.figure.median * scale, room)
    middle = top + _BAR / 2
    low, high = (_LABELS + min(value * scale, room) for value in (bar.figure.low, bar.figure.high))
    parts = [
        f'<text x="{_LABELS - 10}" y="{middle + 4.5}" text-anchor="end" '
        f'fill="{_INK}">{escape(bar.label)}</text>',
        f'<rect x="{_LABELS}" y="{top}" width="{max(length, 1):.1f}" height="{_BAR}" rx="2" '
        f'fill="{_OWN if bar.is_own else _OTHER}"/>',
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" stroke="{_INK}" '
        f'stroke-width="1.5"/>',
        f'<text x="{max(_LABELS + length, high) + 8:.1f}" y="{middle + 4.5}" '
        f'fill="{_INK}">{escape(bar.text)}</text>',
    ]
    if bar.figure.median * scale > room:
        cut = _LABELS + room - 26
        parts.append(
            f'<path d="M{cut} {top - 2} l-6 {_BAR + 4} h8 l6 -{_BAR + 4} z" fill="#ffffff" '
            f'stroke="{_FAINT}"/>'
        )
    return parts


def write_all(results: Results, directory: Path) -> list[Path]:
    """Writes one file per chart, and removes those of charts without measurements, so that none is
    older than the JSON. Returns the files written."""
    charts: dict[str, tuple[str, str, list[Bar]]] = {}
    for size in (128, 1000):
        bars = _select_bars(results, "lockstep", size, "us_per_token", "{:.1f}")
        charts[f"cpu-per-token-{size}"] = (
            f"CPU per streamed token, {size:,} streams",
            "µs, lower is better; one core, always busy",
            bars,
        )
    for group, streams, what in (
        ("requests", 64, "short streamed request"),
        ("big_requests", 16, "request of 185 kB"),
    ):
        bars = _select_bars(results, group, streams, "us_per_request", "{:,.0f}")
        unit = f"µs, lower is better; {streams} connections, one token each"
        charts[f"cpu-per-{group.removesuffix('s').replace('_', '-')}"] = (
            f"CPU per {what}",
            unit,
            bars,
        )
    bars = _select_bars(results, "lockstep", 1000, "kb_per_stream", "{:.0f}")
    charts["memory-per-stream"] = (
        "Memory per open stream, 1,000 streams",
        "kB resident over idle, lower is better",
        bars,
    )
    bars = _select_added_bars(results)
    charts["added-first-token"] = (
        "Added time to first token, p99, 128 streams",
        "ms over a direct connection, lower is better",
        bars,
    )
    charts["counting"] = (
        "Counting tokens",
        "MB/s on one core, higher is better",
        _select_counting_bars(results),
    )
    written = []
    directory.mkdir(parents=True, exist_ok=True)
    for name, (title, unit, bars) in charts.items():
        path = directory / f"{name}.svg"
        path.unlink(missing_ok=True)
        if bars:
            path.write_text(draw(title, unit, bars))
            written.append(path)
    return written


def _select_bars(results: Results, group: str, streams: int, name: str, form: str) -> list[Bar]:
    rows = [
        row for row in getattr(results, group) if row.streams == streams and name in row.figures
    ]
    bars = [
        Bar(
            row.proxy,
            row.figures[name],
            form.format(row.figures[name].median),
            row.proxy == "ferrule",
        )
        for row in rows
    ]
    return sorted(bars, key=lambda bar: bar.figure.median)


def _select_counting_bars(results: Results) -> list[Bar]:
    return [
        Bar(
            f"{row.counter} {row.tokenizer}",
            row.mb_per_s,
            f"{row.mb_per_s.median:.1f}",
            row.counter == "ferrule",
        )
        for row in results.counting
    ]


def _select_added_bars(results: Results) -> list[Bar]:
    name, bars = "first_token_p99_us", []
    direct = find_row(results.paced, "direct", 128)
    for row in results.paced:
        extra = compute_added(results, row.proxy, row.streams, name)
        if row.streams != 128 or row.proxy == "direct" or extra is None or direct is None:
            continue
        base, figure = direct.figures[name].median, row.figures[name]
        ms = [max(0.0, (value - base) / 1000) for value in (figure.median, figure.low, figure.high)]
        bars.append(
            Bar(row.proxy, Figure(*ms, rounds=[]), f"{extra / 1000:.2f}", row.proxy == "ferrule")
        )
    return sorted(bars, key=lambda bar: bar.figure.median)
