"""One serving process: builds the parts from the configuration, runs them, replaces them on reload,
and ends in good order."""

from __future__ import annotations

import asyncio
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import msgspec

from ferrule import __version__, config
from ferrule._core import Poller
from ferrule.admission.keys import KeyRing
from ferrule.admission.limits import Limiter
from ferrule.admission.stores.choice import open_store
from ferrule.backends.pool import BackendPool, PoolContext, WorkerId
from ferrule.backends.token_counter import TokenCounter
from ferrule.catalog import Catalog, DiscoveredModels
from ferrule.config import Config, ConfigError, Flags
from ferrule.discovery.choice import watcher_for
from ferrule.gateway.proxy import Proxy
from ferrule.gateway.state import AppState
from ferrule.http.connection import Deadlines
from ferrule.http.server import Server
from ferrule.process.snapshot import Snapshot
from ferrule.process.tuning import raise_file_limit, tune_gc, tune_malloc
from ferrule.telemetry.accesslog import AccessLog
from ferrule.telemetry.metrics import Metrics
from ferrule.telemetry.recorder import RequestRecorder
from ferrule.telemetry.status import ConfigView, WorkerView
from ferrule.telemetry.tracing import open_tracing

log = logging.getLogger(__name__)

SWEEP_S = 1.0
QUIET_BEFORE_EXIT_S = 1.0
"""After SIGTERM new connections are still answered for this long, since whoever sends them learns
of it a moment later."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class WorkerSettings(msgspec.Struct, frozen=True):
    """How this process was started. `config_file` None: all is said by flags. `counts_file`: shared
    by the workers of this machine."""

    flags: Flags
    config_file: str | None = None
    worker_id: WorkerId = WorkerId()
    counts_file: str | None = None
    port: int | None = None
    """The client port, where the supervisor has chosen one."""

    def read(self) -> Config:
        """Raises ConfigError, also for what cannot be had where this process runs."""
        read = (
            config.load(self.config_file, flags=self.flags)
            if self.config_file
            else config.from_flags(self.flags)
        )
        for name, pool in read.pools.items():
            watcher_for(name, pool)
        return read


class Worker:
    def __init__(self, settings: WorkerSettings, configuration: Config) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.metrics.build.set(1, __version__)
        limits = configuration.limits
        store = open_store(limits, settings.counts_file, settings.worker_id.worker)
        limiter = Limiter(store, limits.on_store_failure, on_limited=self.metrics.limited.inc)
        self.state = AppState(
            config=configuration,
            catalog=Catalog(configuration, {}),
            keys=_keys(configuration),
            limiter=limiter,
            pools={},
            token_counter=TokenCounter(),
            metrics=self.metrics,
            recorder=RequestRecorder(self.metrics, AccessLog()),
            tracing=open_tracing(os.environ),
        )
        self.proxy = Proxy(self.state)
        edge = configuration.edge
        self.app = Server(self.proxy.serve, _deadlines(configuration), edge.max_connections)
        self._pool_context = PoolContext(settings.worker_id, self.metrics, Poller())
        self._watched = self._stamps()
        self._tasks: set[asyncio.Task[None]] = set()
        self._config_view = _loaded_now()
        self.ended = asyncio.Event()
        self._force_exit = False

    # Life

    async def start(self) -> tuple[str, int]:
        """Opens the client port and returns its address."""
        raise_file_limit()
        tune_malloc()
        poller = self._pool_context.poller
        asyncio.get_running_loop().add_reader(poller.fileno(), poller.run)
        for name, settings in self.state.config.pools.items():
            self._add_pool(name, settings)
        listen = self.state.config.listen
        address = await self.app.listen(
            listen.host,
            self.settings.port or listen.port,
            shared=self.settings.worker_id.workers > 1,
        )
        self._tasks.add(asyncio.get_running_loop().create_task(self._sweep()))
        tune_gc()
        return address

    def end(self) -> None:
        """Asks for the end: at first in good order, from the second time on at once."""
        self._force_exit = self.ended.is_set()
        self.ended.set()

    async def drain(self) -> None:
        """Answers what still comes for a moment, then turns it away; lets streams run to their end
        within the grace period, then ends them with an error event."""
        self.state.is_draining = True
        began = monotonic()
        grace_s = self.state.config.drain_grace_s
        log.info(
            "draining for at most %g s, a second signal ends it now; %s running",
            grace_s,
            _streams(len(self.proxy.live)),
        )
        while self._is_busy() or monotonic() - began < QUIET_BEFORE_EXIT_S:
            self.state.rejects_new = monotonic() - began >= QUIET_BEFORE_EXIT_S
            if self._force_exit or monotonic() - began > grace_s:
                reason = "a second signal came" if self._force_exit else "the grace period is over"
                log.warning("%s; %s cut", reason, _streams(len(self.proxy.live)))
                self.proxy.end_all()
                await asyncio.sleep(0.2)
                break
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.app.close()
        asyncio.get_running_loop().remove_reader(self._pool_context.poller.fileno())
        await asyncio.gather(*(pool.stop() for pool in self.state.pools.values()))
        await self.state.limiter.close()
        self.state.token_counter.close()
        self.state.recorder.post()
        if self.state.tracing is not None:
            await self.state.tracing.close()

    def _is_busy(self) -> bool:
        return bool(self.proxy.live) or self.proxy.running > 0

    # Reload

    def reload(self) -> None:
        """Reads config and keys again. What is wrong is logged and the old stays; what runs is not
        touched."""
        self._watched = self._stamps()
        try:
            new = self.settings.read()
            keys = _keys(new)
        except ConfigError as wrong:
            self._config_view = msgspec.structs.replace(
                self._config_view, ok=False, error=str(wrong)
            )
            if self._logs_reload:
                log.error(
                    "the new configuration is refused and the one of %s kept:\n%s",
                    self._config_view.loaded_at,
                    wrong,
                )
            return
        old = self.state.config
        for setting in ("listen", "admin", "workers", "limits"):
            if self._logs_reload and getattr(new, setting) != getattr(old, setting):
                log.warning("%s changed; that takes a restart", setting)
        self.state.config, self.state.keys = new, keys
        self.app.deadlines, self.app.max_connections = _deadlines(new), new.edge.max_connections
        self._change_pools(new)
        discovered_by_pool = {name: pool.discovered for name, pool in self.state.pools.items()}
        self.state.catalog = Catalog(new, discovered_by_pool)
        self._config_view = _loaded_now()
        if self._logs_reload:
            log.info("configuration and keys are read again")

    @property
    def _logs_reload(self) -> bool:
        """Every worker reads the same files, so one of them says what came of it."""
        return self.settings.worker_id.worker == 0

    def _change_pools(self, new: Config) -> None:
        pools = self.state.pools
        for name in [name for name in pools if name not in new.pools]:
            self._spawn_stop(pools.pop(name))
        for name, settings in new.pools.items():
            if name in pools:
                pools[name].change(settings)
            else:
                self._add_pool(name, settings)

    def _spawn_stop(self, pool: BackendPool) -> None:
        task = asyncio.get_running_loop().create_task(pool.stop())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _add_pool(self, name: str, settings: config.PoolConfig) -> None:
        pool = BackendPool(name, settings, self._pool_context, self._learn)
        self.state.pools[name] = pool
        pool.start()

    def _learn(self, pool: str, discovered: DiscoveredModels) -> None:
        self.state.catalog.learn(pool, discovered)

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        """Changes when a watched file does, also behind a symlink, as ConfigMaps change."""
        files = [self.settings.config_file, self.state.config.auth.keys_file]
        return [_file_stamp(Path(file)) for file in files if file]

    # The sweep

    async def _sweep(self) -> None:
        due = monotonic()
        while True:
            due += SWEEP_S
            await asyncio.sleep(max(0.0, due - monotonic()))
            now = monotonic()
            self.metrics.loop_lag.set(max(0.0, now - due))
            due = max(due, now - SWEEP_S)
            try:
                self._sweep_once(now)
            except Exception:  # a sweep that ends would end every deadline with it
                log.exception("the sweep failed")

    def _sweep_once(self, now: float) -> None:
        self.proxy.sweep(now)
        self.app.sweep(now)
        for pool in self.state.pools.values():
            pool.sweep(now)
        self.state.is_overloaded = self._is_overloaded()
        if self._stamps() != self._watched:
            self.reload()

    def _is_overloaded(self) -> bool:
        edge = self.state.config.edge
        return edge.max_memory_mb is not None and resident_bytes() > edge.max_memory_mb << 20

    # What others see

    def snapshot(self) -> Snapshot:
        now = monotonic()
        self.state.recorder.post()
        for pool in self.state.pools.values():
            pool.show(now)
        is_ready, reason = self._readiness(now)
        return Snapshot(
            worker=WorkerView(os.getpid(), len(self.proxy.live)),
            pools=[pool.view(now) for pool in self.state.pools.values()],
            families=self.metrics.families(),
            is_ready=is_ready,
            is_draining=self.state.is_draining,
            reason=reason,
            config=self._config_view,
        )

    def _readiness(self, now: float) -> tuple[bool, str | None]:
        if self.state.is_draining:
            return False, "draining"
        stale = [name for name, pool in self.state.pools.items() if not pool.is_fresh]
        if stale:
            return False, f"discovery is stale: {', '.join(stale)}"
        if not any(pool.is_ready(now) for pool in self.state.pools.values()):
            return False, "no healthy backend"
        return True, None


def _keys(configuration: Config) -> KeyRing:
    file = configuration.auth.keys_file
    return KeyRing.load(file) if file else KeyRing.open()


def _loaded_now() -> ConfigView:
    return ConfigView(True, None, datetime.now(UTC).isoformat(timespec="seconds"))


def _streams(count: int) -> str:
    return "1 stream is" if count == 1 else f"{count} streams are"


def _deadlines(configuration: Config) -> Deadlines:
    edge = configuration.edge
    return Deadlines(edge.header_s, edge.body_stall_s, edge.idle_s, edge.write_stall_s)


def _file_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE_BYTES
