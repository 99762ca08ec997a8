"""count_tokens and models: answered in the shape the asker reads, from what the backend says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.doubles.backend import ScriptedBackend, whole
from tests.doubles.proxy import REQ, Ferrule, assert_error, config_for
from tests.e2e.test_cases_tools import F_TOOL

COUNT = "/v1/messages/count_tokens"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
ANTHROPIC_KEYS = {"type", "id", "display_name", "created_at"}


def test_g01_counting_needs_no_max_tokens(proxy: Ferrule, backend: ScriptedBackend) -> None:
    answer = proxy.client.post(f"{COUNT}?beta=true", REQ(max_tokens=None))
    assert answer.status == 200, answer.text
    assert isinstance(answer.json()["input_tokens"], int)
    assert backend.requests == []


def test_g03_the_engines_own_count(proxy: Ferrule, backend: ScriptedBackend) -> None:
    answer = proxy.ask(COUNT, system="S", tools=[F_TOOL])
    assert answer.json() == {"input_tokens": 77}
    (seen,) = [seen for seen in backend.others if seen.target == "/tokenize"]
    assert [message["role"] for message in seen.json["messages"]] == ["system", "user"]
    assert seen.json["tools"][0]["function"]["name"] == "F"


def test_g05_an_image_is_not_counted_as_text(proxy: Ferrule, backend: ScriptedBackend) -> None:
    backend.routes["POST", "/tokenize"] = whole({"detail": "Not Found"}, 404)
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": PIXEL * 2000},
    }
    answer = proxy.ask(
        COUNT, messages=[{"role": "user", "content": [{"type": "text", "text": "look"}, image]}]
    )
    assert answer.status == 200, answer.text
    assert 0 < answer.json()["input_tokens"] < 10_000


@pytest.mark.parametrize(
    ("headers", "is_anthropic"),
    [
        ({"anthropic-version": "2023-06-01"}, True),
        ({"anthropic-version": "2026-10-21", "authorization": "Bearer k"}, True),
        ({"x-api-key": "k"}, True),
        ({"authorization": "Bearer k"}, False),
        ({}, False),
    ],
    ids=["version", "version-and-bearer", "x-api-key", "bearer", "nothing"],
)
@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models?limit=1&after_id=x", "/api/v1/models?limit=1000"]
)
def test_g07_models_in_either_shape(
    proxy: Ferrule, headers: dict[str, str], is_anthropic: bool, path: str
) -> None:
    answer = proxy.client.get(path, headers)
    assert answer.status == 200, answer.text
    listed = answer.json()
    (entry,) = [entry for entry in listed["data"] if entry["id"] == "m"]
    if is_anthropic:
        assert entry["type"] == "model"
        assert entry.keys() >= ANTHROPIC_KEYS
        assert listed["has_more"] is False
        assert {listed["first_id"], listed["last_id"]} <= {one["id"] for one in listed["data"]}
    else:
        assert listed["object"] == "list"
        assert entry["object"] == "model"


def test_g07_one_model(proxy: Ferrule) -> None:
    answer = proxy.client.get("/v1/models/m", {"anthropic-version": "2023-06-01"})
    assert answer.json()["id"] == "m"
    assert answer.json()["max_input_tokens"] == 32768
    assert_error(
        proxy.client.get("/v1/models/nope", {"anthropic-version": "2023-06-01"}),
        404,
        "not_found_error",
    )


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", COUNT])
def test_g11_aliases_hold_on_every_route(
    proxy: Ferrule, backend: ScriptedBackend, path: str
) -> None:
    answer = proxy.ask(path, model="claude-haiku-4-5")
    assert answer.status == 200, answer.text
    asked = [seen for seen in backend.requests + backend.others if seen.method == "POST"]
    assert [seen.json["model"] for seen in asked] == ["m"]


@pytest.mark.parametrize("model", ["claude-haiku-4-5", "claude-haiku-4-5-20251001", "m[1m]"])
def test_k09_aliases_with_a_star(proxy: Ferrule, backend: ScriptedBackend, model: str) -> None:
    assert proxy.message(model=model)["model"] == model
    assert backend.last.json["model"] == "m"


def test_k09_what_no_alias_matches_is_unknown(proxy: Ferrule) -> None:
    for path in ("/v1/messages", "/v1/chat/completions", COUNT):
        answer = proxy.ask(path, model="claude-opus-5-5")
        assert answer.status == 404, (path, answer.text)
    assert_error(proxy.ask(model="claude-opus-5-5"), 404, "not_found_error", "claude-opus-5-5")


def test_g09_a_backend_below_a_path(
    new_backend: Callable[..., ScriptedBackend], new_proxy: Callable[..., Ferrule]
) -> None:
    backend = new_backend()
    backend.prefix = "/openai"
    proxy = new_proxy(config_for(backend.url, pool={"engine": "auto"}))
    proxy.message()
    assert proxy.ask(COUNT).json() == {"input_tokens": 77}
    targets = {seen.target for seen in backend.requests + backend.others}
    assert targets
    assert not [target for target in targets if not target.startswith("/openai/")]


def test_assertion_42_slash_in_a_model_id(
    new_backend: Callable[..., ScriptedBackend], new_proxy: Callable[..., Ferrule]
) -> None:
    backend = new_backend(model="org/name")
    proxy = new_proxy(None, args=["--backend", backend.url, "--dialect", "anthropic"])
    for path in ("/v1/models/org/name", "/v1/models/org%2Fname"):
        assert proxy.client.get(path, {"anthropic-version": "x"}).json()["id"] == "org/name"
    assert proxy.message(model="org/name")["model"] == "org/name"


def test_counting_a_long_body(proxy: Ferrule, backend: ScriptedBackend) -> None:
    backend.routes["POST", "/tokenize"] = whole({"detail": "Not Found"}, 404)
    words = "the quick brown fox jumps over the lazy dog " * 2000
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": words}],
        "system": "S",
        "tools": [F_TOOL],
    }
    count = proxy.ask(COUNT, **body).json()["input_tokens"]
    assert 17_000 < count < 20_000, json.dumps(count)
