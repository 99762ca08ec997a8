"""Loads the configuration from a file, flags, or both."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ferrule.config.address import Address, BackendUrl, parse_address, parse_backend_url
from ferrule.config.document import parse_document, read_document
from ferrule.config.problems import ConfigError, Problem, UsageError
from ferrule.config.rules import check
from ferrule.config.secret import Secret
from ferrule.config.settings import NO_FLAGS, AuthConfig, Config, Flags, ModelConfig
from ferrule.config.shape import Shape

DEFAULT_POOL = "default"


def load(
    path: str | Path, flags: Flags = NO_FLAGS, environment: Mapping[str, str] | None = None
) -> Config:
    """The file's Config with the flags on top. ConfigError has every problem found. Relative paths
    are the file's."""
    place = Path(path)
    if flags.backends:
        raise UsageError(
            [
                Problem(
                    "--backend",
                    f"expected either --backend or --config, which names the backends ({place})",
                )
            ]
        )
    return _finish(read_document(place), flags, environment, place)


def loads(
    text: str,
    flags: Flags = NO_FLAGS,
    environment: Mapping[str, str] | None = None,
    source: str = "ferrule.yaml",
) -> Config:
    """As `load`, from text; relative paths are the working directory's."""
    return _finish(parse_document(text.encode(), source), flags, environment, Path(source))


UNBOUNDED_INFLIGHT = 100_000
"""Without a file no limit is known, and vLLM queues by itself."""


def from_flags(flags: Flags, environment: Mapping[str, str] | None = None) -> Config:
    """A Config with one pool, `default`, of the `--backend` URLs, serving whatever they list."""
    if not flags.backends:
        raise UsageError(
            [Problem("--backend", "expected at least one backend URL, or --config FILE")]
        )
    document = {
        "pools": {
            DEFAULT_POOL: {"backends": list(flags.backends), "max_inflight": UNBOUNDED_INFLIGHT}
        }
    }
    return _finish(document, flags, environment, None)


def _finish(
    document: object, flags: Flags, environment: Mapping[str, str] | None, place: Path | None
) -> Config:
    source = str(place) if place else ""
    if document is not None and not isinstance(document, dict):
        raise ConfigError([Problem("", "expected a mapping of settings")], source)
    settings = {**(document or {}), **_flag_values(flags)}
    shape = Shape(os.environ if environment is None else environment, _parsers())
    settings = _normalize_sections(settings)
    config = shape.section(Config, settings, "")
    if config is None:
        raise _error(shape.problems, flags, source)
    config = _resolve_paths(config, place.resolve().parent if place else Path.cwd())
    problems = check(config) + _missing_files(config)
    if problems:
        problems_named = [_name_flag(problem, flags) for problem in problems]
        raise ConfigError(problems_named, source) if place else UsageError(problems_named)
    return _fill_models(config)


def _flag_values(flags: Flags) -> dict[str, object]:
    names = ("listen", "admin", "workers", "dialect")
    return {name: getattr(flags, name) for name in names if getattr(flags, name) is not None}


def _error(problems: Sequence[Problem], flags: Flags, source: str) -> ConfigError:
    problems_named = [_name_flag(problem, flags) for problem in problems]
    return (
        UsageError(problems_named)
        if all(problem.path.startswith("--") for problem in problems_named)
        else ConfigError(problems_named, source)
    )


def _name_flag(problem: Problem, flags: Flags) -> Problem:
    """A problem of a flag names the flag."""
    if problem.path in _flag_values(flags):
        return Problem(f"--{problem.path}", problem.message)
    if flags.backends and problem.path.startswith(f"pools.{DEFAULT_POOL}.backends."):
        return Problem("--backend", problem.message)
    return problem


def _parsers() -> dict[type, Callable[[object], Any]]:
    return {Address: parse_address, BackendUrl: parse_backend_url, Secret: _parse_secret}


def _parse_secret(value: object) -> Secret:
    if not isinstance(value, str) or not value:
        raise ValueError("expected text that is not empty")
    return Secret(value)


def _normalize_sections(settings: dict[str, object]) -> dict[str, object]:
    """A backend written as a URL is one of weight 1."""
    pools = settings.get("pools")
    if not isinstance(pools, dict):
        return settings
    return {**settings, "pools": {name: _normalize_pool(pool) for name, pool in pools.items()}}


def _normalize_pool(pool: object) -> object:
    if not isinstance(pool, dict) or not isinstance(pool.get("backends"), list):
        return pool
    return {
        **pool,
        "backends": [
            entry if isinstance(entry, dict) else {"url": entry} for entry in pool["backends"]
        ],
    }


def _resolve_paths(config: Config, folder: Path) -> Config:
    auth: AuthConfig = config.auth
    if auth.keys_file is not None:
        auth = msgspec.structs.replace(auth, keys_file=str(folder / auth.keys_file))
    models = tuple(_with_tokenizer_path(model, folder) for model in config.models)
    return msgspec.structs.replace(config, auth=auth, models=models)


def _with_tokenizer_path(model: ModelConfig, folder: Path) -> ModelConfig:
    if not model.tokenizer.endswith(".json"):
        return model
    return msgspec.structs.replace(model, tokenizer=str(folder / model.tokenizer))


def _missing_files(config: Config) -> list[Problem]:
    wanted = [
        (f"models.{index}.tokenizer", model.tokenizer) for index, model in enumerate(config.models)
    ]
    wanted = [(path, name) for path, name in wanted if name.endswith(".json")]
    if config.auth.keys_file is not None:
        wanted.append(("auth.keys_file", config.auth.keys_file))
    return [
        Problem(path, f"no such file: {name}") for path, name in wanted if not Path(name).is_file()
    ]


def _fill_models(config: Config) -> Config:
    only = next(iter(config.pools))
    models = tuple(
        msgspec.structs.replace(model, pool=model.pool or only, upstream=model.upstream or model.id)
        for model in config.models
    )
    return msgspec.structs.replace(config, models=models)
