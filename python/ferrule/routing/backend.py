"""A backend as routing sees it: address, name, and the counts that selection compares.

The name stands in metrics, headers and hashes. It is derived from the address alone, so that it is
the same in every worker and replica, and after every reload. Credentials in the address are left
out and never shown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container
from urllib.parse import urlsplit, urlunsplit

import msgspec

from ferrule.routing.health import Health

NAME_DIGITS = 6


class BackendSpec(msgspec.Struct, frozen=True):
    """A backend as configured or discovered. `weight`: its share of sessions, relative to the
    others."""

    url: str
    weight: float = 1.0


class Backend(msgspec.Struct, eq=False):
    """A member of a pool. `inflight`: requests; `sessions`: those whose last request went here.
    Both count this worker's own."""

    name: str
    url: str
    weight: float
    health: Health
    inflight: int = 0
    sessions: int = 0
    is_draining: bool = False
    """Removed from the pool: finishes its requests and takes no new one."""
    is_usable: bool = True
    """Not draining, and its health lets a request through; as of the last review."""


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
