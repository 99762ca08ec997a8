"""Queries the backends for `ferrule check` and keeps their answers. Judges nothing."""

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

_QUESTION = (
    "Is this the same question as before? Answer with yes or no, and with nothing else. " * 8
)
"""Longer than a block of vLLM's prefix cache, so that sending it again shows whether cached tokens
are told."""


class Capabilities(msgspec.Struct):
    """What one backend does for one model. None: not asked, or no answer."""

    window: int | None = None
    counted_tokens: int | None = None
    trouble: str | None = None
    """Why a probe failed."""
    has_usage: bool | None = None
    has_cached_tokens: bool | None = None
    reasoning_fields: tuple[str, ...] | None = None
    budget_refusal: str | None = None
    """What it says to a thinking budget; empty: it takes one."""


class BackendReport(msgspec.Struct):
    """One backend. `trouble`: why it is not well; empty when it is. `abilities`: by the id of the
    model here."""

    pool: str
    name: str
    url: str
    place: str
    trouble: str = ""
    description: BackendInfo | None = None
    abilities: dict[str, Capabilities] = msgspec.field(default_factory=dict)


class Survey(msgspec.Struct):
    """All answers. `catalog`: the models as the proxy would serve them."""

    report: list[BackendReport]
    catalog: Catalog
    probes: bool

    def of(self, pool: str) -> list[BackendReport]:
        return [report for report in self.report if report.pool == pool]


Progress = Callable[[str], None]


async def run_survey(config: Config, *, probes: bool, progress: Progress) -> Survey:
    """Asks all backends at once. `probes`: also lets each model generate three tokens. Raises
    ConfigError."""
    found = [report for name in config.pools for report in await _members(config, name, progress)]
    async with aiohttp.ClientSession() as session:
        askings = [_client(config, report, session) for report in found]
        pairs = list(zip(found, askings, strict=True))
        await _each(
            "client", [_describe(config, report, client) for report, client in pairs], progress
        )
        discovered_by_pool = {
            name: _discovered_of(report for report in found if report.pool == name)
            for name in config.pools
        }
        survey = Survey(found, Catalog(config, discovered_by_pool), probes)
        work = [
            _examine(client, report, served, probes=probes)
            for served in survey.catalog.all()
            for report, client in pairs
            if report.pool == served.pool and report.description is not None
        ]
        await _each("trying models at" if probes else "counting tokens at", work, progress)
    progress("")
    return survey


async def _each(what: str, work: Sequence[object], progress: Progress) -> None:
    tasks = [asyncio.ensure_future(one) for one in work]  # type: ignore[call-overload]
    progress(f"{what} {len(tasks)} backends …")
    for number, done in enumerate(asyncio.as_completed(tasks), 1):
        await done
        progress(f"{what} backends: {number} of {len(tasks)} …")


async def _members(config: Config, pool: str, progress: Progress) -> list[BackendReport]:
    settings = config.pools[pool]
    specs = await _discovered(config, pool, progress)
    urls = [backend.url.url for backend in settings.backends]
    taken: set[str] = set()
    members = []
    for spec in specs:
        name = name_of(pool, spec.url, taken)
        taken.add(name)
        place = (
            f"pools.{pool}.backends.{urls.index(spec.url)}"
            if spec.url in urls
            else f"pools.{pool}.discover"
        )
        members.append(BackendReport(pool, name, spec.url, place))
    return members


async def _discovered(config: Config, pool: str, progress: Progress) -> list[BackendSpec]:
    """The first list that discovery tells; empty when it tells none in time."""
    progress(f"looking for the backends of {pool} …")
    found: asyncio.Future[list[BackendSpec]] = asyncio.get_running_loop().create_future()

    def receive(specs: list[BackendSpec]) -> None:
        if not found.done():
            found.set_result(specs)

    watching = asyncio.ensure_future(build_watcher(pool, config.pools[pool]).watch(receive))
    try:
        async with asyncio.timeout(DISCOVERY_TIMEOUT_S):
            return await found
    except TimeoutError:
        return []
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def _client(config: Config, report: BackendReport, session: aiohttp.ClientSession) -> BackendClient:
    settings = config.pools[report.pool]
    upstream = BackendConnections(
        report.url, authorization(settings, report.url), settings.timeouts.connect_s, Poller()
    )
    report.url = canonical_url(report.url)
    return BackendClient(session, upstream)


async def _describe(config: Config, report: BackendReport, client: BackendClient) -> None:
    health = config.pools[report.pool].health
    answer = await client.get(health.path, health.timeout_s)
    if not 0 < answer.status < 400:
        report.trouble = f"GET {health.path}: {_describe_response(answer)}"
    report.description = await client.description(health.timeout_s)


def _discovered_of(pool: Iterable[BackendReport]) -> DiscoveredModels:
    return merge(
        [report.description.discovered for report in pool if report.description is not None]
    )


# What a backend does for one model


async def _examine(
    client: BackendClient, report: BackendReport, served: ServedModel, *, probes: bool
) -> None:
    assert report.description is not None
    listed = next(
        (
            listed
            for listed in report.description.discovered.models
            if listed.id == served.policy.upstream
        ),
        None,
    )
    if listed is None:
        return
    ability = report.abilities[served.id] = Capabilities(window=listed.window)
    route = ENGINE_ROUTES.get(served.policy.engine.tokenize_route or "")
    if route is not None:
        ability.counted_tokens = parse_token_count(
            await client.post(route, _body_to_count(served), ENGINE_TIMEOUT_S)
        )
    if probes:
        await _probe(client, served, ability)


def _body_to_count(served: ServedModel) -> bytes:
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


async def _probe(client: BackendClient, served: ServedModel, ability: Capabilities) -> None:
    """The same short question twice, for what only a second time shows; then once with a thinking
    budget."""
    question = {
        "model": served.policy.upstream,
        "max_tokens": 1,
        "messages": [{"role": "user", "content": _QUESTION}],
    }
    await client.post(CHAT_ROUTE, msgspec.json.encode(question), PROBE_TIMEOUT_S)
    answer = await client.post(CHAT_ROUTE, msgspec.json.encode(question), PROBE_TIMEOUT_S)
    try:
        completion = msgspec.json.decode(answer.body_if_ok or b"", type=_Completion)
    except msgspec.MsgspecError:
        ability.trouble = _describe_response(answer)
        return
    ability.has_usage = completion.usage is not None
    details = completion.usage.prompt_tokens_details if completion.usage else None
    ability.has_cached_tokens = details is not None and details.cached_tokens is not None
    message = completion.choices[0].message if completion.choices else {}
    ability.reasoning_fields = tuple(field for field in REASONING_FIELDS if field in message)
    budget = served.policy.engine.budget_field
    if budget is not None:
        refused = await client.post(
            CHAT_ROUTE, msgspec.json.encode({**question, budget: 1}), PROBE_TIMEOUT_S
        )
        ability.budget_refusal = "" if refused.status == 200 else _describe_response(refused)


def _describe_response(answer: BackendResponse) -> str:
    """An answer other than the wanted one, in a few words."""
    if not answer.status:
        return answer.error
    return (
        f"HTTP {answer.status}: {backend_error(answer.status, answer.body)[2]}"
        if answer.status >= 400
        else f"HTTP {answer.status}"
    )
