"""Finds problems in the configuration and the survey of the backends, each with its path. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ferrule.backends.token_counter import tokenizer
from ferrule.catalog import ServedModel
from ferrule.check.survey import BackendReport, Capabilities, Survey
from ferrule.config import Config, Problem


def find_problems(config: Config, survey: Survey) -> list[Problem]:
    return [*_pools(config, survey), *_models(config, survey)]


def _pools(config: Config, survey: Survey) -> Iterator[Problem]:
    for name, pool in config.pools.items():
        members = survey.of(name)
        if not members:
            yield Problem(f"pools.{name}.discover", "finds no backend")
        for report in members:
            yield from _backend(report, pool.engine)
    if (
        not config.models
        and any(report.description for report in survey.report)
        and not survey.catalog.all()
    ):
        yield Problem("models", "no backend lists a model")


def _backend(report: BackendReport, engine: str) -> Iterator[Problem]:
    if report.trouble:
        yield Problem(report.place, f"{report.url} is not well: {report.trouble}")
    if report.description is None:
        if not report.trouble:
            yield Problem(report.place, f"{report.url} does not list its models (GET /v1/models)")
        return
    found = report.description.discovered.profile.name
    # plain vllm is also what a server is taken for that says nothing
    if engine not in ("auto", found) and found != "vllm":
        yield Problem(
            f"pools.{report.pool}.engine",
            f"is {engine}, but {report.url} says it is {found}; expected auto",
        )


def _models(config: Config, survey: Survey) -> Iterator[Problem]:
    for index, model in enumerate(config.models):
        served = survey.catalog.find(model.id)
        if served is None:
            continue
        path = f"models.{index}"
        for report in survey.of(model.pool):
            if report.description is not None:
                yield from _model_at(path, served, report)
        if model.context_window is not None:
            yield from _window(f"{path}.context_window", model.context_window, served, survey)
        if (
            model.thinking_budget is not None
            and model.thinking_budget != "refuse"
            and served.policy.budget_keeper == "refuse"
        ):
            yield Problem(
                f"{path}.thinking_budget",
                f"is {model.thinking_budget}, which the engine cannot do; budgets will be refused",
            )
        try:
            tokenizer(model.tokenizer)
        except ValueError as unusable:
            yield Problem(f"{path}.tokenizer", str(unusable))
    for served in () if config.models else survey.catalog.all():
        for report in survey.of(served.pool):
            if (ability := report.abilities.get(served.id)) is not None:
                yield from _tried(report.place, served, report, ability)


def _model_at(path: str, served: ServedModel, report: BackendReport) -> Iterator[Problem]:
    ability = report.abilities.get(served.id)
    if ability is None:
        yield Problem(
            f"{path}.upstream",
            f"{report.url} ({report.place}) does not list `{served.policy.upstream}`",
        )
        return
    yield from _tried(f"{path}.thinking_budget", served, report, ability)


def _tried(
    path: str, served: ServedModel, report: BackendReport, ability: Capabilities
) -> Iterator[Problem]:
    if ability.trouble is not None:
        yield Problem(
            report.place, f"{report.url} does not answer for {served.id}: {ability.trouble}"
        )
    if ability.has_usage is False:
        yield Problem(report.place, f"{report.url} tells no usage for {served.id}")
    if ability.budget_refusal and served.policy.budget_keeper == "engine":
        field = served.policy.engine.budget_field
        yield Problem(
            path,
            f"{report.url} refuses {field} ({ability.budget_refusal}); set thinking_budget to "
            f"edge or refuse",
        )


def _window(path: str, tokens: int, served: ServedModel, survey: Survey) -> Iterator[Problem]:
    for report in survey.of(served.pool):
        ability = report.abilities.get(served.id)
        if ability is not None and ability.window is not None and tokens > ability.window:
            yield Problem(path, f"is {tokens}, but {report.url} takes {ability.window} tokens")
