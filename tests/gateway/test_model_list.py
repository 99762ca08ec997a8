"""The two shapes of a list of models."""

from __future__ import annotations

import json

from ferrule.catalog import Catalog, DiscoveredModels, ListedModel
from ferrule.config import Flags, from_flags
from ferrule.engines import PROFILES
from ferrule.gateway.model_list import encode_list, encode_model


def test_lists() -> None:
    catalog = Catalog(
        from_flags(Flags(backends=("http://127.0.0.1:9",))),
        {
            "default": DiscoveredModels(
                PROFILES["vllm"], (ListedModel("a", 7, 1_700_000_000), ListedModel("b")), True
            )
        },
    )
    anthropic = json.loads(encode_list(catalog.all(), anthropic=True))
    assert (anthropic["first_id"], anthropic["last_id"], anthropic["has_more"]) == ("a", "b", False)
    assert anthropic["data"][0] == {
        "type": "model",
        "id": "a",
        "display_name": "a",
        "created_at": "2023-11-14T22:13:20Z",
        "lifecycle": "active",
        "max_input_tokens": 7,
    }
    openai = json.loads(encode_list(catalog.all(), anthropic=False))
    assert openai["object"] == "list"
    one = {
        "id": "a",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "ferrule",
        "max_model_len": 7,
    }
    assert openai["data"][0] == one == json.loads(encode_model(catalog.all()[0], anthropic=False))
    assert json.loads(encode_list([], anthropic=True))["first_id"] is None
