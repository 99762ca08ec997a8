"""Questions to a backend: what its answers and its silences become."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
from tests.app_state import config_of
from tests.doubles.backend import Hold, Play, Reply, ScriptedBackend, whole
from tests.doubles.proxy import free_port

from ferrule._core import Pump
from ferrule.backends.client import ANSWER_LIMIT_BYTES, Asking, Finding, authorization
from ferrule.backends.connections import Upstream
from ferrule.catalog import Listed
from ferrule.config import Flags, from_flags, loads
from ferrule.engines import PROFILES
from ferrule.routing.health import Probed


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


@pytest.fixture
def asking(session: aiohttp.ClientSession, backend: ScriptedBackend) -> Asking:
    return Asking(session, Upstream(backend.url, "Bearer k", 1.0, Pump()))


@pytest.mark.parametrize(
    ("play", "found"),
    [
        (whole(b""), Finding(Probed.OK)),
        (whole(b"", 204), Finding(Probed.OK)),
        (whole(b"", 302, [("location", "/elsewhere")]), Finding(Probed.OK)),
        (whole(b"", 503), Finding(Probed.FAILED, reason="GET /health: HTTP 503")),
        (whole(b"", 404), Finding(Probed.FAILED, reason="GET /health: HTTP 404")),
        (whole(b"", 429, [("retry-after", "7")]), Finding(Probed.BUSY, 7.0)),
        (whole(b"", 429), Finding(Probed.BUSY)),
        (Reply((b"nonsense",), framing="length", content_length=99), Finding(Probed.FAILED, reason="GET /health: no answer within 0.3 s")),
    ],
    ids=["200", "204", "302", "503", "404", "429-after", "429", "cut"],
)
async def test_health(asking: Asking, backend: ScriptedBackend, play: Play, found: Finding) -> None:
    backend.routes["GET", "/health"] = play
    if isinstance(play, Reply) and play.content_length is not None:
        play.steps = (*play.steps, Hold())
    assert await asking.health("/health", 0.3) == found
    assert backend.others[-1].header("authorization") == "Bearer k"


async def test_silence_and_absence(session: aiohttp.ClientSession, asking: Asking, backend: ScriptedBackend) -> None:
    backend.routes["GET", "/health"] = Reply((Hold(),), sends_head=False)
    silent = await asking.get("/health", 0.05)
    assert (silent.status, silent.found, silent.trouble) == (0, None, "no answer within 0.05 s")
    nobody = Asking(session, Upstream(f"http://127.0.0.1:{free_port()}", None, 1.0, Pump()))
    absent = await nobody.get("/health", 1.0)
    assert (absent.status, absent.trouble) == (0, "connection refused")
    nameless = Asking(session, Upstream("http://no-such-host.invalid", None, 1.0, Pump()))
    assert (await nameless.get("/health", 5.0)).trouble == "the name does not resolve"


async def test_a_description_tells_the_offer(asking: Asking, backend: ScriptedBackend) -> None:
    description = await asking.description(1.0)
    assert description is not None
    assert description.offer.models == (Listed("m", 32768, 1),)
    assert description.offer.profile is PROFILES["vllm"]
    assert {seen.target for seen in backend.others} == {"/v1/models", "/version"}


async def test_only_who_has_no_version_is_asked_for_props(asking: Asking, backend: ScriptedBackend) -> None:
    backend.routes["GET", "/version"] = whole({}, 404)
    backend.routes["GET", "/props"] = whole({"build_info": "b9999"})
    backend.routes["GET", "/v1/models"] = whole({"data": [{"id": "g", "meta": {"n_ctx": 4096}}]})
    description = await asking.description(1.0)
    assert description is not None
    assert description.offer.profile is PROFILES["llamacpp"]
    assert description.offer.models == (Listed("g", 4096),)


async def test_the_engine_is_not_asked_for_where_it_is_known(asking: Asking, backend: ScriptedBackend) -> None:
    await asking.description(1.0, names_engine=False)
    assert [seen.target for seen in backend.others] == ["/v1/models"]


@pytest.mark.parametrize("models", [b"<html>", b'{"data": 7}', b'{"object": "list"}'])
async def test_a_list_that_is_none(asking: Asking, backend: ScriptedBackend, models: bytes) -> None:
    backend.routes["GET", "/v1/models"] = whole(models)
    description = await asking.description(1.0)
    assert description is not None
    assert description.offer.models == ()


async def test_no_list_is_no_description(asking: Asking, backend: ScriptedBackend) -> None:
    backend.routes["GET", "/v1/models"] = whole({}, 500)
    assert await asking.description(1.0) is None


async def test_a_long_list_is_read_to_its_end_and_a_huge_answer_is_cut(asking: Asking, backend: ScriptedBackend) -> None:
    listed = {"data": [{"id": f"lora-{number:06}"} for number in range(20_000)]}
    backend.routes["GET", "/v1/models"] = whole(listed)
    description = await asking.description(5.0)
    assert description is not None
    assert len(description.offer.models) == 20_000
    backend.routes["GET", "/huge"] = whole(bytes(ANSWER_LIMIT_BYTES + 1))
    assert len((await asking.get("/huge", 10.0)).body) == ANSWER_LIMIT_BYTES


async def test_a_question_with_a_body(asking: Asking, backend: ScriptedBackend) -> None:
    answer = await asking.post("/tokenize", b'{"a":1}', 1.0)
    assert (answer.status, backend.others[-1].body) == (200, b'{"a":1}')
    assert answer.found == answer.body


def test_who_asks() -> None:
    config = loads("pools: {p: {backends: ['http://a'], api_key: k}}")
    assert authorization(config.pools["p"], "http://a") == "Bearer k"
    assert authorization(config.pools["p"], "http://found-by-dns") == "Bearer k"
    own = from_flags(Flags(backends=("http://u:p@a", "http://b"))).pools["default"]
    assert authorization(own, "http://a") == "Basic dTpw"
    assert authorization(own, "http://b") is None
    assert authorization(config_of("http://a").pools["p"], "http://a") is None
