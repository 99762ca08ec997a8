"""What is asked of real sockets, and what is not unless a probe is wanted."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import pytest
from tests.app_state import config_of
from tests.doubles.backend import Reply, ScriptedBackend, refusal, whole
from tests.doubles.proxy import free_port

from ferrule import check
from ferrule.backends.client import BackendInfo
from ferrule.check import survey as surveying
from ferrule.check.survey import Survey, run_survey
from ferrule.config import Config, loads


async def inquired(config: Config, *, probes: bool = False) -> Survey:
    return await run_survey(config, probes=probes, progress=lambda text: None)


async def test_what_is_asked_costs_no_generation(backend: ScriptedBackend) -> None:
    config = config_of(backend.url)
    (report,) = (await inquired(config)).report
    assert (report.trouble, report.place, report.name[:2]) == ("", "pools.p.backends.0", "p-")
    ability = report.abilities["m"]
    assert (ability.window, ability.counted_tokens, ability.has_usage, ability.budget_refusal) == (
        32768,
        77,
        None,
        None,
    )
    assert backend.requests == []
    assert {seen.target for seen in backend.others} == {
        "/health",
        "/v1/models",
        "/version",
        "/tokenize",
    }


async def test_a_probe_asks_twice_and_once_with_a_budget(backend: ScriptedBackend) -> None:
    completion: dict[str, Any] = {
        "choices": [{"message": {"role": "assistant", "content": "x", "reasoning": None}}],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": 8},
        },
    }
    backend.play(whole(completion), whole(completion), refusal(400, "no parser"))
    (report,) = (await inquired(config_of(backend.url), probes=True)).report
    ability = report.abilities["m"]
    assert (ability.has_usage, ability.has_cached_tokens, ability.reasoning_fields) == (
        True,
        True,
        ("reasoning",),
    )
    assert ability.budget_refusal == "HTTP 400: no parser"
    first, second, third = (seen.json for seen in backend.requests)
    assert first == second
    assert first["max_tokens"] == 1
    assert third == {**first, "thinking_token_budget": 1}


async def test_an_engine_without_a_budget_is_not_asked_for_one(backend: ScriptedBackend) -> None:
    await inquired(config_of(backend.url, pool={"engine": "sglang"}), probes=True)
    assert len(backend.requests) == 2


async def test_a_probe_that_fails(backend: ScriptedBackend) -> None:
    backend.play(refusal(500, "boom"))
    (report,) = (await inquired(config_of(backend.url), probes=True)).report
    assert report.abilities["m"].trouble == "HTTP 500: boom"


async def test_a_backend_that_is_not_there_and_one_that_is_not_well(
    backend: ScriptedBackend,
) -> None:
    backend.routes["GET", "/health"] = whole({}, 503)
    absent, ill = (await inquired(config_of(f"http://127.0.0.1:{free_port()}", backend.url))).report
    assert absent.trouble.startswith("GET /health: ")
    assert absent.description is None
    assert ill.trouble == "GET /health: HTTP 503: the backend is overloaded"
    assert isinstance(ill.description, BackendInfo)


async def test_credentials_are_sent_and_never_shown(backend: ScriptedBackend) -> None:
    config = config_of(backend.url.replace("http://", "http://user:secret@"))
    (report,) = (await inquired(config)).report
    assert report.url == backend.url
    assert all(seen.header("authorization") == "Basic dXNlcjpzZWNyZXQ=" for seen in backend.others)


async def test_a_model_that_is_not_listed_has_no_ability(backend: ScriptedBackend) -> None:
    (report,) = (await inquired(config_of(backend.url, model={"upstream": "other"}))).report
    assert report.abilities == {}


async def test_backends_that_a_name_resolves_to(backend: ScriptedBackend) -> None:
    config = loads(f"pools: {{p: {{discover: {{dns: 'localhost:{backend.port}'}}}}}}")
    report = (await inquired(config)).report
    assert f"http://127.0.0.1:{backend.port}" in {one.url for one in report}
    assert {one.place for one in report} == {"pools.p.discover"}


async def test_a_discovery_that_finds_nobody_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nobody:
        async def watch(self, on_change: object) -> None:
            return None

    monkeypatch.setattr(surveying, "DISCOVERY_TIMEOUT_S", 0.02)
    monkeypatch.setattr(surveying, "build_watcher", lambda pool, settings: Nobody())
    assert (await inquired(loads("pools: {p: {discover: {dns: 'a.example:1'}}}"))).report == []


async def test_run_prints_the_report_and_every_problem(
    backend: ScriptedBackend,
    new_backend: Callable[..., ScriptedBackend],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert await check.run(config_of(backend.url)) == 0
    received = capsys.readouterr()
    assert "32768" in received.out
    assert received.err == ""
    other = new_backend(model="n")
    other.routes["GET", "/health"] = Reply(status=500, framing="length")
    assert await check.run(config_of(backend.url, other.url)) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["pools.p.backends.1", "models.0.upstream"]


async def test_problems_come_before_the_report() -> None:
    received = io.StringIO()
    with redirect_stdout(received), redirect_stderr(received):
        assert await check.run(config_of(f"http://127.0.0.1:{free_port()}")) == 1
    assert received.getvalue().startswith("ferrule check: pools.p.backends.0: ")
    assert "dialect in force" in received.getvalue()
