"""Finds problems in the configuration and the survey of the backends, each with its path. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ferrule.backends.token_counter import tokenizer
from ferrule.catalog import ServedModel
from ferrule.check.survey import BackendReport, Capabilities, Survey
from ferrule.config import Config, Problem


def find_problems(config: Config, survey: Survey) -> list[Problem]:
    return [*_find_pool_problems(config, survey), *_find_model_problems(config, survey)]


def _find_pool_problems(config: Config, survey: Survey) -> Iterator[Problem]:
    for name, pool in config.pools.items():
        backend_reports = survey.in_pool(name)
        if not backend_reports:
            yield Problem(f"pools.{name}.discover", "finds no backend")
        for backend_report in backend_reports:
            yield from _find_backend_problems(backend_report, pool.engine)
    if (
        not config.models
        and any(backend_report.info for backend_report in survey.backend_reports)
        and not survey.catalog.all()
    ):
        yield Problem("models", "no backend lists a model")


def _find_backend_problems(backend_report: BackendReport, engine: str) -> Iterator[Problem]:
    if backend_report.failure:
        yield Problem(
            backend_report.config_path,
            f"{backend_report.url} is unhealthy: {backend_report.failure}",
        )
    if backend_report.info is None:
        if not backend_report.failure:
            yield Problem(
                backend_report.config_path,
                f"{backend_report.url} does not list its models (GET /v1/models)",
            )
        return
    detected = backend_report.info.discovered.profile.name
    # vllm is also the fallback for servers that do not identify themselves: no contradiction
    if engine not in ("auto", detected) and detected != "vllm":
        yield Problem(
            f"pools.{backend_report.pool}.engine",
            f"is {engine}, but {backend_report.url} says it is {detected}; expected auto",
        )


def _find_model_problems(config: Config, survey: Survey) -> Iterator[Problem]:
    for index, model in enumerate(config.models):
        served = survey.catalog.find(model.id)
        if served is None:
            continue
        path = f"models.{index}"
        for backend_report in survey.in_pool(model.pool):
            if backend_report.info is not None:
                yield from _find_upstream_problems(path, served, backend_report)
        if model.context_window is not None:
            yield from _find_window_problems(
                f"{path}.context_window", model.context_window, served, survey
            )
        if (
            model.thinking_budget is not None
            and model.thinking_budget != "refuse"
            and served.policy.budget_keeper == "refuse"
        ):
            yield Problem(
                f"{path}.thinking_budget",
                f"is {model.thinking_budget}, which the engine does not support; budgets will be "
                "refused",
            )
        try:
            tokenizer(model.tokenizer)
        except ValueError as error:
            yield Problem(f"{path}.tokenizer", str(error))
    for served in () if config.models else survey.catalog.all():
        for backend_report in survey.in_pool(served.pool):
            if (capabilities := backend_report.capabilities_by_model.get(served.id)) is not None:
                yield from _find_probe_problems(
                    backend_report.config_path, served, backend_report, capabilities
                )


def _find_upstream_problems(
    path: str, served: ServedModel, backend_report: BackendReport
) -> Iterator[Problem]:
    capabilities = backend_report.capabilities_by_model.get(served.id)
    if capabilities is None:
        yield Problem(
            f"{path}.upstream",
            f"{backend_report.url} ({backend_report.config_path}) does not list "
            f"`{served.policy.upstream}`",
        )
        return
    yield from _find_probe_problems(f"{path}.thinking_budget", served, backend_report, capabilities)


def _find_probe_problems(
    path: str, served: ServedModel, backend_report: BackendReport, capabilities: Capabilities
) -> Iterator[Problem]:
    if capabilities.failure is not None:
        yield Problem(
            backend_report.config_path,
            f"{backend_report.url} does not answer for {served.id}: {capabilities.failure}",
        )
    if capabilities.has_usage is False:
        yield Problem(
            backend_report.config_path, f"{backend_report.url} reports no usage for {served.id}"
        )
    if capabilities.budget_refusal and served.policy.budget_keeper == "engine":
        field = served.policy.engine.budget_field
        yield Problem(
            path,
            f"{backend_report.url} refuses {field} ({capabilities.budget_refusal}); set "
            "thinking_budget to edge or refuse",
        )


def _find_window_problems(
    path: str, tokens: int, served: ServedModel, survey: Survey
) -> Iterator[Problem]:
    for backend_report in survey.in_pool(served.pool):
        capabilities = backend_report.capabilities_by_model.get(served.id)
        if (
            capabilities is not None
            and capabilities.window is not None
            and tokens > capabilities.window
        ):
            yield Problem(
                path, f"is {tokens}, but {backend_report.url} accepts {capabilities.window} tokens"
            )
