"""The shape of `results/last.json`, and how several rounds become one figure. Knows neither proxies
nor processes."""

import statistics
from collections.abc import Sequence

import msgspec


class Figure(msgspec.Struct):
    """A median with its spread: what was measured in each round is kept."""

    median: float
    low: float
    high: float
    rounds: list[float]


class Row(msgspec.Struct):
    """One proxy in one measurement. What a measurement does not measure is absent, not zero."""

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
    """Why there is no row of it."""
    idle_mb: float | None = None
    """Resident memory before its first request."""


class Counting(msgspec.Struct):
    """Speed of counting one text, in MB of UTF-8 per second and core."""

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
    counting: list[Counting] = []


def figure(values: Sequence[float]) -> Figure:
    rounded = [float(f"{value:.4g}") for value in values]
    return Figure(statistics.median(rounded), min(rounded), max(rounded), rounded)


def find(rows: Sequence[Row], proxy: str, streams: int) -> Row | None:
    return next((row for row in rows if (row.proxy, row.streams) == (proxy, streams)), None)


def median(rows: Sequence[Row], proxy: str, streams: int, name: str) -> float | None:
    row = find(rows, proxy, streams)
    return row.figures[name].median if row and name in row.figures else None
