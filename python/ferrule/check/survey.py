"""What is asked of the backends for `ferrule check`, and what they answered. It judges nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import aiohttp
import msgspec

from ferrule._core import Pump, backend_error
from ferrule.backends.client import Answer, Asking, Description, authorization
from ferrule.backends.connections import Upstream
from ferrule.backends.token_counter import ENGINE_ROUTES, ENGINE_TIMEOUT_S, counted
from ferrule.catalog import Catalog, Offer, Served, together
from ferrule.config import Config
from ferrule.discovery.choice import watcher_for
from ferrule.messages import decode, tokenize_body
from ferrule.routing.backend import BackendSpec, name_of, redacted

DISCOVERY_TIMEOUT_S = 10.0
PROBE_TIMEOUT_S = 60.0
CHAT_ROUTE = "/v1/chat/completions"
REASONING_FIELDS = ("reasoning", "reasoning_content")

_QUESTION = "Is this the same question as before? Answer with yes or no, and with nothing else. " * 8
"""Longer than a block of vLLM's prefix cache, so that asking it again shows whether cached tokens are told."""


class Ability(msgspec.Struct):
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


class Asked(msgspec.Struct):
    """One backend. `trouble`: why it is not well; empty when it is. `abilities`: by the id of the model here."""

    pool: str
    name: str
    url: str
    place: str
    trouble: str = ""
    description: Description | None = None
    abilities: dict[str, Ability] = msgspec.field(default_factory=dict)


class Inquiry(msgspec.Struct):
    """All answers. `catalog`: the models as the proxy would serve them."""

    asked: list[Asked]
    catalog: Catalog
    probes: bool

    def of(self, pool: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.pool == pool]


Progress = Callable[[str], None]


async def inquire(config: Config, *, probes: bool, progress: Progress) -> Inquiry:
    """Asks all backends at once. `probes`: also lets each model generate three tokens. Raises ConfigError."""
    found = [asked for name in config.pools for asked in await _members(config, name, progress)]
    async with aiohttp.ClientSession() as session:
        askings = [_asking(config, asked, session) for asked in found]
        pairs = list(zip(found, askings, strict=True))
        await _each("asking", [_describe(config, asked, asking) for asked, asking in pairs], progress)
        offers = {name: _offer(asked for asked in found if asked.pool == name) for name in config.pools}
        inquiry = Inquiry(found, Catalog(config, offers), probes)
        work = [
            _examine(asking, asked, served, probes=probes)
            for served in inquiry.catalog.all()
            for asked, asking in pairs
            if asked.pool == served.pool and asked.description is not None
        ]
        await _each("trying models at" if probes else "counting tokens at", work, progress)
    progress("")
    return inquiry


async def _each(what: str, work: Sequence[object], progress: Progress) -> None:
    tasks = [asyncio.ensure_future(one) for one in work]  # type: ignore[call-overload]
    progress(f"{what} {len(tasks)} backends …")
    for number, done in enumerate(asyncio.as_completed(tasks), 1):
        await done
        progress(f"{what} backends: {number} of {len(tasks)} …")


async def _members(config: Config, pool: str, progress: Progress) -> list[Asked]:
    settings = config.pools[pool]
    specs = await _discovered(config, pool, progress)
    urls = [backend.url.url for backend in settings.backends]
    taken: set[str] = set()
    members = []
    for spec in specs:
        name = name_of(pool, spec.url, taken)
        taken.add(name)
        place = f"pools.{pool}.backends.{urls.index(spec.url)}" if spec.url in urls else f"pools.{pool}.discover"
        members.append(Asked(pool, name, spec.url, place))
    return members


async def _discovered(config: Config, pool: str, progress: Progress) -> list[BackendSpec]:
    """The first list that discovery tells; empty when it tells none in time."""
    progress(f"looking for the backends of {pool} …")
    told: asyncio.Future[list[BackendSpec]] = asyncio.get_running_loop().create_future()

    def tell(specs: list[BackendSpec]) -> None:
        if not told.done():
            told.set_result(specs)

    watching = asyncio.ensure_future(watcher_for(pool, config.pools[pool]).watch(tell))
    try:
        async with asyncio.timeout(DISCOVERY_TIMEOUT_S):
            return await told
    except TimeoutError:
        return []
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def _asking(config: Config, asked: Asked, session: aiohttp.ClientSession) -> Asking:
    settings = config.pools[asked.pool]
    upstream = Upstream(asked.url, authorization(settings, asked.url), settings.timeouts.connect_s, Pump())
    asked.url = redacted(asked.url)
    return Asking(session, upstream)


async def _describe(config: Config, asked: Asked, asking: Asking) -> None:
    health = config.pools[asked.pool].health
    answer = await asking.get(health.path, health.timeout_s)
    if not 0 < answer.status < 400:
        asked.trouble = f"GET {health.path}: {_said(answer)}"
    asked.description = await asking.description(health.timeout_s)


def _offer(pool: Iterable[Asked]) -> Offer:
    return together([asked.description.offer for asked in pool if asked.description is not None])


# What a backend does for one model


async def _examine(asking: Asking, asked: Asked, served: Served, *, probes: bool) -> None:
    assert asked.description is not None
    listed = next((listed for listed in asked.description.offer.models if listed.id == served.policy.upstream), None)
    if listed is None:
        return
    ability = asked.abilities[served.id] = Ability(window=listed.window)
    route = ENGINE_ROUTES.get(served.policy.engine.tokenize_route or "")
    if route is not None:
        ability.counted_tokens = counted(await asking.post(route, _body_to_count(served), ENGINE_TIMEOUT_S))
    if probes:
        await _probe(asking, served, ability)


def _body_to_count(served: Served) -> bytes:
    body = {"model": served.id, "max_tokens": 1, "messages": [{"role": "user", "content": "How many tokens is this?"}]}
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


async def _probe(asking: Asking, served: Served, ability: Ability) -> None:
    """The same short question twice, for what only a second time shows; then once with a thinking budget."""
    question = {"model": served.policy.upstream, "max_tokens": 1, "messages": [{"role": "user", "content": _QUESTION}]}
    await asking.post(CHAT_ROUTE, msgspec.json.encode(question), PROBE_TIMEOUT_S)
    answer = await asking.post(CHAT_ROUTE, msgspec.json.encode(question), PROBE_TIMEOUT_S)
    try:
        completion = msgspec.json.decode(answer.found or b"", type=_Completion)
    except msgspec.MsgspecError:
        ability.trouble = _said(answer)
        return
    ability.has_usage = completion.usage is not None
    details = completion.usage.prompt_tokens_details if completion.usage else None
    ability.has_cached_tokens = details is not None and details.cached_tokens is not None
    message = completion.choices[0].message if completion.choices else {}
    ability.reasoning_fields = tuple(field for field in REASONING_FIELDS if field in message)
    budget = served.policy.engine.budget_field
    if budget is not None:
        refused = await asking.post(CHAT_ROUTE, msgspec.json.encode({**question, budget: 1}), PROBE_TIMEOUT_S)
        ability.budget_refusal = "" if refused.status == 200 else _said(refused)


def _said(answer: Answer) -> str:
    """An answer other than the wanted one, in a few words."""
    if not answer.status:
        return answer.trouble
    return f"HTTP {answer.status}: {backend_error(answer.status, answer.body)[2]}" if answer.status >= 400 else f"HTTP {answer.status}"
