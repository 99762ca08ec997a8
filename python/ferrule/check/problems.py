"""What is wrong, out of the configuration and what the backends answered: each problem with its place. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ferrule.backends.token_counter import tokenizer
from ferrule.catalog import Served
from ferrule.check.survey import Ability, Asked, Inquiry
from ferrule.config import Config, Problem


def problems(config: Config, inquiry: Inquiry) -> list[Problem]:
    return [*_pools(config, inquiry), *_models(config, inquiry)]


def _pools(config: Config, inquiry: Inquiry) -> Iterator[Problem]:
    for name, pool in config.pools.items():
        members = inquiry.of(name)
        if not members:
            yield Problem(f"pools.{name}.discover", "finds no backend")
        for asked in members:
            yield from _backend(asked, pool.engine)
    if not config.models and any(asked.description for asked in inquiry.asked) and not inquiry.catalog.all():
        yield Problem("models", "no backend lists a model")


def _backend(asked: Asked, engine: str) -> Iterator[Problem]:
    if asked.trouble:
        yield Problem(asked.place, f"{asked.url} is not well: {asked.trouble}")
    if asked.description is None:
        if not asked.trouble:
            yield Problem(asked.place, f"{asked.url} does not list its models (GET /v1/models)")
        return
    found = asked.description.offer.profile.name
    # plain vllm is also what a server is taken for that says nothing
    if engine not in ("auto", found) and found != "vllm":
        yield Problem(f"pools.{asked.pool}.engine", f"is {engine}, but {asked.url} says it is {found}; expected auto")


def _models(config: Config, inquiry: Inquiry) -> Iterator[Problem]:
    for index, model in enumerate(config.models):
        served = inquiry.catalog.find(model.id)
        if served is None:
            continue
        path = f"models.{index}"
        for asked in inquiry.of(model.pool):
            if asked.description is not None:
                yield from _model_at(path, served, asked)
        if model.context_window is not None:
            yield from _window(f"{path}.context_window", model.context_window, served, inquiry)
        if model.thinking_budget is not None and model.thinking_budget != "refuse" and served.policy.budget_keeper == "refuse":
            yield Problem(f"{path}.thinking_budget", f"is {model.thinking_budget}, which the engine cannot do; budgets will be refused")
        try:
            tokenizer(model.tokenizer)
        except ValueError as unusable:
            yield Problem(f"{path}.tokenizer", str(unusable))
    for served in () if config.models else inquiry.catalog.all():
        for asked in inquiry.of(served.pool):
            if (ability := asked.abilities.get(served.id)) is not None:
                yield from _tried(asked.place, served, asked, ability)


def _model_at(path: str, served: Served, asked: Asked) -> Iterator[Problem]:
    ability = asked.abilities.get(served.id)
    if ability is None:
        yield Problem(f"{path}.upstream", f"{asked.url} ({asked.place}) does not list `{served.policy.upstream}`")
        return
    yield from _tried(f"{path}.thinking_budget", served, asked, ability)


def _tried(path: str, served: Served, asked: Asked, ability: Ability) -> Iterator[Problem]:
    if ability.trouble is not None:
        yield Problem(asked.place, f"{asked.url} does not answer for {served.id}: {ability.trouble}")
    if ability.has_usage is False:
        yield Problem(asked.place, f"{asked.url} tells no usage for {served.id}")
    if ability.budget_refusal and served.policy.budget_keeper == "engine":
        field = served.policy.engine.budget_field
        yield Problem(path, f"{asked.url} refuses {field} ({ability.budget_refusal}); set thinking_budget to edge or refuse")


def _window(path: str, tokens: int, served: Served, inquiry: Inquiry) -> Iterator[Problem]:
    for asked in inquiry.of(served.pool):
        ability = asked.abilities.get(served.id)
        if ability is not None and ability.window is not None and tokens > ability.window:
            yield Problem(path, f"is {tokens}, but {asked.url} takes {ability.window} tokens")
