"""Loads the configuration from a file, flags, or both: parse, validate, resolve paths, check, fill
in."""

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
from ferrule.config.struct_reader import StructReader

DEFAULT_POOL = "default"


def load(
    path: str | Path, flags: Flags = NO_FLAGS, environment: Mapping[str, str] | None = None
) -> Config:
    """The file's Config, overridden by flags. Relative paths in it are relative to the file. Raises
    ConfigError with every problem found."""
    config_file = Path(path)
    if flags.backends:
        raise UsageError(
            [
                Problem(
                    "--backend",
                    f"expected either --backend or --config; {config_file} names the backends",
                )
            ]
        )
    return _finish(read_document(config_file), flags, environment, config_file)


def loads(
    text: str,
    flags: Flags = NO_FLAGS,
    environment: Mapping[str, str] | None = None,
    source: str = "ferrule.yaml",
) -> Config:
    """As `load`, from text; relative paths are relative to the working directory."""
    return _finish(parse_document(text.encode(), source), flags, environment, Path(source))


UNBOUNDED_INFLIGHT = 100_000
"""For backends given by flags: their limit is unknown, and vLLM queues by itself."""


def from_flags(flags: Flags, environment: Mapping[str, str] | None = None) -> Config:
    """A Config with one pool, `default`, of the `--backend` URLs, that serves every model they
    list."""
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
    document: object, flags: Flags, environment: Mapping[str, str] | None, config_file: Path | None
) -> Config:
    source = str(config_file) if config_file else ""
    if document is not None and not isinstance(document, dict):
        raise ConfigError([Problem("", "expected a mapping of settings")], source)
    settings = {**(document or {}), **_flag_values(flags)}
    reader = StructReader(os.environ if environment is None else environment, _build_parsers())
    settings = _normalize_backends(settings)
    config = reader.read_struct(Config, settings, "")
    if config is None:
        raise _make_error(reader.problems, flags, source)
    config = _resolve_paths(config, config_file.resolve().parent if config_file else Path.cwd())
    problems = check(config) + _find_missing_files(config)
    if problems:
        reported = [_name_flag(problem, flags) for problem in problems]
        raise ConfigError(reported, source) if config_file else UsageError(reported)
    return _fill_models(config)


def _flag_values(flags: Flags) -> dict[str, object]:
    names = ("listen", "admin", "workers", "dialect")
    return {name: getattr(flags, name) for name in names if getattr(flags, name) is not None}


def _make_error(problems: Sequence[Problem], flags: Flags, source: str) -> ConfigError:
    reported = [_name_flag(problem, flags) for problem in problems]
    return (
        UsageError(reported)
        if all(problem.path.startswith("--") for problem in reported)
        else ConfigError(reported, source)
    )


def _name_flag(problem: Problem, flags: Flags) -> Problem:
    """The problem with the flag in place of the path, if a flag set the value."""
    if problem.path in _flag_values(flags):
        return Problem(f"--{problem.path}", problem.message)
    if flags.backends and problem.path.startswith(f"pools.{DEFAULT_POOL}.backends."):
        return Problem("--backend", problem.message)
    return problem


def _build_parsers() -> dict[type, Callable[[object], Any]]:
    return {Address: parse_address, BackendUrl: parse_backend_url, Secret: _parse_secret}


def _parse_secret(value: object) -> Secret:
    if not isinstance(value, str) or not value:
        raise ValueError("expected text that is not empty")
    return Secret(value)


def _normalize_backends(settings: dict[str, object]) -> dict[str, object]:
    """Backends written as a URL become mappings, so that they get the default weight."""
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
    models = tuple(_resolve_tokenizer(model, folder) for model in config.models)
    return msgspec.structs.replace(config, auth=auth, models=models)


def _resolve_tokenizer(model: ModelConfig, folder: Path) -> ModelConfig:
    if not model.tokenizer.endswith(".json"):
        return model
    return msgspec.structs.replace(model, tokenizer=str(folder / model.tokenizer))


def _find_missing_files(config: Config) -> list[Problem]:
    files = [
        (f"models.{index}.tokenizer", model.tokenizer) for index, model in enumerate(config.models)
    ]
    files = [(path, name) for path, name in files if name.endswith(".json")]
    if config.auth.keys_file is not None:
        files.append(("auth.keys_file", config.auth.keys_file))
    return [
        Problem(path, f"no such file: {name}") for path, name in files if not Path(name).is_file()
    ]


def _fill_models(config: Config) -> Config:
    # with several pools `check` has refused models that name none
    only_pool = next(iter(config.pools))
    models = tuple(
        msgspec.structs.replace(
            model, pool=model.pool or only_pool, upstream=model.upstream or model.id
        )
        for model in config.models
    )
    return msgspec.structs.replace(config, models=models)
