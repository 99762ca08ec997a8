"""Problems of a file that an operator wrote: each with its path and what would be right, all
reported at once.

Values never appear in a message where they may be secret; this module does not know which files
there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """One problem. `path` is dotted (`pools.rocm.backends.1`); empty when the fault is the file as
    a whole."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(Exception):
    """A file or a set of flags that cannot be used. `str()` has one line per problem, each with its
    source and path."""

    def __init__(self, problems: Sequence[Problem], source: str = "") -> None:
        self.problems = list(problems)
        self.source = source
        super().__init__(
            "\n".join(f"{source}: {problem}" if source else str(problem) for problem in problems)
        )


class UsageError(ConfigError):
    """As ConfigError, when all problems are of the command line."""


def join(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)
