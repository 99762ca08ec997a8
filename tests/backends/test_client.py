"""Questions to a backend: what its answers and its silences become."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
from tests.app_state import config_of
from tests.doubles.backend import Hold, Play, Reply, ScriptedBackend, whole
from tests.doubles.proxy import free_port

from ferrule._core import Poller
from ferrule.backends.client import ANSWER_LIMIT_BYTES, BackendClient, ProbeResult, authorization
from ferrule.backends.connections import BackendConnections
from ferrule.catalog import ListedModel
from ferrule.config import Flags, from_flags, loads
from ferrule.engines import PROFILES
from ferrule.routing.health import ProbeStatus


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


@pytest.fixture
def client(session: aiohttp.ClientSession, backend: ScriptedBackend) -> BackendClient:
    return BackendClient(session, BackendConnections(backend.url, "Bearer k", 1.0, Poller()))


@pytest.mark.parametrize(
    ("play", "found"),
    [
        (whole(b""), ProbeResult(ProbeStatus.OK)),
        (whole(b"", 204), ProbeResult(ProbeStatus.OK)),
        (whole(b"", 302, [("location", "/elsewhere")]), ProbeResult(ProbeStatus.OK)),
        (whole(b"", 503), ProbeResult(ProbeStatus.FAILED, reason="GET /health: HTTP 503")),
        (whole(b"", 404), ProbeResult(ProbeStatus.FAILED, reason="GET /health: HTTP 404")),
        (whole(b"", 429, [("retry-after", "7")]), ProbeResult(ProbeStatus.BUSY, 7.0)),
        (whole(b"", 429), ProbeResult(ProbeStatus.BUSY)),
        (
            Reply((b"nonsense",), framing="length", content_length=99),
            ProbeResult(ProbeStatus.FAILED, reason="GET /health: no answer within 0.3 s"),
        ),
    ],
    ids=["200", "204", "302", "503", "404", "429-after", "429", "cut"],
)
async def test_health(
    client: BackendClient, backend: ScriptedBackend, play: Play, found: ProbeResult
) -> None:
    backend.routes["GET", "/health"] = play
    if isinstance(play, Reply) and play.content_length is not None:
        play.steps = (*play.steps, Hold())
    assert await client.health("/health", 0.3) == found
    assert backend.others[-1].header("authorization") == "Bearer k"


async def test_silence_and_absence(
    session: aiohttp.ClientSession, client: BackendClient, backend: ScriptedBackend
) -> None:
    backend.routes["GET", "/health"] = Reply((Hold(),), sends_head=False)
    silent = await client.get("/health", 0.05)
    assert (silent.status, silent.body_if_ok, silent.error) == (0, None, "no answer within 0.05 s")
    nobody = BackendClient(
        session, BackendConnections(f"http://127.0.0.1:{free_port()}", None, 1.0, Poller())
    )
    absent = await nobody.get("/health", 1.0)
    assert (absent.status, absent.error) == (0, "connection refused")
    nameless = BackendClient(
        session, BackendConnections("http://no-such-host.invalid", None, 1.0, Poller())
    )
    assert (await nameless.get("/health", 5.0)).error == "the name does not resolve"
    await session.close()
    assert (await client.get("/health", 1.0)).error == "the pool was removed"


async def test_a_description_tells_the_offer(
    client: BackendClient, backend: ScriptedBackend
) -> None:
    description = await client.description(1.0)
    assert description is not None
    assert description.discovered.models == (ListedModel("m", 32768, 1),)
    assert description.discovered.profile is PROFILES["vllm"]
    assert {seen.target for seen in backend.others} == {"/v1/models", "/version"}


async def test_only_who_has_no_version_is_asked_for_props(
    client: BackendClient, backend: ScriptedBackend
) -> None:
    backend.routes["GET", "/version"] = whole({}, 404)
    backend.routes["GET", "/props"] = whole({"build_info": "b9999"})
    backend.routes["GET", "/v1/models"] = whole({"data": [{"id": "g", "meta": {"n_ctx": 4096}}]})
    description = await client.description(1.0)
    assert description is not None
    assert description.discovered.profile is PROFILES["llamacpp"]
    assert description.discovered.models == (ListedModel("g", 4096),)


async def test_the_engine_is_not_asked_for_where_it_is_known(
    client: BackendClient, backend: ScriptedBackend
) -> None:
    await client.description(1.0, names_engine=False)
    assert [seen.target for seen in backend.others] == ["/v1/models"]


@pytest.mark.parametrize("models", [b"<html>", b'{"data": 7}', b'{"object": "list"}'])
async def test_a_list_that_is_none(
    client: BackendClient, backend: ScriptedBackend, models: bytes
) -> None:
    backend.routes["GET", "/v1/models"] = whole(models)
    description = await client.description(1.0)
    assert description is not None
    assert description.discovered.models == ()


async def test_no_list_is_no_description(client: BackendClient, backend: ScriptedBackend) -> None:
    backend.routes["GET", "/v1/models"] = whole({}, 500)
    assert await client.description(1.0) is None


async def test_a_long_list_is_read_to_its_end_and_a_huge_answer_is_cut(
    client: BackendClient, backend: ScriptedBackend
) -> None:
    listed = {"data": [{"id": f"lora-{number:06}"} for number in range(20_000)]}
    backend.routes["GET", "/v1/models"] = whole(listed)
    description = await client.description(5.0)
    assert description is not None
    assert len(description.discovered.models) == 20_000
    backend.routes["GET", "/huge"] = whole(bytes(ANSWER_LIMIT_BYTES + 1))
    assert len((await client.get("/huge", 10.0)).body) == ANSWER_LIMIT_BYTES


async def test_a_question_with_a_body(client: BackendClient, backend: ScriptedBackend) -> None:
    answer = await client.post("/tokenize", b'{"a":1}', 1.0)
    assert (answer.status, backend.others[-1].body) == (200, b'{"a":1}')
    assert answer.body_if_ok == answer.body


def test_who_asks() -> None:
    config = loads("pools: {p: {backends: ['http://a'], api_key: k}}")
    assert authorization(config.pools["p"], "http://a") == "Bearer k"
    assert authorization(config.pools["p"], "http://found-by-dns") == "Bearer k"
    own = from_flags(Flags(backends=("http://u:p@a", "http://b"))).pools["default"]
    assert authorization(own, "http://a") == "Basic dTpw"
    assert authorization(own, "http://b") is None
    assert authorization(config_of("http://a").pools["p"], "http://a") is None
