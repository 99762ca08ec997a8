"""Which model a name means, and what holds for it."""

from __future__ import annotations

import pytest
from tests.app_state import config_of

from ferrule.catalog import (
    Catalog,
    DiscoveredModels,
    ListedModel,
    ServedModel,
    find_model,
    merge,
)
from ferrule.config import Config, Flags, ModelConfig, from_flags
from ferrule.engines import PROFILES

VLLM, LLAMACPP = PROFILES["vllm"], PROFILES["llamacpp"]


def discovered(*listed: ListedModel) -> DiscoveredModels:
    return DiscoveredModels(VLLM, listed, True)


def unnamed() -> Config:
    return from_flags(Flags(backends=("http://127.0.0.1:9",)))


def found(catalog: Catalog, name: str) -> ServedModel:
    served = catalog.find(name)
    assert served is not None
    return served


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("m", "m"),
        ("m[1m]", "m"),
        ("claude-haiku-4-5", "m"),
        ("claude-haiku-4-5[1m]", "m"),
        ("other", None),
        ("M", None),
    ],
)
def test_configured_names(name: str, id: str | None) -> None:
    served = Catalog(config_of("http://127.0.0.1:9"), {}).find(name)
    assert (served.id if served else None) == id


def test_a_configured_model_takes_from_its_backend_what_nobody_said() -> None:
    config = config_of("http://127.0.0.1:9", model={"upstream": "deep/m"})
    catalog = Catalog(
        config, {"p": discovered(ListedModel("deep/m", 1000, 5), ListedModel("x", 1))}
    )
    served = found(catalog, "m")
    assert (served.policy.upstream, served.policy.context_window, served.created, served.label) == (
        "deep/m",
        1000,
        5,
        "m",
    )
    said = config_of("http://127.0.0.1:9", model={"context_window": 500})
    assert (
        found(Catalog(said, {"p": discovered(ListedModel("m", 1000))}), "m").policy.context_window
        == 500
    )


def test_knobs_are_the_dialects_with_the_models_own() -> None:
    config = config_of("http://127.0.0.1:9", model={"dialect": {"reasoning": "text"}})
    dialect = found(Catalog(config, {}), "m").policy.dialect
    assert (dialect.name, dialect.reasoning) == ("anthropic", "text")


def test_the_engine_is_what_the_pool_says_or_what_was_found() -> None:
    received = {"p": DiscoveredModels(LLAMACPP, (), True)}
    assert found(Catalog(config_of("http://127.0.0.1:9"), received), "m").policy.engine is VLLM
    assert (
        found(
            Catalog(config_of("http://127.0.0.1:9", pool={"engine": "auto"}), received), "m"
        ).policy.engine
        is LLAMACPP
    )


def test_without_configured_models_every_listed_one_is_served() -> None:
    catalog = Catalog(unnamed(), {})
    assert found(catalog, "anything").label == "other"  # nobody said yet what there is
    catalog.learn("default", discovered(ListedModel("b", 7), ListedModel("a")))
    assert catalog.find("anything") is None
    assert (found(catalog, "b[1m]").policy.context_window, found(catalog, "b").label) == (7, "b")
    assert [served.id for served in catalog.all()] == ["a", "b"]


def test_learning_forgets_what_was_found() -> None:
    catalog = Catalog(config_of("http://127.0.0.1:9"), {})
    assert found(catalog, "m").policy.context_window is None
    catalog.learn("p", discovered(ListedModel("m", 9)))
    assert found(catalog, "m").policy.context_window == 9
    kept = found(catalog, "m")
    catalog.learn("p", discovered(ListedModel("m", 9)))
    assert catalog.find("m") is kept


def test_together_has_all_models_and_the_smallest_windows() -> None:
    one, other = (
        discovered(ListedModel("a", 10), ListedModel("b", None)),
        discovered(ListedModel("a", 5), ListedModel("b", 8), ListedModel("c", 1)),
    )
    assert merge([one, other]).models == (
        ListedModel("a", 5),
        ListedModel("b", 8),
        ListedModel("c", 1),
    )
    assert merge([other, one]).models == (
        ListedModel("a", 5),
        ListedModel("b", 8),
        ListedModel("c", 1),
    )
    assert merge([]) == DiscoveredModels()


MODELS = (
    ModelConfig(id="DeepSeek-V4-Flash", aliases=("claude-haiku-*", "a")),
    ModelConfig(id="q", aliases=("claude-*", "DeepSeek-*")),
)


@pytest.mark.parametrize(
    ("name", "model_id"),
    [
        ("DeepSeek-V4-Flash", "DeepSeek-V4-Flash"),
        ("claude-haiku-4-5", "DeepSeek-V4-Flash"),
        ("claude-haiku-4-5-20251001", "DeepSeek-V4-Flash"),
        ("claude-opus-4-6", "q"),
        ("a", "DeepSeek-V4-Flash"),
        ("q[1m]", "q"),
        ("claude-haiku-4-5[1m]", "DeepSeek-V4-Flash"),
        ("DeepSeek-V5", "q"),
        ("gpt-4", None),
        ("", None),
        ("Q", None),
    ],
)
def test_k09_ids_and_aliases(name: str, model_id: str | None) -> None:
    found = find_model(MODELS, name)
    assert (found.id if found else None) == model_id
