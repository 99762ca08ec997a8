"""Tool names that backends refuse, mapped to ones they take: the same everywhere in a request, the
same in every turn, no collisions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection

_ACCEPTED = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ODD = re.compile(r"[^a-zA-Z0-9_-]")
_HEAD_CHARS = 55


class ToolNames:
    """The names of one request. `declared`: all names in use, which a generated one must not
    equal."""

    def __init__(self, declared: Collection[str]) -> None:
        self._taken = (
            {name for name in declared if _ACCEPTED.fullmatch(name)} if declared else set()
        )
        self._upstream: dict[str, str] = (
            dict(zip(self._taken, self._taken, strict=True)) if self._taken else {}
        )
        self.changed: tuple[tuple[str, str], ...] = ()
        """(name upstream, name the client knows) where they differ."""

    def upstream(self, name: str) -> str:
        """The name the backend gets. A generated one depends on the name alone, unless it is
        taken."""
        known = self._upstream.get(name)
        if known is None:
            known = name
            if not _ACCEPTED.fullmatch(name):
                known = self._made_up(name)
                self.changed = (*self.changed, (known, name))
            self._upstream[name] = known
            self._taken.add(known)
        return known

    def _made_up(self, name: str) -> str:
        head = _ODD.sub("_", name)[:_HEAD_CHARS]
        salt = 0
        while True:
            digest = hashlib.sha256(f"{salt}:{name}".encode("utf-8", "surrogatepass")).hexdigest()[
                :8
            ]
            candidate = f"{head}_{digest}"
            if candidate not in self._taken:
                return candidate
            salt += 1
