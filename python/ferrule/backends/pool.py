"""A live pool: its backends (discovery), their health (probes), their models, and the connections
to them.

This does the I/O and keeps the results; `routing` decides what to do with them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from time import monotonic

import aiohttp
import msgspec

from ferrule import config
from ferrule._core import Poller
from ferrule.admission.queue import Queue
from ferrule.backends.client import BackendClient, authorization
from ferrule.backends.connections import BackendConnections
from ferrule.catalog import DiscoveredModels, merge
from ferrule.discovery.choice import build_watcher
from ferrule.routing.backend import Backend, BackendSpec
from ferrule.routing.balancer import Balancer, BalancerSettings
from ferrule.routing.health import HealthPolicy, ProbeStatus
from ferrule.telemetry.metrics import Metrics
from ferrule.telemetry.status import BackendView, PoolView

log = logging.getLogger(__name__)

DISCOVER_MODELS_EVERY_S = 30.0


class Entry(msgspec.Struct):
    """One backend of the pool: everything but its health, which the balancer has."""

    connections: BackendConnections
    client: BackendClient
    discovered: DiscoveredModels | None = None
    asked_at: float = -DISCOVER_MODELS_EVERY_S
    has_probe: bool = False
    reason: str | None = None
    """Why the last probe failed."""


class WorkerId(msgspec.Struct, frozen=True):
    """This worker's number, and how many there are: bounds are divided, seeds differ."""

    worker: int = 0
    workers: int = 1


class PoolContext(msgspec.Struct, frozen=True):
    """What all pools of a worker share. `poller` reads the sockets of their backends."""

    worker_id: WorkerId
    metrics: Metrics
    poller: Poller


class BackendPool:
    """`on_models` is called when the models that the backends list have changed."""

    def __init__(
        self,
        name: str,
        settings: config.PoolConfig,
        context: PoolContext,
        on_models: Callable[[str, DiscoveredModels], None],
    ) -> None:
        self.name = name
        self.settings = settings
        self.metrics = context.metrics
        self._worker_id = context.worker_id
        self._poller = context.poller
        self._on_models = on_models
        self.balancer = Balancer(name, _pool_settings(settings, context.worker_id))
        self.queue = Queue(settings.queue.size, settings.queue.timeout_s)
        self.watcher = build_watcher(name, settings)
        self._entries: dict[str, Entry] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None
        self.discovered = DiscoveredModels()

    def start(self) -> None:
        self._session = aiohttp.ClientSession()
        self._watching = asyncio.get_running_loop().create_task(self.watcher.watch(self._on_change))

    async def stop(self) -> None:
        tasks = [*self._tasks, *([self._watching] if self._watching else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for entry in self._entries.values():
            entry.connections.close()
        if self._session is not None:
            await self._session.close()

    def change(self, settings: config.PoolConfig) -> None:
        """Applies new settings after a reload. Backends that stay keep their health, sessions and
        connections."""
        old, self.settings = self.settings, settings
        self.queue.size, self.queue.timeout_s = settings.queue.size, settings.queue.timeout_s
        self.balancer.change(_pool_settings(settings, self._worker_id))
        self._renew_connections()
        if (old.backends, old.discover) != (settings.backends, settings.discover):
            if self._watching is not None:
                self._watching.cancel()
            self.watcher = build_watcher(self.name, settings)
            self._watching = asyncio.get_running_loop().create_task(
                self.watcher.watch(self._on_change)
            )

    # For requests

    def connections(self, backend: Backend) -> BackendConnections:
        return self._entries[backend.name].connections

    @property
    def is_fresh(self) -> bool:
        return self.watcher.age_s() <= self.watcher.stale_after_s

    def is_ready(self, now: float) -> bool:
        return self.is_fresh and self.balancer.is_ready(now)

    def client(self, backend: Backend) -> BackendClient:
        """For control requests, such as a count."""
        return self._entries[backend.name].client

    # Membership

    def _on_change(self, specs: list[BackendSpec]) -> None:
        now = monotonic()
        self.balancer.update(specs, now)
        for backend in self.balancer.backends:
            if backend.name not in self._entries:
                self._entries[backend.name] = self._new_entry(backend)
        self.queue.wake()
        self.sweep(now)

    def _new_entry(self, backend: Backend) -> Entry:
        assert self._session is not None
        connections = BackendConnections(
            backend.url,
            authorization(self.settings, backend.url),
            self.settings.timeouts.connect_s,
            self._poller,
        )
        return Entry(connections, BackendClient(self._session, connections))

    def _renew_connections(self) -> None:
        """New requests use the new key; requests in flight finish on their old connections."""
        for backend in self.balancer.backends:
            entry, wanted = self._entries[backend.name], authorization(self.settings, backend.url)
            if (entry.connections.authorization, entry.connections.connect_s) != (
                wanted,
                self.settings.timeouts.connect_s,
            ):
                entry.connections.close()
                renewed = self._new_entry(backend)
                entry.connections, entry.client = renewed.connections, renewed.client

    def _forget_gone(self) -> None:
        present = {backend.name for backend in self.balancer.backends}
        for name in [name for name in self._entries if name not in present]:
            self._entries.pop(name).connections.close()
            for metric in (
                self.metrics.backend_inflight,
                self.metrics.backend_healthy,
                self.metrics.backend_requests,
            ):
                metric.drop(lambda labels, name=name: labels[:2] == (self.name, name))  # type: ignore[misc]

    # The sweep, once a second

    def sweep(self, now: float) -> None:
        for backend in self.balancer.due_probes(now):
            entry = self._entries[backend.name]
            if not entry.has_probe:
                entry.has_probe = True
                self._spawn(self._probe(backend, entry))
        self._forget_gone()
        self.queue.wake()
        for entry in self._entries.values():
            entry.connections.sweep(now)

    def update_gauges(self, now: float) -> None:
        """Copies the balancer's counts into the gauges; called before they are read."""
        for status in self.balancer.status(now).backends:
            self.metrics.backend_inflight.set(status.inflight, self.name, status.name)
            self.metrics.backend_healthy.set(float(status.healthy), self.name, status.name)
        self.metrics.queue_depth.set(self.queue.depth, self.name)
        self.metrics.discovery_age.set(self.watcher.age_s(), self.name)

    def view(self, now: float) -> PoolView:
        """The pool as `/status` shows it."""
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
                reason=self._entries[backend.name].reason if backend.probe == "down" else None,
            )
            for backend in self.balancer.status(now).backends
        ]
        return PoolView(self.name, round(self.watcher.age_s(), 3), self.queue.depth, backends)

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Probes

    async def _probe(self, backend: Backend, entry: Entry) -> None:
        try:
            health = self.settings.health
            found = await entry.client.health(health.path, health.timeout_s)
            entry.reason = found.reason
            was_up = backend.health.is_up
            self.balancer.record_probe(backend, found.status, monotonic(), found.retry_after_s)
            if backend.health.is_up is not was_up:
                self._log_change(backend, entry)
            self.queue.wake()
            if (
                found.status is ProbeStatus.OK
                and monotonic() - entry.asked_at >= DISCOVER_MODELS_EVERY_S
            ):
                entry.asked_at = monotonic()
                await self._refresh_models(entry)
        finally:
            entry.has_probe = False

    def _log_change(self, backend: Backend, entry: Entry) -> None:
        address = config.redact(backend.url)
        if backend.health.is_up:
            log.info("backend %s (%s) is up", backend.name, address)
        else:
            log.warning("backend %s (%s) is down: %s", backend.name, address, entry.reason)

    async def _refresh_models(self, entry: Entry) -> None:
        timeout_s = self.settings.health.timeout_s
        description = await entry.client.description(
            timeout_s, names_engine=self.settings.engine == "auto"
        )
        if description is not None:
            entry.discovered = description.discovered
            self._publish_models()

    def _publish_models(self) -> None:
        discovered = merge(
            [entry.discovered for entry in self._entries.values() if entry.discovered is not None]
        )
        if discovered != self.discovered:
            self.discovered = discovered
            self._on_models(self.name, discovered)


def _pool_settings(settings: config.PoolConfig, worker_id: WorkerId) -> BalancerSettings:
    health = HealthPolicy(
        interval_s=settings.health.interval_s, fall=settings.health.fall, rise=settings.health.rise
    )
    return BalancerSettings(
        slots=settings.slots,
        max_inflight=settings.max_inflight,
        retries=settings.retries,
        workers=worker_id.workers,
        seed=worker_id.worker,
        health=health,
    )
