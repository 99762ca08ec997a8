"""Discovers backends as the addresses of a DNS name, such as a headless service, resolved every
interval by the system's resolver.

If the name does not resolve, the last list is kept: getaddrinfo does not distinguish a failure from
"no such name". Whether the last addresses still serve is up to the health probes.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable

from ferrule.discovery.watcher import Freshness, OnChange
from ferrule.routing.backend import BackendSpec

RESOLVE_TIMEOUT_S = 5.0

Resolve = Callable[[str, int], Awaitable[list[str]]]
Sleep = Callable[[float], Awaitable[None]]

log = logging.getLogger(__name__)


async def resolve_addresses(host: str, port: int) -> list[str]:
    """The A and AAAA addresses of `host`. Raises OSError (socket.gaierror) if there are none."""
    answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for _, _, _, _, sockaddr in answers]


class DnsName:
    """A Watcher of `host`, whose addresses all serve on `port`."""

    def __init__(
        self,
        host: str,
        port: int,
        interval_s: float,
        *,
        resolve: Resolve = resolve_addresses,
        clock: Callable[[], float] = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._host = host
        self._port = port
        self._interval_s = interval_s
        self._resolve = resolve
        self._sleep = sleep
        self._freshness = Freshness(clock)
        self.stale_after_s = 5 * interval_s + RESOLVE_TIMEOUT_S
        self.age_s = self._freshness.age_s

    async def watch(self, on_change: OnChange) -> None:
        while True:
            try:
                async with asyncio.timeout(RESOLVE_TIMEOUT_S):
                    addresses = await self._resolve(self._host, self._port)
            # TimeoutError is an OSError; UnicodeError: a label that IDNA refuses
            except (OSError, UnicodeError) as failure:
                log.warning(
                    "discovery: %s does not resolve, keeping the last list: %s",
                    self._host,
                    failure or "no answer in time",
                )
            else:
                self._freshness.accept(
                    [BackendSpec(build_url(a, self._port)) for a in set(addresses)], on_change
                )
            await self._sleep(self._interval_s)


def build_url(address: str, port: int) -> str:
    """`http://10.0.0.1:8000`, `http://[fd00::1]:8000`."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
