"""Requests that real clients sent: every one is answered with 200, and their conversations keep the
backend's prefix."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.backend import ScriptedBackend
from tests.doubles.events import assert_stream_invariant, read_events
from tests.doubles.frames import Canned
from tests.doubles.proxy import Ferrule, config_for

RECORDINGS = sorted((Path(__file__).parents[1] / "recordings" / "clients").glob("*.json"))
ENDED_BY_CLIENT = {"host", "content-length", "connection", "accept-encoding", "transfer-encoding"}
NOT_SERVED = {404, 405}
"""What the recording stub answered to requests outside the Messages API."""


@pytest.fixture(scope="module")
def recorded_proxy(new_proxy: Callable[..., Ferrule], shared_backend: ScriptedBackend) -> Ferrule:
    config = config_for(shared_backend.url, pool={"system_first": False})
    names = ["claude-x", "org/model-x"]
    config["models"] += [{"id": name, "pool": "p", "upstream": "m"} for name in names]
    config["models"].append(
        {"id": "any", "pool": "p", "upstream": "m", "aliases": ["claude-*", "local/*"]}
    )
    return new_proxy(config)


def requests_of(path: Path) -> list[dict[str, Any]]:
    requests: list[dict[str, Any]] = json.loads(path.read_text())["requests"]
    return requests


def sent_headers(request: dict[str, Any]) -> dict[str, str]:
    pairs = (
        request["headers"].items() if isinstance(request["headers"], dict) else request["headers"]
    )
    return {name: value for name, value in pairs if name.lower() not in ENDED_BY_CLIENT}


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_every_recorded_request_is_answered(
    recorded_proxy: Ferrule, backend: ScriptedBackend, path: Path
) -> None:
    backend.play(Canned("Hi.", reasoning="hm"))
    for request in requests_of(path):
        answer = recorded_proxy.client.request(
            request["method"], request["target"], request["body"], sent_headers(request)
        )
        what = (
            request["n"],
            request["method"],
            request["target"],
            answer.status,
            answer.content[:300],
        )
        if request["target"].startswith("/v1/"):
            assert answer.status == 200, what
        else:
            assert answer.status == 200 or answer.status in NOT_SERVED, what
        body = request["body"]
        if isinstance(body, dict) and body.get("stream") and answer.status == 200:
            assert_stream_invariant(read_events(answer.content))


def conversations(path: Path) -> list[list[dict[str, Any]]]:
    """Requests of one model that share their first user message, in order of length."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for request in requests_of(path):
        body = request["body"]
        if (
            isinstance(body, dict)
            and request["target"].startswith("/v1/messages?")
            and len(body["messages"]) > 1
        ):
            groups.setdefault(str(body["model"]), []).append(request)
    return list(groups.values())


TOOL_RUNS = [path for path in RECORDINGS if path.stem.endswith("-tools")]


@pytest.mark.parametrize("path", TOOL_RUNS, ids=lambda path: path.stem)
def test_assertion_26_each_turn_begins_with_the_one_before(
    recorded_proxy: Ferrule, backend: ScriptedBackend, path: Path
) -> None:
    compared = 0
    for requests in conversations(path):
        backend.requests.clear()
        for request in requests:
            body = {**request["body"], "stream": False}
            assert (
                recorded_proxy.client.post("/v1/messages", body, sent_headers(request)).status
                == 200
            )
        prompts = [
            json.dumps(seen.json["messages"], ensure_ascii=False) for seen in backend.requests
        ]
        for earlier, later in itertools.pairwise(prompts):
            assert later.startswith(earlier[:-1]), (
                f"turn {compared + 1} does not begin with the turn before"
            )
            compared += 1
    assert compared >= 1


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_assertion_20_schemas_go_upstream_as_they_came(
    recorded_proxy: Ferrule, backend: ScriptedBackend, path: Path
) -> None:
    for request in requests_of(path):
        body = request["body"]
        if (
            not isinstance(body, dict)
            or not body.get("tools")
            or "count_tokens" in request["target"]
            or not request["target"].startswith("/v1/")
        ):
            continue
        backend.requests.clear()
        assert (
            recorded_proxy.client.post(
                "/v1/messages", {**body, "stream": False}, sent_headers(request)
            ).status
            == 200
        )
        came = {
            tool["name"]: tool["input_schema"]
            for tool in body["tools"]
            if "input_schema" in tool and not tool.get("defer_loading")
        }
        went = {
            tool["function"]["name"]: tool["function"]["parameters"]
            for tool in backend.last.json["tools"]
        }
        for name, schema in came.items():
            assert json.dumps(went[name]) == json.dumps(schema), name
