"""Queries the backends for `ferrule check` and keeps their answers. Draws no conclusions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import aiohttp
import msgspec

from ferrule._core import Poller, backend_error
from ferrule.backends.client import BackendClient, BackendInfo, BackendResponse, authorization
from ferrule.backends.connections import BackendConnections
from ferrule.backends.token_counter import ENGINE_ROUTES, ENGINE_TIMEOUT_S, parse_token_count
from ferrule.catalog import Catalog, DiscoveredModels, ServedModel, merge
from ferrule.config import Config
from ferrule.discovery.choice import build_watcher
from ferrule.messages import decode, tokenize_body
from ferrule.routing.backend import BackendSpec, canonical_url, name_of

DISCOVERY_TIMEOUT_S = 10.0
PROBE_TIMEOUT_S = 60.0
CHAT_ROUTE = "/v1/chat/completions"
REASONING_FIELDS = ("reasoning", "reasoning_content")

_PROBE_PROMPT = (
    "Is this the same question as before? Answer with yes or no, and with nothing else. " * 8
)
"""Longer than a block of vLLM's prefix cache, so that sending it twice shows whether the engine
reports cached tokens."""


class Capabilities(msgspec.Struct):
    """What one backend supports for one model. None: not queried, or no answer."""

    window: int | None = None
    counted_tokens: int | None = None
    failure: str | None = None
    """Why a probe failed."""
    has_usage: bool | None = None
    has_cached_tokens: bool | None = None
    reasoning_fields: tuple[str, ...] | None = None
    budget_refusal: str | None = None
    """The backend's error for a thinking budget; empty: it accepts one."""


class BackendReport(msgspec.Struct):
    """One backend. `config_path`: where the configuration names it. `failure`: why it is unhealthy;
    empty if it is healthy. `capabilities_by_model`: by the model's id in the configuration."""

    pool: str
    name: str
    url: str
    config_path: str
    failure: str = ""
    info: BackendInfo | None = None
    capabilities_by_model: dict[str, Capabilities] = msgspec.field(default_factory=dict)


class Survey(msgspec.Struct):
    """All answers. `catalog`: the models as the proxy would serve them."""

    backend_reports: list[BackendReport]
    catalog: Catalog
    probes: bool

    def in_pool(self, pool: str) -> list[BackendReport]:
        return [
            backend_report for backend_report in self.backend_reports if backend_report.pool == pool
        ]


Progress = Callable[[str], None]


async def run_survey(config: Config, *, probes: bool, progress: Progress) -> Survey:
    """Queries all backends concurrently. `probes`: also has each model generate up to three tokens
    at each of its backends. Raises ConfigError."""
    backend_reports = [
        backend_report
        for name in config.pools
        for backend_report in await _list_backends(config, name, progress)
    ]
    async with aiohttp.ClientSession() as session:
        clients = [
            _build_client(config, backend_report, session) for backend_report in backend_reports
        ]
        pairs = list(zip(backend_reports, clients, strict=True))
        await _run_all(
            "querying backends",
            [_query_backend(config, backend_report, client) for backend_report, client in pairs],
            progress,
        )
        discovered_by_pool = {
            name: _merge_discovered(
                backend_report for backend_report in backend_reports if backend_report.pool == name
            )
            for name in config.pools
        }
        survey = Survey(backend_reports, Catalog(config, discovered_by_pool), probes)
        work = [
            _examine(client, backend_report, served, probes=probes)
            for served in survey.catalog.all()
            for backend_report, client in pairs
            if backend_report.pool == served.pool and backend_report.info is not None
        ]
        await _run_all("probing models" if probes else "counting tokens", work, progress)
    progress("")
    return survey


async def _run_all(activity: str, work: Sequence[object], progress: Progress) -> None:
    tasks = [asyncio.ensure_future(query) for query in work]  # type: ignore[call-overload]
    progress(f"{activity}: 0 of {len(tasks)} …")
    for number, done in enumerate(asyncio.as_completed(tasks), 1):
        await done
        progress(f"{activity}: {number} of {len(tasks)} …")


async def _list_backends(config: Config, pool: str, progress: Progress) -> list[BackendReport]:
    settings = config.pools[pool]
    specs = await _discover(config, pool, progress)
    urls = [backend.url.url for backend in settings.backends]
    taken: set[str] = set()
    backend_reports = []
    for spec in specs:
        name = name_of(pool, spec.url, taken)
        taken.add(name)
        config_path = (
            f"pools.{pool}.backends.{urls.index(spec.url)}"
            if spec.url in urls
            else f"pools.{pool}.discover"
        )
        backend_reports.append(BackendReport(pool, name, spec.url, config_path))
    return backend_reports


async def _discover(config: Config, pool: str, progress: Progress) -> list[BackendSpec]:
    """Discovery's first list; empty if there is none in time."""
    progress(f"looking for the backends of {pool} …")
    first_list: asyncio.Future[list[BackendSpec]] = asyncio.get_running_loop().create_future()

    def receive(specs: list[BackendSpec]) -> None:
        if not first_list.done():
            first_list.set_result(specs)

    watching = asyncio.ensure_future(build_watcher(pool, config.pools[pool]).watch(receive))
    try:
        async with asyncio.timeout(DISCOVERY_TIMEOUT_S):
            return await first_list
    except TimeoutError:
        return []
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def _build_client(
    config: Config, backend_report: BackendReport, session: aiohttp.ClientSession
) -> BackendClient:
    settings = config.pools[backend_report.pool]
    upstream = BackendConnections(
        backend_report.url,
        authorization(settings, backend_report.url),
        settings.timeouts.connect_s,
        Poller(),
    )
    backend_report.url = canonical_url(backend_report.url)
    return BackendClient(session, upstream)


async def _query_backend(
    config: Config, backend_report: BackendReport, client: BackendClient
) -> None:
    health = config.pools[backend_report.pool].health
    response = await client.get(health.path, health.timeout_s)
    if not 0 < response.status < 400:
        backend_report.failure = f"GET {health.path}: {_describe_response(response)}"
    backend_report.info = await client.description(health.timeout_s)


def _merge_discovered(pool: Iterable[BackendReport]) -> DiscoveredModels:
    return merge(
        [
            backend_report.info.discovered
            for backend_report in pool
            if backend_report.info is not None
        ]
    )


# One backend and one model


async def _examine(
    client: BackendClient, backend_report: BackendReport, served: ServedModel, *, probes: bool
) -> None:
    assert backend_report.info is not None
    listed = next(
        (
            listed
            for listed in backend_report.info.discovered.models
            if listed.id == served.policy.upstream
        ),
        None,
    )
    if listed is None:
        return
    capabilities = backend_report.capabilities_by_model[served.id] = Capabilities(
        window=listed.window
    )
    route = ENGINE_ROUTES.get(served.policy.engine.tokenize_route or "")
    if route is not None:
        capabilities.counted_tokens = parse_token_count(
            await client.post(route, _build_count_body(served), ENGINE_TIMEOUT_S)
        )
    if probes:
        await _probe(client, served, capabilities)


def _build_count_body(served: ServedModel) -> bytes:
    body = {
        "model": served.id,
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "How many tokens is this?"}],
    }
    return tokenize_body(decode(msgspec.json.encode(body)), served.policy)


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    message: dict[str, msgspec.Raw]


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


async def _probe(client: BackendClient, served: ServedModel, capabilities: Capabilities) -> None:
    """Sends the same short question twice, since cached tokens show only the second time; then once
    with a thinking budget."""
    probe_body = {
        "model": served.policy.upstream,
        "max_tokens": 1,
        "messages": [{"role": "user", "content": _PROBE_PROMPT}],
    }
    await client.post(CHAT_ROUTE, msgspec.json.encode(probe_body), PROBE_TIMEOUT_S)
    response = await client.post(CHAT_ROUTE, msgspec.json.encode(probe_body), PROBE_TIMEOUT_S)
    try:
        completion = msgspec.json.decode(response.body_if_ok or b"", type=_Completion)
    except msgspec.MsgspecError:
        capabilities.failure = _describe_response(response)
        return
    capabilities.has_usage = completion.usage is not None
    details = completion.usage.prompt_tokens_details if completion.usage else None
    capabilities.has_cached_tokens = details is not None and details.cached_tokens is not None
    message = completion.choices[0].message if completion.choices else {}
    capabilities.reasoning_fields = tuple(field for field in REASONING_FIELDS if field in message)
    budget = served.policy.engine.budget_field
    if budget is not None:
        response = await client.post(
            CHAT_ROUTE, msgspec.json.encode({**probe_body, budget: 1}), PROBE_TIMEOUT_S
        )
        capabilities.budget_refusal = "" if response.status == 200 else _describe_response(response)


def _describe_response(response: BackendResponse) -> str:
    """Why a request failed, in a few words."""
    if not response.status:
        return response.error
    return (
        f"HTTP {response.status}: {backend_error(response.status, response.body)[2]}"
        if response.status >= 400
        else f"HTTP {response.status}"
    )
