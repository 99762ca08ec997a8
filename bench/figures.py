"""The structure of `results/last.json`, and the summary of several rounds as one figure. Knows
neither proxies nor processes."""

import statistics
from collections.abc import Sequence

import msgspec


class Figure(msgspec.Struct):
    """The median, the range and the values of the rounds."""

    median: float
    low: float
    high: float
    rounds: list[float]


class Row(msgspec.Struct):
    """One proxy in one measurement. Figures that were not measured are absent, not zero."""

    proxy: str
    streams: int
    figures: dict[str, Figure] = {}
    errors: dict[str, int] = {}
    note: str = ""


class Contender(msgspec.Struct):
    name: str
    translates: bool
    version: str | None
    missing: str | None = None
    """Why it was not measured."""
    idle_mb: float | None = None
    """Resident memory before its first request."""


class CountingSpeed(msgspec.Struct):
    """Speed of counting one text, in MB of UTF-8 per second on one core."""

    tokenizer: str
    counter: str
    mb_per_s: Figure
    tokens: int


class Results(msgspec.Struct):
    started_at: str
    seconds: float
    machine: dict[str, str | int]
    command: str
    contenders: list[Contender]
    lockstep: list[Row] = []
    requests: list[Row] = []
    big_requests: list[Row] = []
    paced: list[Row] = []
    scaling: list[Row] = []
    counting: list[CountingSpeed] = []


def make_figure(values: Sequence[float]) -> Figure:
    rounded = [float(f"{value:.4g}") for value in values]
    return Figure(statistics.median(rounded), min(rounded), max(rounded), rounded)


def find_row(rows: Sequence[Row], proxy: str, streams: int) -> Row | None:
    return next((row for row in rows if (row.proxy, row.streams) == (proxy, streams)), None)


def find_median(rows: Sequence[Row], proxy: str, streams: int, name: str) -> float | None:
    row = find_row(rows, proxy, streams)
    return row.figures[name].median if row and name in row.figures else None
