"""Every kind of problem, with its place; and that nothing else is one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.check.backends import URL, config, description, report, survey

from ferrule.check.problems import find_problems
from ferrule.check.survey import BackendReport, Capabilities
from ferrule.config import Config, Flags, from_flags

OLD = description("m", version="0.10.0")
REFUSED = Capabilities(
    window=1000,
    has_usage=True,
    reasoning_fields=("reasoning",),
    budget_refusal="HTTP 400: no parser",
)

CASES: list[tuple[str, Config, list[BackendReport], list[str]]] = [
    ("nothing", config(), [report()], []),
    (
        "down",
        config(),
        [report(trouble="refused")],
        [f"pools.p.backends.0: {URL} is not well: refused"],
    ),
    (
        "silent",
        config(),
        [report(trouble="refused", description=None, abilities={})],
        [f"pools.p.backends.0: {URL} is not well: refused"],
    ),
    (
        "no list",
        config(),
        [report(description=None, abilities={})],
        [f"pools.p.backends.0: {URL} does not list its models (GET /v1/models)"],
    ),
    ("nobody", config(), [], ["pools.p.discover: finds no backend"]),
    (
        "not listed",
        config(model={"upstream": "deep/m"}),
        [report(abilities={})],
        [f"models.0.upstream: {URL} (pools.p.backends.0) does not list `deep/m`"],
    ),
    (
        "window",
        config(model={"context_window": 2000}),
        [report()],
        [f"models.0.context_window: is 2000, but {URL} takes 1000 tokens"],
    ),
    ("smaller window", config(model={"context_window": 500}), [report()], []),
    (
        "engine",
        config(),
        [report(description=OLD)],
        [f"pools.p.engine: is vllm, but {URL} says it is vllm_old; expected auto"],
    ),
    ("engine auto", config(pool={"engine": "auto"}), [report(description=OLD)], []),
    (
        "engine that says nothing",
        config(pool={"engine": "sglang"}, dialect="token-factory"),
        [report(description=description("m", owner="x"))],
        [],
    ),
    (
        "budget that nobody holds",
        config(
            pool={"engine": "sglang"}, model={"thinking_budget": "engine", "can_continue": False}
        ),
        [report()],
        [
            "models.0.thinking_budget: is engine, which the engine cannot do; budgets will be "
            "refused"
        ],
    ),
    (
        "budget refused",
        config(),
        [report(REFUSED)],
        [
            f"models.0.thinking_budget: {URL} refuses thinking_token_budget (HTTP 400: no "
            f"parser); set thinking_budget to edge or refuse"
        ],
    ),
    (
        "budget refused that nobody asks for",
        config(model={"thinking_budget": "edge"}),
        [report(REFUSED)],
        [],
    ),
    (
        "probe",
        config(),
        [report(Capabilities(trouble="HTTP 500: x"))],
        [f"pools.p.backends.0: {URL} does not answer for m: HTTP 500: x"],
    ),
    (
        "usage",
        config(),
        [report(Capabilities(has_usage=False))],
        [f"pools.p.backends.0: {URL} tells no usage for m"],
    ),
]


@pytest.mark.parametrize(
    ("name", "settings", "backends", "expected"), CASES, ids=[case[0] for case in CASES]
)
def test_problems(
    name: str, settings: Config, backends: list[BackendReport], expected: list[str]
) -> None:
    assert [
        str(problem) for problem in find_problems(settings, survey(settings, *backends))
    ] == expected


def test_models_that_nobody_configured_have_their_problems_at_the_backend() -> None:
    settings = from_flags(Flags(backends=(URL,), dialect="anthropic"))
    one = report(REFUSED, pool="default", place="pools.default.backends.0")
    (problem,) = find_problems(settings, survey(settings, one))
    assert problem.path == "pools.default.backends.0"
    assert "thinking_token_budget" in problem.message
    empty = report(pool="default", description=description(), abilities={})
    (problem,) = find_problems(settings, survey(settings, empty))
    assert str(problem) == "models: no backend lists a model"


def test_a_tokenizer_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    settings = config(model={"tokenizer": str(file)})
    (problem,) = find_problems(settings, survey(settings, report()))
    assert problem.path == "models.0.tokenizer"
