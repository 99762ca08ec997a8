"""Discovers backends as the ready endpoints of a Kubernetes service: lists its EndpointSlices, then
watches them.

Whenever a watch ends, a new list follows, so that a missed event is corrected within `RELIST_S`.
If the API server does not answer, the last list is kept.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path

import aiohttp
import msgspec

from ferrule.discovery.slices import Event, Expired, SliceList, SliceSet, build_specs
from ferrule.discovery.watcher import Freshness, OnChange

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
RELIST_S = 60.0
REQUEST_TIMEOUT_S = 10.0
BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
SHORT_WATCH_S = 1.0
MAX_LINE_BYTES = 4 * 1024 * 1024
MAX_LIST_BYTES = 64 * 1024 * 1024

Sleep = Callable[[float], Awaitable[None]]

log = logging.getLogger(__name__)


class ApiAccess(msgspec.Struct, frozen=True):
    """The API server and its credentials. Kubernetes rotates both files, so they are read again for
    every list."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None


class Service(msgspec.Struct, frozen=True):
    """`port`: the number that the pods listen on, or the name of a port of the service."""

    namespace: str
    name: str
    port: int | str


def read_cluster_access(environ: Mapping[str, str]) -> ApiAccess:
    """The API server as a pod's environment names it. Raises LookupError outside a cluster."""
    host, port = (
        environ.get("KUBERNETES_SERVICE_HOST"),
        environ.get("KUBERNETES_SERVICE_PORT", "443"),
    )
    if not host:
        raise LookupError(
            "discovery by kubernetes works inside a cluster: KUBERNETES_SERVICE_HOST is not set"
        )
    return ApiAccess(
        f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        ACCOUNT / "token",
        ACCOUNT / "ca.crt",
    )


class KubernetesService:
    """A Watcher of one service's endpoints."""

    stale_after_s = 3 * RELIST_S

    def __init__(
        self,
        service: Service,
        access: ApiAccess,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._service = service
        self._access = access
        self._clock = clock
        self._sleep = sleep
        self._uniform = uniform
        self._freshness = Freshness(clock)
        self._failures = 0
        self.age_s = self._freshness.age_s

    async def watch(self, on_change: OnChange) -> None:
        while True:
            began = self._clock()
            try:
                await self._list_and_watch(on_change)
            # msgspec's errors are ValueErrors
            except (Expired, OSError, aiohttp.ClientError, ValueError) as failure:
                self._failures += 1
                log.warning(
                    "discovery: %s/%s: %s",
                    self._service.namespace,
                    self._service.name,
                    failure or type(failure).__name__,
                )
            else:
                self._failures = self._failures + 1 if self._clock() - began < SHORT_WATCH_S else 0
            await self._sleep(self._pause_s())

    def _pause_s(self) -> float:
        """0 after a watch that ran its time; else exponential back-off with full jitter, so that
        replicas do not return in step."""
        if self._failures == 0:
            return 0.0
        return self._uniform(
            0.0, min(MAX_BACKOFF_S, BACKOFF_S * 2.0 ** min(self._failures - 1, 10))
        )

    async def _list_and_watch(self, on_change: OnChange) -> None:
        async with self._open_session() as session:
            slices = await self._fetch_list(session)
            self._freshness.accept(
                build_specs(slices.by_name.values(), self._service.port), on_change
            )
            async with aclosing(self._watch_events(session, slices.version)) as events:
                async for event in events:
                    changed = slices.apply(event)
                    self._failures = 0
                    if changed:
                        self._freshness.accept(
                            build_specs(slices.by_name.values(), self._service.port), on_change
                        )
                    else:
                        self._freshness.confirm()

    # API requests

    def _open_session(self) -> aiohttp.ClientSession:
        access = self._access
        headers = {"accept": "application/json"}
        if access.token_file is not None:
            headers["authorization"] = f"Bearer {access.token_file.read_text().strip()}"
        tls = (
            ssl.create_default_context(cafile=access.ca_file)
            if access.ca_file is not None
            else True
        )
        return aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=tls))

    async def _fetch_list(self, session: aiohttp.ClientSession) -> SliceSet:
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        async with session.get(
            self._build_url(), params=self._build_selector(), timeout=timeout, raise_for_status=True
        ) as response:
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > MAX_LIST_BYTES:
                    raise ValueError("the list of endpoint slices is too long")
        return SliceSet.from_list(msgspec.json.decode(body, type=SliceList))

    async def _watch_events(
        self, session: aiohttp.ClientSession, version: str
    ) -> AsyncGenerator[Event, None]:
        # The server ends the watch in time; the deadline is for an end that gets lost.
        duration_s = int(self._uniform(0.75, 1.0) * RELIST_S)
        params = self._build_selector() | {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(duration_s),
        }
        timeout = aiohttp.ClientTimeout(total=duration_s + REQUEST_TIMEOUT_S)
        async with session.get(
            self._build_url(), params=params, timeout=timeout, raise_for_status=True
        ) as response:
            async for line in _read_lines(response.content):
                yield msgspec.json.decode(line, type=Event)

    def _build_url(self) -> str:
        namespace = self._service.namespace
        return f"{self._access.url}/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"

    def _build_selector(self) -> dict[str, str]:
        return {"labelSelector": f"kubernetes.io/service-name={self._service.name}"}


async def _read_lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines. aiohttp's own line reader refuses lines over 64 kB, which a slice of a hundred
    pods exceeds."""
    rest = bytearray()
    async for chunk in stream.iter_any():
        rest += chunk
        *lines, tail = rest.split(b"\n")
        rest = tail
        if len(rest) > MAX_LINE_BYTES:
            raise ValueError("a line of the watch is too long")
        for line in lines:
            if line.strip():
                yield bytes(line)
