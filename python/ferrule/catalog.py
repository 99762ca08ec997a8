"""Maps a model's name to the pool and policy that serve it.

Configured models first; if there are none, those that the backends list. Lookups read memory only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ferrule._core import ResponsePolicy
from ferrule.config import Config, ModelConfig, matches
from ferrule.dialects import DIALECTS, override
from ferrule.engines import PROFILES, Profile
from ferrule.messages.policy import Policy

UNKNOWN_LABEL = "other"
MAX_REMEMBERED_NAMES = 10_000


class ListedModel(msgspec.Struct, frozen=True):
    """One entry of a backend's `/v1/models`. `window`: tokens."""

    id: str
    window: int | None = None
    created: int = 0


class DiscoveredModels(msgspec.Struct, frozen=True):
    """What a pool's backends list. `models`: the union over those that answered."""

    profile: Profile = PROFILES["vllm"]
    models: tuple[ListedModel, ...] = ()
    has_answered: bool = False


def merge(discovered_by_pool: Sequence[DiscoveredModels]) -> DiscoveredModels:
    """Every model that any of the backends lists. Where windows differ the smallest holds: a prompt
    that fits it fits every backend."""
    union: dict[str, ListedModel] = {}
    for listed in (listed for discovered in discovered_by_pool for listed in discovered.models):
        known = union.setdefault(listed.id, listed)
        if listed.window is not None and (known.window is None or listed.window < known.window):
            union[listed.id] = listed
    return (
        DiscoveredModels(discovered_by_pool[0].profile, tuple(union.values()), True)
        if discovered_by_pool
        else DiscoveredModels()
    )


class ServedModel(msgspec.Struct, frozen=True):
    """A model with what is needed to serve it."""

    id: str
    pool: str
    policy: Policy
    response_policy: ResponsePolicy
    tokenizer: str
    created: int = 0
    label: str = UNKNOWN_LABEL
    """The model's name in metrics."""


class Catalog:
    """Finds models by name. Replaced on reload; `learn` updates what the backends list."""

    def __init__(self, config: Config, discovered_by_pool: Mapping[str, DiscoveredModels]) -> None:
        self.config = config
        self._discovered_by_pool = dict(discovered_by_pool)
        self._found: dict[str, ServedModel] = {}

    def learn(self, pool: str, discovered: DiscoveredModels) -> None:
        if self._discovered_by_pool.get(pool) != discovered:
            self._discovered_by_pool[pool] = discovered
            self._found.clear()

    def find(self, name: str) -> ServedModel | None:
        """The model behind a name a client sent; None: not served."""
        served = self._found.get(name)
        if served is None:
            served = (
                self._configured(name)
                if self.config.models
                else self._discovered(strip_suffix(name))
            )
            if served is not None and len(self._found) < MAX_REMEMBERED_NAMES:
                self._found[name] = served
        return served

    def all(self) -> list[ServedModel]:
        """Every model for a list of models, in a stable order."""
        names: Iterable[str]
        if self.config.models:
            names = [model.id for model in self.config.models]
        else:
            names = sorted(
                {
                    listed.id
                    for discovered in self._discovered_by_pool.values()
                    for listed in discovered.models
                }
            )
        return [served for name in names if (served := self.find(name)) is not None]

    def _configured(self, name: str) -> ServedModel | None:
        model = find_model(self.config.models, name)
        return (
            None
            if model is None
            else self._served(model, self._listed(model.pool, model.upstream), model.id)
        )

    def _discovered(self, name: str) -> ServedModel | None:
        for pool in self.config.pools:
            listed = self._listed(pool, name)
            if listed is not None:
                return self._served(ModelConfig(id=name, pool=pool, upstream=name), listed, name)
        for pool in self.config.pools:
            if not self._discovered_of(pool).has_answered:  # pool not probed yet; try it
                return self._served(
                    ModelConfig(id=name, pool=pool, upstream=name), None, UNKNOWN_LABEL
                )
        return None

    def _served(self, model: ModelConfig, listed: ListedModel | None, label: str) -> ServedModel:
        pool = self.config.pools[model.pool]
        policy = Policy(
            dialect=override(DIALECTS[self.config.dialect], model.dialect),
            engine=self._discovered_of(model.pool).profile
            if pool.engine == "auto"
            else PROFILES[pool.engine],
            upstream=model.upstream,
            images=model.images,
            context_window=model.context_window or (listed.window if listed else None),
            effort=model.effort,
            budget=model.thinking_budget,
            media_hosts=frozenset(self.config.media_hosts),
            system_first=pool.system_first,
            split_think=pool.split_think,
            can_continue=model.can_continue,
        )
        return ServedModel(
            model.id,
            model.pool,
            policy,
            _response_policy(policy),
            model.tokenizer,
            listed.created if listed else 0,
            label,
        )

    def _discovered_of(self, pool: str) -> DiscoveredModels:
        return self._discovered_by_pool.get(pool, DiscoveredModels())

    def _listed(self, pool: str, upstream: str) -> ListedModel | None:
        return next(
            (listed for listed in self._discovered_of(pool).models if listed.id == upstream), None
        )


def _response_policy(policy: Policy) -> ResponsePolicy:
    dialect = policy.dialect
    return ResponsePolicy(
        signature_prefix=dialect.signature,
        stop_reasons=None if dialect.stop_reasons is None else tuple(dialect.stop_reasons),
        report_stop_sequence=dialect.report_stop_sequence,
        close_block_on_error=dialect.close_block_on_error,
        split_think=policy.split_think,
        context_window=policy.context_window,
    )


def find_model(models: Sequence[ModelConfig], name: str) -> ModelConfig | None:
    """The configured model a client means: by id, then by alias in the order of the file."""
    name = strip_suffix(name)
    for model in models:
        if model.id == name:
            return model
    for model in models:
        if any(matches(alias, name) for alias in model.aliases):
            return model
    return None


def strip_suffix(name: str) -> str:
    """The name without `[1m]`, with which Claude Code asks for a long window."""
    return name.removesuffix("[1m]")
