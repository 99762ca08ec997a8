"""One serving process: builds the parts from the configuration, runs them, replaces them on reload, and ends in good order."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import resource
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import msgspec

from ferrule import __version__, config
from ferrule._core import Pump
from ferrule.admission.keys import KeyRing
from ferrule.admission.limits import Limiter
from ferrule.admission.stores.choice import open_store
from ferrule.backends.pool import Fleet, Place, Shared
from ferrule.backends.token_counter import Counting
from ferrule.catalog import Catalog, Offer
from ferrule.config import Config, ConfigError, Flags
from ferrule.discovery.choice import watcher_for
from ferrule.gateway.proxy import Proxy
from ferrule.gateway.state import Parts
from ferrule.http.connection import Deadlines
from ferrule.http.server import App
from ferrule.telemetry.accesslog import AccessLog
from ferrule.telemetry.metrics import Family, Metrics
from ferrule.telemetry.recorder import Ledger
from ferrule.telemetry.status import ConfigView, PoolView, WorkerView
from ferrule.telemetry.tracing import open_tracing

log = logging.getLogger(__name__)

SWEEP_S = 1.0
QUIET_BEFORE_EXIT_S = 1.0
"""After SIGTERM new connections are still answered for this long, since whoever sends them learns of it a moment later."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Settings(msgspec.Struct, frozen=True):
    """How this process was started. `config_file` None: all is said by flags. `counts_file`: shared by the workers of this machine."""

    flags: Flags
    config_file: str | None = None
    place: Place = Place()
    counts_file: str | None = None
    port: int | None = None
    """The client port, where the supervisor has chosen one."""

    def read(self) -> Config:
        """Raises ConfigError, also for what cannot be had where this process runs."""
        read = config.load(self.config_file, flags=self.flags) if self.config_file else config.from_flags(self.flags)
        for name, pool in read.pools.items():
            watcher_for(name, pool)
        return read


class Snapshot(msgspec.Struct):
    """What one worker tells of itself."""

    worker: WorkerView
    pools: list[PoolView]
    families: list[Family]
    is_ready: bool
    is_draining: bool
    reason: str | None
    config: ConfigView | None = None


class Worker:
    def __init__(self, settings: Settings, configuration: Config) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.metrics.build.set(1, __version__)
        limits = configuration.limits
        store = open_store(limits, settings.counts_file, settings.place.worker)
        limiter = Limiter(store, limits.on_store_failure, on_limited=self.metrics.limited.inc)
        self.parts = Parts(
            config=configuration,
            catalog=Catalog(configuration, {}),
            keys=_keys(configuration),
            limiter=limiter,
            fleets={},
            counting=Counting(),
            metrics=self.metrics,
            ledger=Ledger(self.metrics, AccessLog()),
            tracing=open_tracing(os.environ),
        )
        self.proxy = Proxy(self.parts)
        edge = configuration.edge
        self.app = App(self.proxy.serve, _deadlines(configuration), edge.max_connections)
        self._shared = Shared(settings.place, self.metrics, Pump())
        self._watched = self._stamps()
        self._tasks: set[asyncio.Task[None]] = set()
        self._config_view = _read_now()
        self.ended = asyncio.Event()
        self._is_hurried = False

    # Life

    async def start(self) -> tuple[str, int]:
        """Opens the client port and returns its address."""
        _raise_file_limit()
        _keep_heap()
        pump = self._shared.pump
        asyncio.get_running_loop().add_reader(pump.fileno(), pump.run)
        for name, settings in self.parts.config.pools.items():
            self._add_fleet(name, settings)
        listen = self.parts.config.listen
        address = await self.app.listen(listen.host, self.settings.port or listen.port, shared=self.settings.place.workers > 1)
        self._tasks.add(asyncio.get_running_loop().create_task(self._sweep()))
        _calm_collector()
        return address

    def end(self) -> None:
        """Asks for the end: at first in good order, from the second time on at once."""
        self._is_hurried = self.ended.is_set()
        self.ended.set()

    async def drain(self) -> None:
        """Answers what still comes for a moment, then turns it away; lets streams run to their end within the grace period, then ends
        them with an error event."""
        self.parts.is_draining = True
        began = monotonic()
        grace_s = self.parts.config.drain_grace_s
        log.info("draining for at most %g s, a second signal ends it now; %s running", grace_s, _streams(len(self.proxy.live)))
        while self._is_busy() or monotonic() - began < QUIET_BEFORE_EXIT_S:
            self.parts.turns_away = monotonic() - began >= QUIET_BEFORE_EXIT_S
            if self._is_hurried or monotonic() - began > grace_s:
                reason = "a second signal came" if self._is_hurried else "the grace period is over"
                log.warning("%s; %s cut", reason, _streams(len(self.proxy.live)))
                self.proxy.end_all()
                await asyncio.sleep(0.2)
                break
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.app.close()
        asyncio.get_running_loop().remove_reader(self._shared.pump.fileno())
        await asyncio.gather(*(fleet.stop() for fleet in self.parts.fleets.values()))
        await self.parts.limiter.close()
        self.parts.counting.close()
        self.parts.ledger.post()
        if self.parts.tracing is not None:
            await self.parts.tracing.close()

    def _is_busy(self) -> bool:
        return bool(self.proxy.live) or self.proxy.running > 0

    # Reload

    def reload(self) -> None:
        """Reads config and keys again. What is wrong is logged and the old stays; what runs is not touched."""
        self._watched = self._stamps()
        try:
            new = self.settings.read()
            keys = _keys(new)
        except ConfigError as wrong:
            self._config_view = msgspec.structs.replace(self._config_view, ok=False, error=str(wrong))
            if self._speaks:
                log.error("the new configuration is refused and the one of %s kept:\n%s", self._config_view.loaded_at, wrong)
            return
        old = self.parts.config
        for setting in ("listen", "admin", "workers", "limits"):
            if self._speaks and getattr(new, setting) != getattr(old, setting):
                log.warning("%s changed; that takes a restart", setting)
        self.parts.config, self.parts.keys = new, keys
        self.app.deadlines, self.app.max_connections = _deadlines(new), new.edge.max_connections
        self._change_fleets(new)
        offers = {name: fleet.offer for name, fleet in self.parts.fleets.items()}
        self.parts.catalog = Catalog(new, offers)
        self._config_view = _read_now()
        if self._speaks:
            log.info("configuration and keys are read again")

    @property
    def _speaks(self) -> bool:
        """Every worker reads the same files, so one of them says what came of it."""
        return self.settings.place.worker == 0

    def _change_fleets(self, new: Config) -> None:
        fleets = self.parts.fleets
        for name in [name for name in fleets if name not in new.pools]:
            self._spawn_stop(fleets.pop(name))
        for name, settings in new.pools.items():
            if name in fleets:
                fleets[name].change(settings)
            else:
                self._add_fleet(name, settings)

    def _spawn_stop(self, fleet: Fleet) -> None:
        task = asyncio.get_running_loop().create_task(fleet.stop())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _add_fleet(self, name: str, settings: config.Pool) -> None:
        fleet = Fleet(name, settings, self._shared, self._learn)
        self.parts.fleets[name] = fleet
        fleet.start()

    def _learn(self, pool: str, offer: Offer) -> None:
        self.parts.catalog.learn(pool, offer)

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        """Changes when a watched file does, also behind a symlink, as ConfigMaps change."""
        files = [self.settings.config_file, self.parts.config.auth.keys_file]
        return [_stamp(Path(file)) for file in files if file]

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
        for fleet in self.parts.fleets.values():
            fleet.sweep(now)
        self.parts.is_overloaded = self._is_overloaded()
        if self._stamps() != self._watched:
            self.reload()

    def _is_overloaded(self) -> bool:
        edge = self.parts.config.edge
        return edge.max_memory_mb is not None and _resident_bytes() > edge.max_memory_mb << 20

    # What others see

    def snapshot(self) -> Snapshot:
        now = monotonic()
        self.parts.ledger.post()
        for fleet in self.parts.fleets.values():
            fleet.show(now)
        is_ready, reason = self._readiness(now)
        return Snapshot(
            worker=WorkerView(os.getpid(), len(self.proxy.live)),
            pools=[fleet.view(now) for fleet in self.parts.fleets.values()],
            families=self.metrics.families(),
            is_ready=is_ready,
            is_draining=self.parts.is_draining,
            reason=reason,
            config=self._config_view,
        )

    def _readiness(self, now: float) -> tuple[bool, str | None]:
        if self.parts.is_draining:
            return False, "draining"
        stale = [name for name, fleet in self.parts.fleets.items() if not fleet.is_fresh]
        if stale:
            return False, f"discovery is stale: {', '.join(stale)}"
        if not any(fleet.is_ready(now) for fleet in self.parts.fleets.values()):
            return False, "no healthy backend"
        return True, None


def _keys(configuration: Config) -> KeyRing:
    file = configuration.auth.keys_file
    return KeyRing.load(file) if file else KeyRing.open()


def _read_now() -> ConfigView:
    return ConfigView(True, None, datetime.now(UTC).isoformat(timespec="seconds"))


def _streams(count: int) -> str:
    return "1 stream is" if count == 1 else f"{count} streams are"


def _deadlines(configuration: Config) -> Deadlines:
    edge = configuration.edge
    return Deadlines(edge.header_s, edge.body_stall_s, edge.idle_s, edge.write_stall_s)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE_BYTES


def _calm_collector() -> None:
    """What was made at start stays; requests make few cycles, and looking for them every 700 objects was 4 % of a request."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _keep_heap() -> None:
    """Keeps glibc from giving the memory of every large request back to the system: the page faults were a tenth of its cost."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library, without that habit
        return
    mallopt(M_TRIM_THRESHOLD, 64 << 20)
    mallopt(M_MMAP_THRESHOLD, 32 << 20)


def _raise_file_limit() -> None:
    """Every stream takes two descriptors; the soft limit of 1024 would end at 500."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
