"""The admin port: metrics, health, status and the operator's page. Never on the client port;
without a key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from time import monotonic

import msgspec
from aiohttp import web

from ferrule import __version__
from ferrule.config import Config, ConfigError
from ferrule.process.ports import blame_setting
from ferrule.process.snapshot import Snapshot
from ferrule.process.worker import WorkerSettings
from ferrule.telemetry.metrics import Aggregator, render
from ferrule.telemetry.status import ConfigView, Status, compute_totals, merge_pools

Ask = Callable[[], Awaitable[list[Snapshot]]]

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Admin:
    """`ask` fetches a snapshot of every worker. Counts of workers that died are kept."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.aggregator = Aggregator()
        self._began = monotonic()
        self._runner: web.AppRunner | None = None

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        app = web.Application()
        app.router.add_get("/", self._page)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/status", self._status)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        address = self._runner.addresses[0]
        return str(address[0]), int(address[1])

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _page(self, _request: web.Request) -> web.Response:
        text = files("ferrule.telemetry").joinpath("page.html").read_text()
        return web.Response(
            text=text, content_type="text/html", headers={"cache-control": "no-store"}
        )

    async def _metrics(self, _request: web.Request) -> web.Response:
        families = self.aggregator.merge_with([snapshot.families for snapshot in await self._ask()])
        return web.Response(
            body=render(families),
            headers={"content-type": METRICS_TYPE, "cache-control": "no-store"},
        )

    async def _livez(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n", headers={"cache-control": "no-store"})

    async def _readyz(self, _request: web.Request) -> web.Response:
        snapshots = await self._ask()
        reason = _not_ready(snapshots)
        return web.Response(
            status=200 if reason is None else 503,
            text=f"{reason or 'ready'}\n",
            headers={"cache-control": "no-store"},
        )

    async def _status(self, _request: web.Request) -> web.Response:
        snapshots = await self._ask()
        families = self.aggregator.merge_with([snapshot.families for snapshot in snapshots])
        counters, routing, ended, latency = (
            compute_totals(families) if families else ({}, {}, {}, {})
        )
        reason = _not_ready(snapshots)
        status = Status(
            version=__version__,
            uptime_s=round(monotonic() - self._began, 3),
            state="draining"
            if any(s.is_draining for s in snapshots)
            else "ready"
            if reason is None
            else "not_ready",
            reason=reason,
            config=_config(snapshots),
            workers=[snapshot.worker for snapshot in snapshots],
            pools=merge_pools([snapshot.pools for snapshot in snapshots]),
            counters=counters,
            routing=routing,
            streams_ended=ended,
            latency=latency,
        )
        return web.Response(
            body=msgspec.json.encode(status),
            content_type="application/json",
            headers={"cache-control": "no-store"},
        )


def _config(snapshots: list[Snapshot]) -> ConfigView | None:
    """The first worker's, unless another one refused a newer configuration."""
    views = [snapshot.config for snapshot in snapshots if snapshot.config is not None]
    return next((view for view in views if not view.ok), views[0] if views else None)


def _not_ready(snapshots: list[Snapshot]) -> str | None:
    """Why the instance is not ready; None: it is."""
    if not snapshots:
        return "no worker is running"
    if any(snapshot.is_draining for snapshot in snapshots):
        return "draining"
    if any(snapshot.is_ready for snapshot in snapshots):
        return None
    return snapshots[0].reason


async def open_admin(
    admin: Admin, configuration: Config, settings: WorkerSettings
) -> tuple[str, int]:
    address = configuration.admin
    try:
        with blame_setting("admin", address, settings):
            return await admin.listen(address.host, address.port)
    except ConfigError:
        await admin.close()
        raise
