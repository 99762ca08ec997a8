"""One serving process: builds its state from the configuration, serves, reloads, drains."""

from __future__ import annotations

import asyncio
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

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
from ferrule.discovery.choice import build_watcher
from ferrule.gateway.proxy import Proxy
from ferrule.gateway.state import AppState, stream_deadlines
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
"""After SIGTERM new requests are still served for this long: load balancers notice with a delay."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class WorkerSettings(msgspec.Struct, frozen=True):
    """How this process was started. `config_file` None: flags alone. `counts_file`: in-memory
    limits, shared by the workers of this machine."""

    flags: Flags
    config_file: str | None = None
    worker_id: WorkerId = WorkerId()
    counts_file: str | None = None
    port: int | None = None
    """The client port, where the supervisor has chosen one."""

    def read(self) -> Config:
        """Raises ConfigError, also for a discovery that does not work where this process runs."""
        read = (
            config.load(self.config_file, flags=self.flags)
            if self.config_file
            else config.from_flags(self.flags)
        )
        for name, pool in read.pools.items():
            build_watcher(name, pool)
        return read


class Worker:
    def __init__(self, settings: WorkerSettings, configuration: Config) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.metrics.build.set(1, __version__)
        limits = configuration.limits
        store = open_store(limits, settings.counts_file, settings.worker_id.worker)
        limiter = Limiter(store, limits.on_store_failure, on_limited=self.metrics.limited.inc)
        self.proxy = Proxy(
            AppState(
                config=configuration,
                catalog=Catalog(configuration, {}),
                keys=_load_keys(configuration),
                limiter=limiter,
                pools={},
                deadlines=stream_deadlines(configuration),
                token_counter=TokenCounter(),
                metrics=self.metrics,
                recorder=RequestRecorder(self.metrics, AccessLog()),
                tracing=open_tracing(os.environ),
            )
        )
        deadlines = _deadlines(configuration)
        self.server = Server(self.proxy.handle, deadlines, configuration.edge.max_connections)
        self._pool_context = PoolContext(settings.worker_id, self.metrics, Poller())
        self._stamps = self._stamp_files()
        self._tasks: set[asyncio.Task[None]] = set()
        self._config_view = _loaded_now()
        self.ended = asyncio.Event()
        self._force_exit = False

    @property
    def state(self) -> AppState:
        """What new requests are served with."""
        return self.proxy.state

    # Start and end

    async def start(self) -> tuple[str, int]:
        """Opens the client port and returns its address."""
        raise_file_limit()
        tune_malloc()
        loop = asyncio.get_running_loop()
        poller = self._pool_context.poller
        loop.add_reader(poller.fileno(), poller.run)
        self._set_state(pools=self._update_pools(self.state.config))
        listen = self.state.config.listen
        address = await self.server.listen(
            listen.host,
            self.settings.port or listen.port,
            shared=self.settings.worker_id.workers > 1,
        )
        self._tasks.add(loop.create_task(self._sweep()))
        tune_gc()
        return address

    def end(self) -> None:
        """The first call drains, the second exits at once."""
        self._force_exit = self.ended.is_set()
        self.ended.set()

    async def drain(self) -> None:
        """Answers new requests for a moment, then rejects them; streams run on for the grace
        period, then end with an error event."""
        lifecycle = self.proxy.lifecycle
        lifecycle.is_draining = True
        began = monotonic()
        grace_s = self.state.config.drain_grace_s
        log.info(
            "draining for at most %g s, a second signal ends it now; %s running",
            grace_s,
            _count_streams(len(self.proxy.streams)),
        )
        while self._is_busy() or monotonic() - began < QUIET_BEFORE_EXIT_S:
            lifecycle.rejects_new = monotonic() - began >= QUIET_BEFORE_EXIT_S
            if self._force_exit or monotonic() - began > grace_s:
                reason = "second signal" if self._force_exit else "the grace period is over"
                log.warning("%s; %s cut", reason, _count_streams(len(self.proxy.streams)))
                self.proxy.end_streams()
                await asyncio.sleep(0.2)
                break
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.server.close()
        asyncio.get_running_loop().remove_reader(self._pool_context.poller.fileno())
        state = self.state
        await asyncio.gather(*(pool.stop() for pool in state.pools.values()))
        await state.limiter.close()
        state.token_counter.close()
        state.recorder.flush()
        if state.tracing is not None:
            await state.tracing.close()

    def _is_busy(self) -> bool:
        return bool(self.proxy.streams) or self.proxy.running > 0

    # Reload (SIGHUP, or a watched file that changed)

    def reload(self) -> None:
        """Reads config and keys again. If anything is wrong it is logged and the old state stays.
        Requests being answered keep the state they began with."""
        self._stamps = self._stamp_files()
        try:
            new = self.settings.read()
            keys = _load_keys(new)
        except ConfigError as error:
            self._refuse_reload(error)
            return
        old = self.state.config
        for setting in ("listen", "admin", "workers", "limits"):
            if self._logs_reload and getattr(new, setting) != getattr(old, setting):
                log.warning("%s changed; restart to apply it", setting)
        self.server.deadlines = _deadlines(new)
        self.server.max_connections = new.edge.max_connections
        pools = self._update_pools(new)
        discovered_by_pool = {name: pool.discovered for name, pool in pools.items()}
        catalog = Catalog(new, discovered_by_pool)
        self._set_state(
            config=new,
            keys=keys,
            pools=pools,
            deadlines=stream_deadlines(new),
            catalog=catalog,
        )
        self._config_view = _loaded_now()
        if self._logs_reload:
            log.info("configuration and keys reloaded")

    def _refuse_reload(self, error: ConfigError) -> None:
        self._config_view = msgspec.structs.replace(self._config_view, ok=False, error=str(error))
        if self._logs_reload:
            loaded_at = self._config_view.loaded_at
            log.error("configuration refused; the one of %s stays:\n%s", loaded_at, error)

    @property
    def _logs_reload(self) -> bool:
        """Every worker reads the same files; one of them logs the result."""
        return self.settings.worker_id.worker == 0

    def _set_state(self, **changes: Any) -> None:
        self.proxy.state = msgspec.structs.replace(self.state, **changes)

    def _update_pools(self, new: Config) -> dict[str, BackendPool]:
        """The pools of a configuration: those whose names stay are changed, not replaced."""
        old = self.state.pools
        for name in old.keys() - new.pools.keys():
            self._spawn_stop(old[name])
        pools: dict[str, BackendPool] = {}
        for name, settings in new.pools.items():
            pool = old.get(name)
            if pool is not None:
                pool.change(settings)
            else:
                pool = BackendPool(name, settings, self._pool_context, self._learn)
                pool.start()
            pools[name] = pool
        return pools

    def _spawn_stop(self, pool: BackendPool) -> None:
        task = asyncio.get_running_loop().create_task(pool.stop())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _learn(self, pool: str, discovered: DiscoveredModels) -> None:
        self.state.catalog.learn(pool, discovered)

    def _stamp_files(self) -> list[tuple[int, int, int] | None]:
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
        self.server.sweep(now)
        for pool in self.state.pools.values():
            pool.sweep(now)
        self.proxy.lifecycle.is_overloaded = self._is_overloaded()
        if self._stamp_files() != self._stamps:
            self.reload()

    def _is_overloaded(self) -> bool:
        edge = self.state.config.edge
        return edge.max_memory_mb is not None and _resident_bytes() > edge.max_memory_mb << 20

    # For the admin port

    def snapshot(self) -> Snapshot:
        now = monotonic()
        pools = self.state.pools.values()
        self.state.recorder.flush()
        for pool in pools:
            pool.update_gauges(now)
        is_ready, reason = self._readiness(now)
        return Snapshot(
            worker=WorkerView(os.getpid(), len(self.proxy.streams)),
            pools=[pool.view(now) for pool in pools],
            families=self.metrics.families(),
            is_ready=is_ready,
            is_draining=self.proxy.lifecycle.is_draining,
            reason=reason,
            config=self._config_view,
        )

    def _readiness(self, now: float) -> tuple[bool, str | None]:
        if self.proxy.lifecycle.is_draining:
            return False, "draining"
        stale = [name for name, pool in self.state.pools.items() if not pool.is_fresh]
        if stale:
            return False, f"discovery is stale: {', '.join(stale)}"
        if not any(pool.is_ready(now) for pool in self.state.pools.values()):
            return False, "no healthy backend"
        return True, None


def _load_keys(configuration: Config) -> KeyRing:
    file = configuration.auth.keys_file
    return KeyRing.load(file) if file else KeyRing.open()


def _loaded_now() -> ConfigView:
    return ConfigView(True, None, datetime.now(UTC).isoformat(timespec="seconds"))


def _count_streams(count: int) -> str:
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


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE_BYTES
