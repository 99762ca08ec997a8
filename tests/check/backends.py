"""Answers of backends, as the tests of findings and report write them down."""

from __future__ import annotations

import json
from typing import Any

from tests.app_state import config_of

from ferrule.backends.client import BackendInfo
from ferrule.catalog import Catalog, merge
from ferrule.check.survey import BackendReport, Capabilities, Survey
from ferrule.config import Config

URL = "http://10.0.0.1:8000"


def config(**settings: Any) -> Config:
    return config_of(URL, **settings)


def description(
    *models: str, version: str = "0.33.0", owner: str = "vllm", window: int = 1000
) -> BackendInfo:
    listed = [{"id": model, "owned_by": owner, "max_model_len": window} for model in models]
    return BackendInfo(
        json.dumps({"data": listed}).encode(), json.dumps({"version": version}).encode()
    )


def report(ability: Capabilities | None = None, **members: Any) -> BackendReport:
    """A backend that lists `m`, and what it does for it."""
    abilities = {"m": ability or Capabilities(window=1000, counted_tokens=9)}
    return BackendReport(
        **{
            "pool": "p",
            "name": "p-1",
            "url": URL,
            "place": "pools.p.backends.0",
            "description": description("m"),
            "abilities": abilities,
            **members,
        }
    )


def survey(config: Config, *backends: BackendReport, probes: bool = False) -> Survey:
    discovered_by_pool = {
        name: merge(
            [one.description.discovered for one in backends if one.pool == name and one.description]
        )
        for name in config.pools
    }
    return Survey(list(backends), Catalog(config, discovered_by_pool), probes)
