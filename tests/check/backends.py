"""Answers of backends, as the tests of findings and report write them down."""

from __future__ import annotations

import json
from typing import Any

from tests.app_state import config_of

from ferrule.backends.client import Description
from ferrule.catalog import Catalog, together
from ferrule.check.survey import Ability, Asked, Inquiry
from ferrule.config import Config

URL = "http://10.0.0.1:8000"


def config(**settings: Any) -> Config:
    return config_of(URL, **settings)


def description(*models: str, version: str = "0.33.0", owner: str = "vllm", window: int = 1000) -> Description:
    listed = [{"id": model, "owned_by": owner, "max_model_len": window} for model in models]
    return Description(json.dumps({"data": listed}).encode(), json.dumps({"version": version}).encode())


def asked(ability: Ability | None = None, **members: Any) -> Asked:
    """A backend that lists `m`, and what it does for it."""
    abilities = {"m": ability or Ability(window=1000, counted_tokens=9)}
    return Asked(
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


def inquiry(config: Config, *backends: Asked, probes: bool = False) -> Inquiry:
    offers = {name: together([one.description.offer for one in backends if one.pool == name and one.description]) for name in config.pools}
    return Inquiry(list(backends), Catalog(config, offers), probes)
