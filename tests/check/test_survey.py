"""What the survey requests from backends, over real sockets, with and without probes."""

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
from ferrule.check import survey as survey_module
from ferrule.check.survey import Survey, run_survey
from ferrule.config import Config, loads


async def run_quietly(config: Config, *, probes: bool = False) -> Survey:
    return await run_survey(config, probes=probes, progress=lambda text: None)


async def test_without_probes_nothing_is_generated(backend: ScriptedBackend) -> None:
    config = config_of(backend.url)
    (backend_report,) = (await run_quietly(config)).backend_reports
    assert (backend_report.failure, backend_report.config_path, backend_report.name[:2]) == (
        "",
        "pools.p.backends.0",
        "p-",
    )
    capabilities = backend_report.capabilities_by_model["m"]
    assert (
        capabilities.window,
        capabilities.counted_tokens,
        capabilities.has_usage,
        capabilities.budget_refusal,
    ) == (
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


async def test_a_probe_sends_two_requests_and_one_with_a_budget(backend: ScriptedBackend) -> None:
    completion: dict[str, Any] = {
        "choices": [{"message": {"role": "assistant", "content": "x", "reasoning": None}}],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": 8},
        },
    }
    backend.play(whole(completion), whole(completion), refusal(400, "no parser"))
    (backend_report,) = (await run_quietly(config_of(backend.url), probes=True)).backend_reports
    capabilities = backend_report.capabilities_by_model["m"]
    assert (
        capabilities.has_usage,
        capabilities.has_cached_tokens,
        capabilities.reasoning_fields,
    ) == (
        True,
        True,
        ("reasoning",),
    )
    assert capabilities.budget_refusal == "HTTP 400: no parser"
    first, second, third = (seen.json for seen in backend.requests)
    assert first == second
    assert first["max_tokens"] == 1
    assert third == {**first, "thinking_token_budget": 1}


async def test_an_engine_without_budgets_is_not_probed_for_them(backend: ScriptedBackend) -> None:
    await run_quietly(config_of(backend.url, pool={"engine": "sglang"}), probes=True)
    assert len(backend.requests) == 2


async def test_a_probe_that_fails(backend: ScriptedBackend) -> None:
    backend.play(refusal(500, "boom"))
    (backend_report,) = (await run_quietly(config_of(backend.url), probes=True)).backend_reports
    assert backend_report.capabilities_by_model["m"].failure == "HTTP 500: boom"


async def test_an_unreachable_and_an_unhealthy_backend(
    backend: ScriptedBackend,
) -> None:
    backend.routes["GET", "/health"] = whole({}, 503)
    absent, ill = (
        await run_quietly(config_of(f"http://127.0.0.1:{free_port()}", backend.url))
    ).backend_reports
    assert absent.failure.startswith("GET /health: ")
    assert absent.info is None
    assert ill.failure == "GET /health: HTTP 503: the backend is overloaded"
    assert isinstance(ill.info, BackendInfo)


async def test_credentials_are_sent_and_never_shown(backend: ScriptedBackend) -> None:
    config = config_of(backend.url.replace("http://", "http://user:secret@"))
    (backend_report,) = (await run_quietly(config)).backend_reports
    assert backend_report.url == backend.url
    assert all(seen.header("authorization") == "Basic dXNlcjpzZWNyZXQ=" for seen in backend.others)


async def test_an_unlisted_model_has_no_capabilities(backend: ScriptedBackend) -> None:
    (backend_report,) = (
        await run_quietly(config_of(backend.url, model={"upstream": "other"}))
    ).backend_reports
    assert backend_report.capabilities_by_model == {}


async def test_backends_that_a_name_resolves_to(backend: ScriptedBackend) -> None:
    config = loads(f"pools: {{p: {{discover: {{dns: 'localhost:{backend.port}'}}}}}}")
    backend_reports = (await run_quietly(config)).backend_reports
    assert f"http://127.0.0.1:{backend.port}" in {
        backend_report.url for backend_report in backend_reports
    }
    assert {backend_report.config_path for backend_report in backend_reports} == {
        "pools.p.discover"
    }


async def test_a_discovery_that_finds_nothing_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nobody:
        async def watch(self, on_change: object) -> None:
            return None

    monkeypatch.setattr(survey_module, "DISCOVERY_TIMEOUT_S", 0.02)
    monkeypatch.setattr(survey_module, "build_watcher", lambda pool, settings: Nobody())
    assert (
        await run_quietly(loads("pools: {p: {discover: {dns: 'a.example:1'}}}"))
    ).backend_reports == []


async def test_run_prints_the_report_and_every_problem(
    backend: ScriptedBackend,
    new_backend: Callable[..., ScriptedBackend],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert await check.run(config_of(backend.url)) == 0
    output = capsys.readouterr()
    assert "32768" in output.out
    assert output.err == ""
    other = new_backend(model="n")
    other.routes["GET", "/health"] = Reply(status=500, framing="length")
    assert await check.run(config_of(backend.url, other.url)) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["pools.p.backends.1", "models.0.upstream"]


async def test_problems_come_before_the_report() -> None:
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        assert await check.run(config_of(f"http://127.0.0.1:{free_port()}")) == 1
    assert output.getvalue().startswith("ferrule check: pools.p.backends.0: ")
    assert "dialect in force" in output.getvalue()
