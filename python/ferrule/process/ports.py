"""Reserves a port that workers share; names the setting whose port cannot be opened."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from ferrule.config import Address, ConfigError, Problem, describe_os_error
from ferrule.process.worker import WorkerSettings


def reserve(host: str, port: int) -> tuple[socket.socket, int]:
    """Binds a port that workers will share, without listening; keep the socket open while they run.
    Raises OSError if another process has the port, even one that would share it: the kernel would
    split connections between the two."""
    _bound(host, port, is_shared=False).close()
    held = _bound(host, port, is_shared=True)
    return held, held.getsockname()[1]


def _bound(host: str, port: int, *, is_shared: bool) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(is_shared))
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


@contextmanager
def blame_setting(setting: str, address: Address, settings: WorkerSettings) -> Iterator[None]:
    """Turns an OSError into a ConfigError that names the setting or the flag."""
    try:
        yield
    except OSError as trouble:
        path = setting if getattr(settings.flags, setting) is None else f"--{setting}"
        raise ConfigError([Problem(path, f"{address}: {describe_os_error(trouble)}")]) from None
