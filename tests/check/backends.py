"""Makes surveys of backends for the tests of problems and report."""

from __future__ import annotations

import json
from typing import Any

from tests.app_state import config_of

from ferrule.backends.client import BackendInfo
from ferrule.catalog import Catalog, merge
from ferrule.check.survey import BackendReport, Capabilities, Survey
from ferrule.config import Config

URL = "http://10.0.0.1:8000"


def make_config(**settings: Any) -> Config:
    return config_of(URL, **settings)


def make_info(
    *models: str, version: str = "0.33.0", owner: str = "vllm", window: int = 1000
) -> BackendInfo:
    listed = [{"id": model, "owned_by": owner, "max_model_len": window} for model in models]
    return BackendInfo(
        json.dumps({"data": listed}).encode(), json.dumps({"version": version}).encode()
    )


def make_report(capabilities: Capabilities | None = None, **members: Any) -> BackendReport:
    """A backend that lists `m`, with its capabilities for it."""
    capabilities_by_model = {"m": capabilities or Capabilities(window=1000, counted_tokens=9)}
    return BackendReport(
        **{
            "pool": "p",
            "name": "p-1",
            "url": URL,
            "config_path": "pools.p.backends.0",
            "info": make_info("m"),
            "capabilities_by_model": capabilities_by_model,
            **members,
        }
    )


def make_survey(config: Config, *backends: BackendReport, probes: bool = False) -> Survey:
    discovered_by_pool = {
        name: merge(
            [
                backend.info.discovered
                for backend in backends
                if backend.pool == name and backend.info
            ]
        )
        for name in config.pools
    }
    return Survey(list(backends), Catalog(config, discovered_by_pool), probes)
