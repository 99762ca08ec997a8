"""The list-and-watch loop against a scripted API server, over real HTTP."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pytest_aiohttp import AiohttpServer

from ferrule.discovery.kubernetes import (
    MAX_BACKOFF_S,
    ApiAccess,
    KubernetesService,
    Service,
    read_cluster_access,
)
from ferrule.routing.backend import BackendSpec

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def slice_of(*addresses: str, name: str = "vllm-1", version: int) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "resourceVersion": str(version)},
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": [address], "conditions": {"ready": True}} for address in addresses
        ],
        "ports": [{"name": "http", "port": 8000}],
    }


def respond_list(*slices: dict[str, Any], version: int) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        assert "watch" not in request.query, "a watch where a list was due"
        return web.json_response(
            {
                "kind": "EndpointSliceList",
                "metadata": {"resourceVersion": str(version)},
                "items": list(slices),
            }
        )

    return handler


def respond(status: int, body: str = "") -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body)

    return handler


def respond_watch(
    *events: tuple[str, dict[str, Any]] | bytes, cut: int | None = None, abort: bool = False
) -> Handler:
    """A watch that sends its events and ends. `cut`: bytes per write; `abort`: drops the connection
    before the end of the body."""

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.query["watch"] == "true"
        assert request.query["allowWatchBookmarks"] == "true"
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for event in events:
            line = (
                event
                if isinstance(event, bytes)
                else json.dumps({"type": event[0], "object": event[1]}).encode() + b"\n"
            )
            for start in range(0, len(line), cut or len(line)):
                await response.write(line[start : start + (cut or len(line))])
        if abort:
            assert request.transport is not None
            request.transport.abort()
        return response

    return handler


class Api:
    """Runs its handlers in turn, one per request; a request after the last one hangs, and the run is
    over."""

    def __init__(self, *handlers: Handler) -> None:
        self.handlers = list(handlers)
        self.requests: list[web.Request] = []
        self.over = asyncio.Event()
        self.lists: list[list[str]] = []
        self.pauses: list[float] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if not self.handlers:
            self.over.set()
            await asyncio.Event().wait()
        return await self.handlers.pop(0)(request)

    async def run(
        self, aiohttp_server: AiohttpServer, port: int | str = 8000, token_file: Path | None = None
    ) -> "Api":
        app = web.Application()
        app.router.add_get("/apis/discovery.k8s.io/v1/namespaces/prod/endpointslices", self.handle)
        server = await aiohttp_server(app)
        access = ApiAccess(f"http://127.0.0.1:{server.port}", token_file)
        watcher = KubernetesService(
            Service("prod", "vllm", port), access, sleep=self.sleep, uniform=lambda low, high: high
        )
        task = asyncio.create_task(watcher.watch(self.on_change))
        over = asyncio.create_task(self.over.wait())
        await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED, timeout=20)
        assert over.done(), task.exception() if task.done() else "the watcher came to rest"
        task.cancel()
        await asyncio.wait({task})
        return self

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def on_change(self, specs: list[BackendSpec]) -> None:
        self.lists.append(
            [spec.url.removeprefix("http://10.0.0.").removesuffix(":8000") for spec in specs]
        )


async def test_list_then_watch(aiohttp_server: AiohttpServer) -> None:
    api = await Api(
        respond_list(slice_of("10.0.0.1", version=5), version=7),
        respond_watch(
            ("ADDED", slice_of("10.0.0.2", name="vllm-2", version=8)),
            ("MODIFIED", slice_of("10.0.0.1", "10.0.0.3", version=9)),
            ("BOOKMARK", {"kind": "EndpointSlice", "metadata": {"resourceVersion": "12"}}),
            ("DELETED", slice_of("10.0.0.2", name="vllm-2", version=13)),
        ),
    ).run(aiohttp_server)
    assert api.lists == [["1"], ["1", "2"], ["1", "2", "3"], ["1", "3"]]
    assert api.requests[1].query["resourceVersion"] == "7"
    assert {request.query["labelSelector"] for request in api.requests} == {
        "kubernetes.io/service-name=vllm"
    }


async def test_a_missed_event_is_corrected_by_the_next_list(aiohttp_server: AiohttpServer) -> None:
    api = await Api(
        respond_list(slice_of("10.0.0.1", version=5), version=5),
        respond_watch(),  # the event that removed 1 and brought 2 never came
        respond_list(slice_of("10.0.0.2", version=6), version=6),
    ).run(aiohttp_server)
    assert api.lists == [["1"], ["2"]]


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(respond_watch(), id="closed"),
        pytest.param(respond_watch(abort=True), id="aborted"),
        pytest.param(
            respond_watch(
                ("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})
            ),
            id="410-event",
        ),
        pytest.param(respond_watch(b"\x00garbage\n"), id="garbage"),
        pytest.param(
            respond_watch(b'{"type":"MODIFIED","object":{"metadata":{}}}\n'), id="half-an-object"
        ),
        pytest.param(respond_watch(b'{"type":"MODIFIED","obj'), id="cut-in-mid-line"),
        pytest.param(respond_watch(b"x" * (5 * 1024 * 1024)), id="endless-line"),
        pytest.param(respond(410), id="410-status"),
        pytest.param(respond(500, "etcd"), id="500"),
    ],
)
async def test_any_end_of_a_watch_keeps_the_list_and_lists_again(
    aiohttp_server: AiohttpServer, end: Handler
) -> None:
    api = await Api(
        respond_list(slice_of("10.0.0.1", version=5), version=5),
        end,
        respond_list(slice_of("10.0.0.1", "10.0.0.2", version=9), version=9),
        respond_watch(),
    ).run(aiohttp_server)
    assert api.lists == [["1"], ["1", "2"]]
    assert ["watch" in request.query for request in api.requests] == [
        False,
        True,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(respond(500), id="500"),
        pytest.param(respond(401), id="401"),
        pytest.param(respond(403), id="403"),
        pytest.param(respond(429), id="429"),
        pytest.param(respond(200, "{}"), id="no-list"),
        pytest.param(respond(200, "<html>"), id="html"),
        pytest.param(respond(200, '{"kind":"Status","status":"Failure"}'), id="status"),
    ],
)
async def test_a_failing_list_empties_nothing(
    aiohttp_server: AiohttpServer, failure: Handler
) -> None:
    api = await Api(
        respond_list(slice_of("10.0.0.1", version=5), version=5),
        respond_watch(),
        failure,
        failure,
        respond_list(slice_of("10.0.0.1", version=5), version=6),
        respond_watch(),
    ).run(aiohttp_server)
    assert api.lists == [["1"]]
    assert api.pauses[1] < api.pauses[2]


async def test_a_service_without_ready_endpoints_is_an_empty_list(
    aiohttp_server: AiohttpServer,
) -> None:
    api = await Api(
        respond_list(slice_of("10.0.0.1", version=5), version=5),
        respond_watch(("MODIFIED", slice_of(version=6))),
        respond_list(version=7),
        respond_watch(("ADDED", slice_of("10.0.0.2", version=8))),
    ).run(aiohttp_server)
    assert api.lists == [["1"], [], ["2"]]


async def test_replayed_versions_are_ignored(aiohttp_server: AiohttpServer) -> None:
    api = await Api(
        respond_list(slice_of("10.0.0.3", version=30), version=30),
        respond_watch(
            ("ADDED", slice_of("10.0.0.1", version=10)),
            ("MODIFIED", slice_of("10.0.0.2", version=20)),
            ("DELETED", slice_of("10.0.0.3", version=29)),
            ("MODIFIED", slice_of("10.0.0.4", version=31)),
            ("MODIFIED", slice_of("10.0.0.3", version=30)),
        ),
    ).run(aiohttp_server)
    assert api.lists == [["3"], ["4"]]


@pytest.mark.parametrize("cut", [1, 7])
async def test_events_cut_anywhere(aiohttp_server: AiohttpServer, cut: int) -> None:
    events = (
        ("MODIFIED", slice_of("10.0.0.2", version=6)),
        ("MODIFIED", slice_of("10.0.0.3", version=7)),
    )
    api = await Api(
        respond_list(slice_of("10.0.0.1", version=5), version=5), respond_watch(*events, cut=cut)
    ).run(aiohttp_server)
    assert api.lists == [["1"], ["2"], ["3"]]


async def test_a_slice_longer_than_64_kb(aiohttp_server: AiohttpServer) -> None:
    large = slice_of("10.0.0.2", version=6)
    large["metadata"]["managedFields"] = "x" * 200_000
    api = await Api(
        respond_list(slice_of("10.0.0.1", version=5), version=5), respond_watch(("MODIFIED", large))
    ).run(aiohttp_server)
    assert api.lists == [["1"], ["2"]]


async def test_back_off_doubles_up_to_its_cap_and_starts_again_with_the_first_event(
    aiohttp_server: AiohttpServer,
) -> None:
    api = await Api(
        *[respond(500)] * 9,
        respond_list(version=1),
        respond_watch(("BOOKMARK", {"metadata": {"resourceVersion": "2"}})),
        respond(500),
    ).run(aiohttp_server)
    assert api.pauses[:9] == [0.5, 1, 2, 4, 8, 16, MAX_BACKOFF_S, MAX_BACKOFF_S, MAX_BACKOFF_S]
    assert api.pauses[9:11] == [0.5, 1]


async def test_a_port_by_name(aiohttp_server: AiohttpServer) -> None:
    api = await Api(respond_list(slice_of("10.0.0.1", version=5), version=5)).run(
        aiohttp_server, port="http"
    )
    assert api.lists == [["1"]]


async def test_a_rotated_token_is_read_again(aiohttp_server: AiohttpServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")

    async def rotate(request: web.Request) -> web.StreamResponse:
        token.write_text("second\n")
        return web.Response(status=401)

    api = await Api(rotate, respond_list(version=5)).run(aiohttp_server, token_file=token)
    assert [request.headers["authorization"] for request in api.requests] == [
        "Bearer first",
        "Bearer second",
        "Bearer second",
    ]


async def test_a_missing_token_file_is_retried(tmp_path: Path) -> None:
    tried: list[float] = []

    async def sleep(seconds: float) -> None:
        tried.append(seconds)
        if len(tried) == 3:
            raise asyncio.CancelledError

    watcher = KubernetesService(
        Service("prod", "vllm", 8000),
        ApiAccess("http://127.0.0.1:1", tmp_path / "none"),
        sleep=sleep,
    )
    with pytest.raises(asyncio.CancelledError):
        await watcher.watch(lambda specs: pytest.fail("nothing was listed"))


async def test_age_grows_while_the_api_is_gone(aiohttp_server: AiohttpServer) -> None:
    now = [0.0]
    ages: list[float] = []

    async def sleep(seconds: float) -> None:
        now[0] += 100.0
        ages.append(watcher.age_s())
        if len(ages) == 3:
            raise asyncio.CancelledError

    watcher = KubernetesService(
        Service("prod", "vllm", 8000),
        ApiAccess("http://127.0.0.1:1"),
        clock=lambda: now[0],
        sleep=sleep,
    )
    with pytest.raises(asyncio.CancelledError):
        await watcher.watch(lambda specs: None)
    assert ages == [100.0, 200.0, 300.0]
    assert watcher.age_s() > watcher.stale_after_s


@pytest.mark.parametrize(
    ("host", "port", "url"),
    [("10.96.0.1", "443", "https://10.96.0.1:443"), ("fd00::1", "6443", "https://[fd00::1]:6443")],
)
def test_the_api_server_from_a_pods_environment(host: str, port: str, url: str) -> None:
    access = read_cluster_access({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port})
    assert access.url == url
    assert access.token_file is not None
    assert access.ca_file is not None


def test_outside_a_cluster_the_problem_is_named() -> None:
    with pytest.raises(LookupError, match="KUBERNETES_SERVICE_HOST"):
        read_cluster_access({})
