"""The story of a request where it goes wrong inside: what the client gets, and that everything is
given back and noted once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.app_state import Stage, running_stage, until
from tests.doubles.backend import Reply, ScriptedBackend
from tests.doubles.proxy import REQ

from ferrule.gateway import proxy as story


@pytest.fixture
async def stage(backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    async with running_stage(backend, monkeypatch) as running:
        yield running


async def test_a_fault_of_ours_is_a_500_without_a_word_of_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(story, "translate", broken)
    status, body = await stage.ask()
    assert (status, body["error"]) == (500, {"type": "api_error", "message": "Internal error."})
    assert "ZeroDivisionError" in caplog.text
    (record,) = stage.records
    assert (record.status, record.error, record.request_id) == (
        500,
        "api_error",
        body["request_id"],
    )
    assert stage.worker.proxy.running == 0


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
async def test_limits_are_settled_with_what_was_used_also_when_it_fails(
    stage: Stage, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    settled: list[int] = []

    class Lease:
        rate_limits = ()

        async def settle(self, tokens: int) -> None:
            settled.append(tokens)

    async def admit(tenant: Any, tokens: int) -> Lease:
        return Lease()

    monkeypatch.setattr(stage.worker.state.limiter, "admit", admit)
    assert (await stage.ask(path))[0] == 200
    backend.play(Reply(status=400, framing="length"))
    assert (await stage.ask(path))[0] == 400
    assert settled == [10, 0]


async def test_the_time_to_count_excludes_the_upload(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(story, "monotonic", lambda: now_s)

    async def upload() -> AsyncIterator[bytes]:
        nonlocal now_s
        body = json.dumps(REQ()).encode()
        yield body[:5]
        await until(lambda: stage.worker.proxy.running == 1)
        now_s += 60
        yield body[5:]

    async with stage.client.post("/v1/messages/count_tokens", data=upload()) as answer:
        assert answer.status == 200
    counts, total_s = stage.worker.metrics.count_tokens.buckets().snapshot()
    assert (sum(counts), total_s) == (1, 0)


@pytest.mark.parametrize(
    ("headers", "is_anthropic"),
    [
        ({"anthropic_version": "2023-06-01"}, True),
        ({"x_api_key": "k"}, True),
        ({"authorization": "Bearer k"}, False),
        ({"x_api_key": "k", "authorization": "Bearer k"}, False),
        ({}, False),
    ],
)
async def test_lists_come_in_the_shape_the_client_speaks(
    stage: Stage, headers: dict[str, str], is_anthropic: bool
) -> None:
    _, body = await stage.get("/v1/models", **headers)
    assert ("has_more" in body) is is_anthropic


async def test_a_path_with_v1_twice_gets_a_hint(stage: Stage) -> None:
    status, body = await stage.ask("/v1/v1/messages")
    assert status == 404
    assert "base URL" in body["error"]["message"]
    assert stage.records[0].route == "unknown"


async def test_a_method_that_is_not_offered(stage: Stage) -> None:
    async with stage.client.delete("/v1/models") as answer:
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
        assert (await answer.json())["error"]["message"] == "Method not allowed; use GET or HEAD."
    async with stage.client.get("/v1/messages") as answer:
        assert (await answer.json())["error"]["message"] == "Method not allowed; use POST."
