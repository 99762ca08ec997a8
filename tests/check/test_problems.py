"""Every kind of problem with its path, and what is not a problem."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.check.backends import URL, make_config, make_info, make_report, make_survey

from ferrule.check.problems import find_problems
from ferrule.check.survey import BackendReport, Capabilities
from ferrule.config import Config, Flags, from_flags

OLD = make_info("m", version="0.10.0")
REFUSED = Capabilities(
    window=1000,
    has_usage=True,
    reasoning_fields=("reasoning",),
    budget_refusal="HTTP 400: no parser",
)

CASES: list[tuple[str, Config, list[BackendReport], list[str]]] = [
    ("nothing", make_config(), [make_report()], []),
    (
        "down",
        make_config(),
        [make_report(failure="refused")],
        [f"pools.p.backends.0: {URL} is unhealthy: refused"],
    ),
    (
        "silent",
        make_config(),
        [make_report(failure="refused", info=None, capabilities_by_model={})],
        [f"pools.p.backends.0: {URL} is unhealthy: refused"],
    ),
    (
        "no list",
        make_config(),
        [make_report(info=None, capabilities_by_model={})],
        [f"pools.p.backends.0: {URL} does not list its models (GET /v1/models)"],
    ),
    ("nobody", make_config(), [], ["pools.p.discover: finds no backend"]),
    (
        "not listed",
        make_config(model={"upstream": "deep/m"}),
        [make_report(capabilities_by_model={})],
        [f"models.0.upstream: {URL} (pools.p.backends.0) does not list `deep/m`"],
    ),
    (
        "window",
        make_config(model={"context_window": 2000}),
        [make_report()],
        [f"models.0.context_window: is 2000, but {URL} accepts 1000 tokens"],
    ),
    ("smaller window", make_config(model={"context_window": 500}), [make_report()], []),
    (
        "engine",
        make_config(),
        [make_report(info=OLD)],
        [f"pools.p.engine: is vllm, but {URL} says it is vllm_old; expected auto"],
    ),
    ("engine auto", make_config(pool={"engine": "auto"}), [make_report(info=OLD)], []),
    (
        "engine that says nothing",
        make_config(pool={"engine": "sglang"}, dialect="token-factory"),
        [make_report(info=make_info("m", owner="x"))],
        [],
    ),
    (
        "budget that nobody holds",
        make_config(
            pool={"engine": "sglang"}, model={"thinking_budget": "engine", "can_continue": False}
        ),
        [make_report()],
        [
            "models.0.thinking_budget: is engine, which the engine does not support; budgets will "
            "be refused"
        ],
    ),
    (
        "budget refused",
        make_config(),
        [make_report(REFUSED)],
        [
            f"models.0.thinking_budget: {URL} refuses thinking_token_budget (HTTP 400: no "
            f"parser); set thinking_budget to edge or refuse"
        ],
    ),
    (
        "budget refused that nobody asks for",
        make_config(model={"thinking_budget": "edge"}),
        [make_report(REFUSED)],
        [],
    ),
    (
        "probe",
        make_config(),
        [make_report(Capabilities(failure="HTTP 500: x"))],
        [f"pools.p.backends.0: {URL} does not answer for m: HTTP 500: x"],
    ),
    (
        "usage",
        make_config(),
        [make_report(Capabilities(has_usage=False))],
        [f"pools.p.backends.0: {URL} reports no usage for m"],
    ),
]


@pytest.mark.parametrize(
    ("name", "settings", "backends", "expected"), CASES, ids=[case[0] for case in CASES]
)
def test_problems(
    name: str, settings: Config, backends: list[BackendReport], expected: list[str]
) -> None:
    assert [
        str(problem) for problem in find_problems(settings, make_survey(settings, *backends))
    ] == expected


def test_problems_of_unconfigured_models_have_the_backends_path() -> None:
    settings = from_flags(Flags(backends=(URL,), dialect="anthropic"))
    refusing = make_report(REFUSED, pool="default", config_path="pools.default.backends.0")
    (problem,) = find_problems(settings, make_survey(settings, refusing))
    assert problem.path == "pools.default.backends.0"
    assert "thinking_token_budget" in problem.message
    empty = make_report(pool="default", info=make_info(), capabilities_by_model={})
    (problem,) = find_problems(settings, make_survey(settings, empty))
    assert str(problem) == "models: no backend lists a model"


def test_a_tokenizer_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    settings = make_config(model={"tokenizer": str(file)})
    (problem,) = find_problems(settings, make_survey(settings, make_report()))
    assert problem.path == "models.0.tokenizer"
