"""Patterns with `*`."""

from __future__ import annotations

import pytest

from ferrule.config.wildcard import matches


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        ("*", "", True),
        ("*", "a\nb", True),
        ("claude-haiku-*", "claude-haiku-4-5-20251001", True),
        ("claude-haiku-*", "claude-haiku-", True),
        ("claude-haiku-*", "claude-haiku", False),
        ("claude-haiku-*", "my-claude-haiku-4", False),
        ("*-haiku-*", "claude-haiku-4", True),
        ("a**b", "a-b", True),
        ("a*b*c", "a-c-b", False),
        ("a", "a", True),
        ("a", "A", False),
        ("a.c", "abc", False),
        ("a?", "ab", False),
        ("[ab]", "a", False),
        ("*" * 40 + "x", "y" * 4000, False),
    ],
)
def test_only_the_star_is_special(pattern: str, name: str, is_match: bool) -> None:
    assert matches(pattern, name) is is_match
