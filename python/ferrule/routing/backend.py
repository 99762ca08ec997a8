"""What a backend is to the router: its address, its name, and the counts that a choice looks at.

The name is what metrics, headers and hashing know; it comes from the address alone, so that every
worker and replica, and every reload, finds the same one. Credentials in the address take no part in
it and are never shown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container
from urllib.parse import urlsplit, urlunsplit

import msgspec

from ferrule.routing.health import Health

NAME_DIGITS = 6


class BackendSpec(msgspec.Struct, frozen=True):
    """A backend as the configuration or a discovery tells it. `weight` is its share of sessions,
    relative to the others."""

    url: str
    weight: float = 1.0


class Backend(msgspec.Struct, eq=False):
    """A member of a pool. `inflight` counts requests, `sessions` those whose last request went
    here; both of this worker."""

    name: str
    url: str
    weight: float
    health: Health
    inflight: int = 0
    sessions: int = 0
    is_draining: bool = False
    """Removed from the pool; runs its last requests to their end and takes no new one."""
    is_usable: bool = True
    """What the pool last found: not draining, and health lets a request through."""


def name_of(pool: str, url: str, taken: Container[str]) -> str:
    """`rocm-3fa9c1`: pool and digest of the address; more digits in the rare case that the short
    name is taken."""
    digest = hashlib.sha256(canonical_url(url).encode()).hexdigest()
    digits = NAME_DIGITS
    while (name := f"{pool}-{digest[:digits]}") in taken:
        digits += 1
    return name


def canonical_url(url: str) -> str:
    """The address without user, password, query and final slash."""
    parts = urlsplit(url)
    return urlunsplit(
        (parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", "")
    )
