"""Checks settings against each other: references, duplicates, either-or, the loopback rule.

Takes a Config whose single values are valid and returns its problems. Reads no file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from ferrule.config.problems import Problem
from ferrule.config.settings import Config, ModelConfig, PoolConfig
from ferrule.config.struct_reader import StructReader
from ferrule.dialects import Dialect

_POOL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HEALTH_PATH = re.compile(r"/[!-~]*")
_TOKENIZERS = ("o200k_base", "cl100k_base")


def check(config: Config) -> list[Problem]:
    """Every problem found, in the order of the file's sections; empty for a usable Config."""
    return [
        *_check_listen(config),
        *_check_pools(config),
        *_check_models(config),
        *_check_limits(config),
    ]


def _check_listen(config: Config) -> Iterator[Problem]:
    if (
        config.auth.keys_file is None
        and not config.auth.allow_anonymous
        and not config.listen.is_loopback
    ):
        yield Problem(
            "listen",
            f"{config.listen} is open to others; set auth.keys_file, listen on 127.0.0.1, or set "
            f"auth.allow_anonymous: true",
        )
    if config.listen == config.admin and config.listen.port != 0:
        yield Problem("admin", "expected another address than listen")


def _check_pools(config: Config) -> Iterator[Problem]:
    if not config.pools:
        yield Problem("pools", "expected at least one pool with backends")
    for name, pool in config.pools.items():
        path = f"pools.{name}"
        if not _POOL_NAME.fullmatch(name):
            yield Problem(path, "expected a name of letters, digits, dots, dashes and underscores")
        yield from _check_sources(pool, path)
        yield from _check_backends(pool, path)
        if pool.max_inflight < pool.slots:
            yield Problem(f"{path}.max_inflight", f"expected at least slots ({pool.slots})")
        if not _HEALTH_PATH.fullmatch(pool.health.path):
            yield Problem(f"{path}.health.path", "expected a path such as /health")
        if pool.health.timeout_s > pool.health.interval_s:
            yield Problem(
                f"{path}.health.timeout_s",
                f"expected at most interval_s ({pool.health.interval_s:g})",
            )


def _check_sources(pool: PoolConfig, path: str) -> Iterator[Problem]:
    if pool.discover is None:
        if not pool.backends:
            yield Problem(path, "expected backends or discover")
        return
    if pool.backends:
        yield Problem(f"{path}.discover", "expected either backends or discover, not both")
    if (pool.discover.dns is None) == (pool.discover.kubernetes is None):
        yield Problem(f"{path}.discover", "expected exactly one of dns and kubernetes")
    if pool.discover.dns is not None and pool.discover.dns.port == 0:
        yield Problem(f"{path}.discover.dns", "expected HOST:PORT with the backends' port")


def _check_backends(pool: PoolConfig, path: str) -> Iterator[Problem]:
    first_index: dict[str, int] = {}
    for index, backend in enumerate(pool.backends):
        url = backend.url.url
        if url in first_index:
            yield Problem(
                f"{path}.backends.{index}",
                f"`{url}` is already listed as {path}.backends.{first_index[url]}",
            )
        first_index.setdefault(url, index)
        if backend.url.authorization is not None and pool.api_key is not None:
            yield Problem(
                f"{path}.backends.{index}",
                "expected either a user in the URL or the pool's api_key, not both",
            )


def _check_models(config: Config) -> Iterator[Problem]:
    taken: dict[str, str] = {}
    for index, model in enumerate(config.models):
        path = f"models.{index}"
        if not model.pool and len(config.pools) != 1:
            yield Problem(
                f"{path}.pool",
                f"is required, since there is more than one pool: {_list_pools(config)}",
            )
        if model.pool and model.pool not in config.pools:
            yield Problem(
                f"{path}.pool", f"no pool `{model.pool}`; expected one of {_list_pools(config)}"
            )
        if "*" in model.id:
            yield Problem(f"{path}.id", "expected a name without `*`; patterns go into aliases")
        names_with_paths = [(model.id, f"{path}.id")] + [
            (alias, f"{path}.aliases.{number}") for number, alias in enumerate(model.aliases)
        ]
        for name, name_path in names_with_paths:
            if name in taken:
                yield Problem(name_path, f"`{name}` is already taken by {taken[name]}")
            taken.setdefault(name, name_path)
        yield from _check_policy(config, model, path)


def _check_policy(config: Config, model: ModelConfig, path: str) -> Iterator[Problem]:
    if model.tokenizer not in _TOKENIZERS and not model.tokenizer.endswith(".json"):
        yield Problem(
            f"{path}.tokenizer",
            f"expected {', '.join(_TOKENIZERS)} or the path of a tokenizer.json",
        )
    if model.thinking_budget == "edge" and not model.can_continue:
        yield Problem(
            f"{path}.thinking_budget", "expected refuse or engine, since can_continue is false"
        )
    if "name" in model.dialect:
        yield Problem(
            f"{path}.dialect.name",
            "expected single settings; `dialect` at the top level sets the dialect they override",
        )
    reader = StructReader(environment={}, parsers={})
    reader.read_struct(Dialect, {**model.dialect, "name": config.dialect}, f"{path}.dialect")
    yield from reader.problems


def _check_limits(config: Config) -> Iterator[Problem]:
    if not _is_store(config.limits.store.reveal()):
        yield Problem(
            "limits.store", "expected memory or redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]"
        )


def _is_store(store: str) -> bool:
    if store == "memory":
        return True
    try:
        parts = urlsplit(store)
        port = parts.port
    except ValueError:
        return False
    return (
        parts.scheme in ("redis", "rediss")
        and bool(parts.hostname)
        and port != 0
        and (parts.path.strip("/") or "0").isdigit()
    )


def _list_pools(config: Config) -> str:
    return ", ".join(config.pools) or "none, as there are no pools"
