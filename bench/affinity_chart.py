"""Draws the chart of `affinity.py`: three panels of bars, as plain SVG that is legible on light and
dark pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from bench.affinity_model import Score

ROW = 26
LABEL = 130
PANEL = 200
VALUE = 60
TOP = 58
OURS, OTHERS = "#c2410c", "#94a3b8"


def draw_chart(scores: Sequence[Score]) -> str:
    """Policies as rows; KV hit rate, moved turns and p95 time to first token as columns."""
    panels: list[tuple[str, Callable[[Score], float], Callable[[float], str]]] = [
        ("KV hit rate (more is better)", lambda s: s.kv_hit_rate, lambda v: f"{v:.1%}"),
        ("Moved turns (less is better)", lambda s: s.moved_turns, lambda v: f"{v:.1%}"),
        ("TTFT p95 (less is better)", lambda s: s.ttft_p95_s, lambda v: f"{v:.2f} s"),
    ]
    width, height = LABEL + len(panels) * (PANEL + VALUE), TOP + ROW * len(scores) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img">',
        "<style>text{font:13px "
        "system-ui,sans-serif;fill:#64748b}.t{font-weight:600}.o{fill:#c2410c;font-weight:600}</style>",
        '<text class="t" x="8" y="20">Routing policies under agent sessions: a simulation</text>',
    ]
    for row, score in enumerate(scores):
        parts.append(_draw_text(8, row, score.policy, is_ours=score.policy == "ferrule"))
    for column, (title, value_of, format_value) in enumerate(panels):
        left = LABEL + column * (PANEL + VALUE)
        parts.append(f'<text class="t" x="{left}" y="{TOP - 14}">{escape(title)}</text>')
        highest = max(value_of(score) for score in scores) or 1.0
        for row, score in enumerate(scores):
            parts += _draw_bar(
                left,
                row,
                value_of(score) / highest,
                format_value(value_of(score)),
                score.policy == "ferrule",
            )
    return "\n".join([*parts, "</svg>", ""])


def _draw_bar(left: int, row: int, share: float, label: str, is_ours: bool) -> list[str]:
    length = max(1.0, share * (PANEL - 20))
    colour = OURS if is_ours else OTHERS
    rect = (
        f'<rect x="{left}" y="{TOP + row * ROW}" width="{length:.1f}" height="{ROW - 8}" rx="2" '
        f'fill="{colour}"/>'
    )
    return [rect, _draw_text(left + length + 6, row, label, is_ours=is_ours)]


def _draw_text(x: float, row: int, content: str, *, is_ours: bool) -> str:
    style = ' class="o"' if is_ours else ""
    return f'<text{style} x="{x:.1f}" y="{TOP + row * ROW + 14}">{escape(content)}</text>'
