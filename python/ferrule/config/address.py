"""Listen addresses (`HOST:PORT`) and backend URLs, normalised so that equal addresses compare
equal.

Credentials are taken out of a URL and kept as a secret. Nothing is resolved or opened.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import socket
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from ferrule.config.secret import Secret, redact

DEFAULT_PORTS = {"http": 80, "https": 443}


class Address(msgspec.Struct, frozen=True):
    """`HOST:PORT`. An IPv6 host is written in brackets and stored without. Port 0: any free
    port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class BackendUrl(msgspec.Struct, frozen=True):
    """`url` has no credentials, no trailing slash and no default port, so it may be logged.
    `authorization`: the header made from the credentials, if any."""

    url: str
    authorization: Secret | None = None

    def __str__(self) -> str:
        return self.url


def parse_address(value: object) -> Address:
    """Raises ValueError with the expected form."""
    expected = "expected HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080"
    if not isinstance(value, str):
        raise ValueError(expected)
    host, colon, port = value.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(expected)
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(expected)
    return Address(host.lower(), int(port))


def parse_backend_url(value: object) -> BackendUrl:
    """An http or https URL; a path prefix is kept. Raises ValueError with the expected form, never
    with credentials."""
    if not isinstance(value, str):
        raise ValueError("expected a URL such as http://10.0.0.11:8000")
    text = value.strip()
    shown = redact(text)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(
            f"`{shown}` is no URL; expected one such as http://10.0.0.11:8000"
        ) from None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or port == 0:
        raise ValueError(f"`{shown}`: expected http://HOST[:PORT][/PREFIX] or https://…")
    if parts.query or parts.fragment:
        raise ValueError(f"`{shown}`: expected no query and no fragment")
    path = parts.path.rstrip("/")
    if any(not 0x21 <= ord(character) <= 0x7E for character in parts.hostname + path):
        raise ValueError(
            f"`{shown}`: expected printable ASCII without spaces; percent-encode the rest"
        )
    if path.endswith("/v1"):
        raise ValueError(f"`{shown}`: expected the URL without /v1, which is added")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    suffix = "" if port is None or port == DEFAULT_PORTS[parts.scheme] else f":{port}"
    return BackendUrl(f"{parts.scheme}://{host}{suffix}{path}", _build_basic_auth(parts))


def describe_os_error(error: OSError) -> str:
    """Why an address could not be used, in the operating system's words. asyncio puts addresses
    into `strerror`; gaierror numbers its errors differently from errno."""
    reason = (
        error.strerror
        if isinstance(error, socket.gaierror) or not error.errno
        else os.strerror(error.errno)
    )
    return (reason or str(error)).lower()


def _build_basic_auth(parts: SplitResult) -> Secret | None:
    if parts.username is None:
        return None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return Secret("Basic " + base64.b64encode(pair.encode()).decode())
