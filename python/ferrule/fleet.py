"""One pool, alive: who its backends are (discovery), whether they live (probes), what they offer, and the connections to them.

What to do with all that is decided in `routing`; this asks the questions and keeps the answers.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from time import monotonic, time

import aiohttp
import msgspec

from ferrule import config
from ferrule._core import Pump
from ferrule.catalog import Listed, Offer
from ferrule.discovery.dns import DnsName
from ferrule.discovery.kubernetes import KubernetesService, Service, in_cluster
from ferrule.discovery.static import StaticList
from ferrule.discovery.watcher import Watcher
from ferrule.engines import detect
from ferrule.gate.queue import Queue
from ferrule.net.upstream import Upstream
from ferrule.routing.backend import Backend, BackendSpec
from ferrule.routing.health import HealthPolicy, Probed
from ferrule.routing.pool import Pool, PoolSettings
from ferrule.routing.retry_after import seconds_of
from ferrule.telemetry.metrics import Metrics
from ferrule.telemetry.status import BackendView, PoolView

log = logging.getLogger(__name__)

OFFER_EVERY_S = 30.0
SCRAPE_LIMIT_BYTES = 4 << 20


class Member(msgspec.Struct):
    """What we hold for one backend besides its health."""

    upstream: Upstream
    offer: Offer | None = None
    asked_at: float = -OFFER_EVERY_S
    has_probe: bool = False


class Place(msgspec.Struct, frozen=True):
    """Which worker of how many this is: bounds are divided, seeds differ."""

    worker: int = 0
    workers: int = 1


class Shared(msgspec.Struct, frozen=True):
    """What all fleets of a worker have in common. `pump` reads the sockets of their backends."""

    place: Place
    metrics: Metrics
    pump: Pump


class Fleet:
    """`on_offer` hears what the pool's backends offer, whenever that has changed."""

    def __init__(self, name: str, settings: config.Pool, shared: Shared, on_offer: Callable[[str, Offer], None]) -> None:
        self.name = name
        self.settings = settings
        self.metrics = shared.metrics
        self._place = shared.place
        self._pump = shared.pump
        self._on_offer = on_offer
        self.pool = Pool(name, _pool_settings(settings, shared.place))
        self.queue = Queue(settings.queue.size, settings.queue.timeout_s)
        self.watcher = _watcher(settings)
        self._members: dict[str, Member] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None
        self.offer = Offer()

    def start(self) -> None:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self.settings.health.timeout_s), auto_decompress=True)
        self._watching = asyncio.get_running_loop().create_task(self.watcher.watch(self._on_change))

    async def stop(self) -> None:
        tasks = [*self._tasks, *([self._watching] if self._watching else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for member in self._members.values():
            member.upstream.close()
        if self._session is not None:
            await self._session.close()

    def change(self, settings: config.Pool) -> None:
        """Takes over new settings of a pool that keeps its name; backends that stay keep their health, sessions and connections."""
        old, self.settings = self.settings, settings
        self.queue.size, self.queue.timeout_s = settings.queue.size, settings.queue.timeout_s
        self.pool.change(_pool_settings(settings, self._place))
        if (old.backends, old.discover) != (settings.backends, settings.discover):
            if self._watching is not None:
                self._watching.cancel()
            self.watcher = _watcher(settings)
            self._watching = asyncio.get_running_loop().create_task(self.watcher.watch(self._on_change))

    # What requests need

    def upstream(self, backend: Backend) -> Upstream:
        return self._members[backend.name].upstream

    @property
    def is_fresh(self) -> bool:
        return self.watcher.age_s() <= self.watcher.stale_after_s

    def is_ready(self, now: float) -> bool:
        return self.is_fresh and self.pool.is_ready(now)

    async def post(self, backend: Backend, path: str, body: bytes, timeout_s: float) -> bytes:
        """A question off the hot path, such as a count. OSError, TimeoutError or aiohttp's errors when it fails."""
        assert self._session is not None
        upstream = self.upstream(backend)
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with self._session.post(upstream.url(path), data=body, headers=upstream.control_headers, timeout=timeout) as response:
            response.raise_for_status()
            return await response.read()

    # Membership

    def _on_change(self, specs: list[BackendSpec]) -> None:
        now = monotonic()
        self.pool.update(specs, now)
        keys = {backend.url.url: backend.url.authorization for backend in self.settings.backends}
        for backend in self.pool.backends:
            if backend.name not in self._members:
                secret = keys.get(backend.url)
                authorization = secret.reveal() if secret else f"Bearer {self.settings.api_key.reveal()}" if self.settings.api_key else None
                self._members[backend.name] = Member(Upstream(backend.url, authorization, self.settings.timeouts.connect_s, self._pump))
        self.queue.wake()
        self.sweep(now)

    def _forget_gone(self) -> None:
        present = {backend.name for backend in self.pool.backends}
        for name in [name for name in self._members if name not in present]:
            self._members.pop(name).upstream.close()
            for metric in (self.metrics.backend_inflight, self.metrics.backend_healthy, self.metrics.backend_requests):
                metric.drop(lambda labels, name=name: labels[:2] == (self.name, name))  # type: ignore[misc]

    # The sweep, once a second

    def sweep(self, now: float) -> None:
        for backend in self.pool.due_probes(now):
            member = self._members[backend.name]
            if not member.has_probe:
                member.has_probe = True
                self._spawn(self._probe(backend, member))
        self._forget_gone()
        self.queue.wake()
        for member in self._members.values():
            member.upstream.sweep(now)

    def show(self, now: float) -> None:
        """Puts what is counted elsewhere into the gauges; called when somebody looks."""
        for status in self.pool.status(now).backends:
            self.metrics.backend_inflight.set(status.inflight, self.name, status.name)
            self.metrics.backend_healthy.set(float(status.healthy), self.name, status.name)
        self.metrics.queue_depth.set(self.queue.depth, self.name)
        self.metrics.discovery_age.set(self.watcher.age_s(), self.name)

    def view(self, now: float) -> PoolView:
        """What `/status` shows of it."""
        backends = [
            BackendView(
                name=backend.name,
                address=backend.url,
                healthy=backend.healthy,
                state="draining" if backend.draining else backend.probe,
                breaker=backend.breaker,
                inflight=backend.inflight,
                slots=self.settings.slots,
                sessions=backend.sessions,
                weight=backend.weight,
                draining=backend.draining,
            )
            for backend in self.pool.status(now).backends
        ]
        return PoolView(self.name, round(self.watcher.age_s(), 3), self.queue.depth, backends)

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Probes

    async def _probe(self, backend: Backend, member: Member) -> None:
        try:
            result, retry_after_s = await self._ask_health(member)
            was_up = backend.health.is_up
            self.pool.probed(backend, result, monotonic(), retry_after_s)
            if backend.health.is_up is not was_up:
                log.info("backend %s is %s", backend.name, "up" if backend.health.is_up else "down")
            self.queue.wake()
            if result is Probed.OK and monotonic() - member.asked_at >= OFFER_EVERY_S:
                member.asked_at = monotonic()
                await self._ask_offer(member)
        finally:
            member.has_probe = False

    async def _ask_health(self, member: Member) -> tuple[Probed, float]:
        assert self._session is not None
        url, headers = member.upstream.url(self.settings.health.path), member.upstream.control_headers
        timeout = aiohttp.ClientTimeout(total=self.settings.health.timeout_s)
        try:
            async with self._session.get(url, headers=headers, allow_redirects=False, timeout=timeout) as response:
                if response.status == 429:
                    return Probed.BUSY, seconds_of(response.headers.get("retry-after"), time())
                return (Probed.OK if response.status < 400 else Probed.FAILED), 0.0
        except (aiohttp.ClientError, OSError, TimeoutError):
            return Probed.FAILED, 0.0

    async def _ask_offer(self, member: Member) -> None:
        models = await self._get(member, "/v1/models")
        if models is None:
            return
        version = await self._get(member, "/version") if self.settings.engine == "auto" else None
        props = await self._get(member, "/props") if self.settings.engine == "auto" and version is None else None
        member.offer = Offer(detect(models, version, props), _listed(models), True)
        self._tell_offer()

    def _tell_offer(self) -> None:
        offers = [member.offer for member in self._members.values() if member.offer is not None]
        union = {listed.id: listed for offer in offers for listed in offer.models}
        offer = Offer(offers[0].profile, tuple(union.values()), True)
        if offer != self.offer:
            self.offer = offer
            self._on_offer(self.name, offer)

    async def _get(self, member: Member, path: str) -> bytes | None:
        assert self._session is not None
        try:
            async with self._session.get(member.upstream.url(path), headers=member.upstream.control_headers) as response:
                return await response.content.read(SCRAPE_LIMIT_BYTES) if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None


def _pool_settings(settings: config.Pool, place: Place) -> PoolSettings:
    health = HealthPolicy(interval_s=settings.health.interval_s, fall=settings.health.fall, rise=settings.health.rise)
    return PoolSettings(
        slots=settings.slots,
        max_inflight=settings.max_inflight,
        retries=settings.retries,
        workers=place.workers,
        seed=place.worker,
        health=health,
    )


def _watcher(settings: config.Pool) -> Watcher:
    found = settings.discover
    if found is None:
        return StaticList([BackendSpec(backend.url.url, backend.weight) for backend in settings.backends])
    if found.dns is not None:
        return DnsName(found.dns.host, found.dns.port, found.interval_s)
    assert found.kubernetes is not None
    where = found.kubernetes
    return KubernetesService(Service(where.namespace, where.service, where.port), in_cluster(os.environ))


class _ModelEntry(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    created: int | None = None
    meta: dict[str, object] | None = None


class _ModelList(msgspec.Struct):
    data: list[_ModelEntry] = []


def _listed(body: bytes) -> tuple[Listed, ...]:
    try:
        entries = msgspec.json.decode(body, type=_ModelList).data
    except msgspec.MsgspecError:
        return ()
    return tuple(Listed(entry.id, _window(entry), entry.created or 0) for entry in entries)


def _window(entry: _ModelEntry) -> int | None:
    if entry.max_model_len:
        return entry.max_model_len
    found = (entry.meta or {}).get("n_ctx")  # llama.cpp, per slot
    return found if isinstance(found, int) and found > 0 else None
