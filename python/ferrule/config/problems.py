"""Problems in a file that an operator wrote: each with its path and the expected value, all
reported at once.

A message never contains a value that may be secret. Knows nothing of particular files.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """One problem. `path` is dotted (`pools.rocm.backends.1`), empty for the file as a whole."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(Exception):
    """A file or a set of flags is invalid. `str()` has one line per problem, with source and
    path."""

    def __init__(self, problems: Sequence[Problem], source: str = "") -> None:
        self.problems = list(problems)
        self.source = source
        super().__init__(
            "\n".join(f"{source}: {problem}" if source else str(problem) for problem in problems)
        )


class UsageError(ConfigError):
    """A ConfigError whose problems all come from the command line."""


def join_path(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)
