"""The text of the make_report: a row for each backend and model, what follows for each model, and the
dialect."""

from __future__ import annotations

import pytest
from tests.check.backends import make_config, make_info, make_report, make_survey

from ferrule.check.report import NOT_TRIED, render
from ferrule.check.survey import BackendReport, Capabilities
from ferrule.config import Config


def parse_rows(settings: Config, *backends: BackendReport) -> list[dict[str, str]]:
    """The table of backends, each row by column names."""
    lines = render(settings, make_survey(settings, *backends)).split("\n\n", 1)[0].split("\n")
    starts = [
        at
        for at, letter in enumerate(lines[0])
        if letter != " " and lines[0][max(0, at - 2) : at].strip() == ""
    ]
    ends = [*starts[1:], None]
    columns = [lines[0][start:end].strip() for start, end in zip(starts, ends, strict=True)]
    return [
        {
            column: line[start:end].strip()
            for column, start, end in zip(columns, starts, ends, strict=True)
        }
        for line in lines[1:]
    ]


def find_row(settings: Config, *backends: BackendReport, row: str) -> str:
    """The text of one row of what the proxy does for `m`."""
    lines = render(settings, make_survey(settings, *backends)).splitlines()
    return next(line[len(row) + 2 :].strip() for line in lines if line.startswith(f"  {row}"))


def test_a_row_of_a_probed_backend() -> None:
    probed = Capabilities(1000, 9, None, True, True, ("reasoning",), "")
    (row,) = parse_rows(make_config(), make_report(probed))
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
    ("capabilities", "column", "cell"),
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
def test_cells(capabilities: Capabilities, column: str, cell: str) -> None:
    (row,) = parse_rows(make_config(), make_report(capabilities))
    assert row[column] == cell


def test_silent_backends_have_a_row_too() -> None:
    silent, other = parse_rows(
        make_config(),
        make_report(failure="refused", info=None, capabilities_by_model={}),
        make_report(capabilities_by_model={}),
    )
    assert (silent["state"], silent["engine"], silent["model"]) == ("down", "-", "-")
    assert (other["state"], other["engine"], other["model"]) == ("up", "vllm 0.33.0", "-")


def test_old_engines_keep_their_name() -> None:
    (row,) = parse_rows(make_config(), make_report(info=make_info("m", version="0.10.0")))
    assert row["engine"] == "vllm 0.10.0"


MODEL_ROWS: list[tuple[str, Config, str]] = [
    ("goes to", make_config(model={"upstream": "m"}), "pool p (1 backend) as m"),
    ("context window", make_config(), "1000 tokens, as the backends report"),
    ("context window", make_config(model={"context_window": 9}), "9 tokens"),
    ("count_tokens", make_config(), "the engine's own count, else o200k_base"),
    ("count_tokens", make_config(dialect="token-factory"), "estimated with o200k_base"),
    ("count_tokens", make_config(dialect="pooled"), "not offered in this dialect"),
    ("thinking budget", make_config(), "enforced by the engine (thinking_token_budget)"),
    ("thinking budget", make_config(dialect="token-factory"), "refused with status 400"),
    (
        "thinking budget",
        make_config(pool={"engine": "sglang"}),
        "enforced by the proxy: it cuts the reasoning and has the answer continued",
    ),
    ("earlier reasoning", make_config(pool={"engine": "sglang"}), "sent as reasoning_content"),
    ("effort", make_config(), "not verified, forwarded unchecked"),
    ("effort", make_config(model={"effort": ["low", "high"]}), "low, high; others: checked"),
    ("images", make_config(model={"images": True}), "passed on"),
    ("images", make_config(dialect="pooled"), "not accepted (media: note)"),
]


@pytest.mark.parametrize(
    ("row", "settings", "text"),
    MODEL_ROWS,
    ids=[f"{case[0]}: {case[2][:20]}" for case in MODEL_ROWS],
)
def test_rows_of_a_model(row: str, settings: Config, text: str) -> None:
    assert find_row(settings, make_report(), row=row) == text


def test_aliases_are_named() -> None:
    assert "\nm (also claude-haiku-*)\n" in render(
        make_config(), make_survey(make_config(), make_report())
    )


def test_models_share_a_table_of_settings_and_overrides_are_marked() -> None:
    settings = make_config(
        models=[
            {"id": "m"},
            {"id": "n"},
            {"id": "o", "dialect": {"reasoning": "text", "max_tokens_cap": 5}},
        ]
    )
    text = render(settings, make_survey(settings, make_report()))
    assert text.count("dialect in force for m, n (dialect anthropic") == 1
    _, own = text.split("dialect in force for o ")
    marked = [line.split()[1:] for line in own.splitlines() if line.startswith(" *")]
    assert marked == [["max_tokens_cap", "5"], ["reasoning", "text"]]
