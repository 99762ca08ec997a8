"""Authenticates a request: the key in its headers → the tenant it belongs to, or a 401.

Only SHA-256 digests are kept. Lookup is by digest, so its timing reveals nothing about a key, and
the match is compared in constant time. A key appears in no exception, repr or message.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from ferrule.config import ConfigError, Problem, matches
from ferrule.config.document import read_document
from ferrule.config.struct_reader import StructReader
from ferrule.errors import Failure

PREFIX = "fk-"
KEY_LIMIT_CHARS = 1024
"""Longer values are refused without hashing them."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")

LimitValue = Annotated[int, Meta(ge=1, le=10**12)]


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a key, and what it may use. A limit of None does not apply."""

    name: str
    models: tuple[str, ...] = ("*",)
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None

    @property
    def has_limits(self) -> bool:
        return (
            self.requests_per_minute is not None
            or self.tokens_per_minute is not None
            or self.concurrency is not None
        )

    def may_use(self, *names: str) -> bool:
        """`names`: the model's name as the client wrote it, and its id. One match is enough."""
        return "*" in self.models or any(
            matches(pattern, name) for pattern in self.models for name in names
        )

    def check_model(self, *names: str) -> None:
        """Raises Failure 403 unless `may_use`."""
        if not self.may_use(*names):
            raise Failure(
                403,
                "Your API key does not have permission to use the specified model.",
                should_retry=False,
            )


ANONYMOUS = Tenant(name="anonymous")


class _KeyEntry(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    sha256: str
    models: tuple[Annotated[str, Meta(min_length=1)], ...] = ("*",)
    requests_per_minute: LimitValue | None = None
    tokens_per_minute: LimitValue | None = None
    concurrency: LimitValue | None = None

    def __repr__(self) -> str:
        return f"_KeyEntry(name={self.name!r})"


class _KeysFile(msgspec.Struct, frozen=True, kw_only=True):
    keys: tuple[_KeyEntry, ...]


class KeyRing:
    """Tenants by the digest of their key. `KeyRing.open()` admits everyone as `anonymous`."""

    def __init__(self, tenants: Mapping[bytes, Tenant], *, is_open: bool = False) -> None:
        self._tenants = {digest: (digest, tenant) for digest, tenant in tenants.items()}
        self.is_open = is_open

    @classmethod
    def open(cls) -> KeyRing:
        return cls({}, is_open=True)

    @classmethod
    def load(cls, path: str | Path) -> KeyRing:
        """Raises ConfigError with every problem and its path (`keys.1.sha256`)."""
        keys_path = Path(path)
        reader = StructReader(environment={}, parsers={})
        file = reader.read_struct(_KeysFile, read_document(keys_path), "")
        problems = reader.problems + (_find_problems(file) if file else [])
        if file is None or problems:
            raise ConfigError(problems, str(keys_path))
        return cls({bytes.fromhex(entry.sha256): _to_tenant(entry) for entry in file.keys})

    def __repr__(self) -> str:
        return f"KeyRing({'open' if self.is_open else len(self._tenants)})"

    @property
    def tenants(self) -> list[Tenant]:
        return [tenant for _, tenant in self._tenants.values()]

    def authenticate(
        self, x_api_key: str | None, authorization: str | None, missing_key_message: str
    ) -> Tenant:
        """The tenant of the key in either header; one valid key of two is enough. Raises Failure
        401."""
        if self.is_open:
            return ANONYMOUS
        keys = [key for key in ((x_api_key or "").strip(), _parse_bearer(authorization)) if key]
        if not keys:
            raise Failure(401, missing_key_message, should_retry=False)
        for key in keys:
            tenant = self._lookup(key)
            if tenant is not None:
                return tenant
        raise Failure(401, "Unauthorized: Invalid API key.", should_retry=False, is_admission=True)

    def _lookup(self, key: str) -> Tenant | None:
        if len(key) > KEY_LIMIT_CHARS:
            return None
        # aiohttp decodes headers with surrogateescape, and a strict encoder would raise on that.
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
        known = self._tenants.get(digest)
        return known[1] if known is not None and hmac.compare_digest(known[0], digest) else None


def generate_key(name: str) -> tuple[str, str]:
    """A new key, to be shown once, and its entry for the keys file. Raises ValueError if `name` is
    not valid."""
    if not _is_valid_name(name):
        raise ValueError(_NAME_EXPECTED)
    key = PREFIX + secrets.token_urlsafe(32)
    digest = hashlib.sha256(key.encode()).hexdigest()
    return key, f'  - name: "{name}"\n    sha256: "{digest}"\n    models: ["*"]\n'


_NAME_EXPECTED = "expected up to 64 letters, digits and . _ @ -, not `anonymous`"


def _is_valid_name(name: str) -> bool:
    return name != ANONYMOUS.name and _NAME.fullmatch(name) is not None


def _parse_bearer(authorization: str | None) -> str:
    """The key of an `Authorization: Bearer` header; empty for any other scheme."""
    scheme, _, key = (authorization or "").strip().partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _to_tenant(entry: _KeyEntry) -> Tenant:
    return Tenant(
        name=entry.name,
        models=entry.models,
        requests_per_minute=entry.requests_per_minute,
        tokens_per_minute=entry.tokens_per_minute,
        concurrency=entry.concurrency,
    )


def _find_problems(file: _KeysFile) -> list[Problem]:
    problems: list[Problem] = []
    names: dict[str, int] = {}
    digests: dict[str, int] = {}
    for index, entry in enumerate(file.keys):
        if not _is_valid_name(entry.name):
            problems.append(Problem(f"keys.{index}.name", _NAME_EXPECTED))
        if not _SHA256.fullmatch(entry.sha256):
            problems.append(
                Problem(
                    f"keys.{index}.sha256",
                    "expected 64 hex digits in lower case: the SHA-256 of the key, never the key",
                )
            )
        elif entry.sha256 in digests:
            problems.append(
                Problem(f"keys.{index}.sha256", f"is the same key as keys.{digests[entry.sha256]}")
            )
        if entry.name in names:
            problems.append(
                Problem(
                    f"keys.{index}.name",
                    f"`{entry.name}` is already the name of keys.{names[entry.name]}",
                )
            )
        names.setdefault(entry.name, index)
        digests.setdefault(entry.sha256, index)
    return problems
