"""The text of the report: a row for each backend and model, what follows for each model, and the
dialect."""

from __future__ import annotations

import pytest
from tests.check.backends import config, description, report, survey

from ferrule.check.report import NOT_TRIED, render
from ferrule.check.survey import BackendReport, Capabilities
from ferrule.config import Config


def rows(settings: Config, *backends: BackendReport) -> list[dict[str, str]]:
    """The table of backends by the names of its columns."""
    lines = render(settings, survey(settings, *backends)).split("\n\n", 1)[0].split("\n")
    places = [
        at
        for at, letter in enumerate(lines[0])
        if letter != " " and lines[0][max(0, at - 2) : at].strip() == ""
    ]
    ends = [*places[1:], None]
    columns = [lines[0][place:end].strip() for place, end in zip(places, ends, strict=True)]
    return [
        {
            column: line[place:end].strip()
            for column, place, end in zip(columns, places, ends, strict=True)
        }
        for line in lines[1:]
    ]


def row_of(settings: Config, *backends: BackendReport, row: str) -> str:
    """One row of what the proxy does for `m`."""
    lines = render(settings, survey(settings, *backends)).splitlines()
    return next(line[len(row) + 2 :].strip() for line in lines if line.startswith(f"  {row}"))


def test_a_row_says_what_was_found() -> None:
    tried = Capabilities(1000, 9, None, True, True, ("reasoning",), "")
    (row,) = rows(config(), report(tried))
    assert row == {
        "backend": "p-1",
        "address": "http://10.0.0.1:8000",
        "state": "up",
        "engine": "vllm 0.33.0",
        "model": "m",
        "context window": "1000",
        "tokenizer": "its own, else o200k_base",
        "usage": "with cached tokens",
        "reasoning": "reasoning",
        "thinking budget": "thinking_token_budget",
    }


@pytest.mark.parametrize(
    ("ability", "column", "cell"),
    [
        (Capabilities(), "context window", "?"),
        (Capabilities(), "tokenizer", "o200k_base"),
        (Capabilities(), "usage", NOT_TRIED),
        (Capabilities(has_usage=False), "usage", "none"),
        (Capabilities(has_usage=True, has_cached_tokens=False), "usage", "without cached tokens"),
        (Capabilities(), "reasoning", NOT_TRIED),
        (Capabilities(reasoning_fields=()), "reasoning", "none"),
        (
            Capabilities(reasoning_fields=("reasoning", "reasoning_content")),
            "reasoning",
            "reasoning and reasoning_content",
        ),
        (Capabilities(), "thinking budget", f"thinking_token_budget {NOT_TRIED}"),
        (Capabilities(budget_refusal="no"), "thinking budget", "thinking_token_budget refused"),
    ],
)
def test_cells(ability: Capabilities, column: str, cell: str) -> None:
    (row,) = rows(config(), report(ability))
    assert row[column] == cell


def test_backends_that_tell_nothing_have_a_row_too() -> None:
    silent, other = rows(
        config(), report(trouble="refused", description=None, abilities={}), report(abilities={})
    )
    assert (silent["state"], silent["engine"], silent["model"]) == ("down", "-", "-")
    assert (other["state"], other["engine"], other["model"]) == ("up", "vllm 0.33.0", "-")


def test_old_engines_keep_their_name() -> None:
    (row,) = rows(config(), report(description=description("m", version="0.10.0")))
    assert row["engine"] == "vllm 0.10.0"


FOLLOWS: list[tuple[str, Config, str]] = [
    ("goes to", config(model={"upstream": "m"}), "pool p (1 backend) as m"),
    ("context window", config(), "1000 tokens, as the backends say"),
    ("context window", config(model={"context_window": 9}), "9 tokens"),
    ("count_tokens", config(), "the engine's own count, else o200k_base"),
    ("count_tokens", config(dialect="token-factory"), "estimated with o200k_base"),
    ("count_tokens", config(dialect="pooled"), "not offered in this dialect"),
    ("thinking budget", config(), "held by the engine (thinking_token_budget)"),
    ("thinking budget", config(dialect="token-factory"), "refused with status 400"),
    (
        "thinking budget",
        config(pool={"engine": "sglang"}),
        "held here: past it the reasoning is cut and the answer continued",
    ),
    ("earlier reasoning", config(pool={"engine": "sglang"}), "sent as reasoning_content"),
    ("effort", config(), "not verified, forwarded unchecked"),
    ("effort", config(model={"effort": ["low", "high"]}), "low, high; others: checked"),
    ("images", config(model={"images": True}), "passed on"),
    ("images", config(dialect="pooled"), "not taken (media: note)"),
]


@pytest.mark.parametrize(
    ("row", "settings", "text"), FOLLOWS, ids=[f"{case[0]}: {case[2][:20]}" for case in FOLLOWS]
)
def test_what_follows(row: str, settings: Config, text: str) -> None:
    assert row_of(settings, report(), row=row) == text


def test_aliases_are_named() -> None:
    assert "\nm (also claude-haiku-*)\n" in render(config(), survey(config(), report()))


def test_models_that_are_alike_share_their_knobs_and_changes_are_marked() -> None:
    settings = config(
        models=[
            {"id": "m"},
            {"id": "n"},
            {"id": "o", "dialect": {"reasoning": "text", "max_tokens_cap": 5}},
        ]
    )
    text = render(settings, survey(settings, report()))
    assert text.count("dialect in force for m, n (dialect anthropic") == 1
    _, own = text.split("dialect in force for o ")
    marked = [line.split()[1:] for line in own.splitlines() if line.startswith(" *")]
    assert marked == [["max_tokens_cap", "5"], ["reasoning", "text"]]
