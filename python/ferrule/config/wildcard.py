"""Matches names against patterns with `*`, as in model aliases and the models of a key. Only `*` is
special, and case matters."""

from __future__ import annotations

import re
from functools import lru_cache


def matches(pattern: str, name: str) -> bool:
    if pattern in ("*", name):
        return True
    return "*" in pattern and _compile(pattern).fullmatch(name) is not None


@lru_cache(maxsize=1024)
def _compile(pattern: str) -> re.Pattern[str]:
    literals = [re.escape(literal) for literal in re.split(r"\*+", pattern)]
    return re.compile(".*".join(literals), re.DOTALL)
