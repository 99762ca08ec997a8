"""Rules that every setting keeps."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from ferrule.config import settings
from ferrule.config.settings import Config, Seconds

SECTIONS = [
    section
    for _, section in inspect.getmembers(settings, inspect.isclass)
    if issubclass(section, msgspec.Struct) and section.__module__ == settings.__name__
]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_a_duration_has_its_unit_in_its_name(section: type[msgspec.Struct]) -> None:
    for name, kind in inspect.get_annotations(section, eval_str=True).items():
        if Seconds in (kind, *getattr(kind, "__args__", ())):
            assert name.endswith("_s"), f"{section.__name__}.{name}"


def test_equal_settings_are_equal_and_frozen() -> None:
    assert Config(pools={}) == Config(pools={})
    with pytest.raises(AttributeError):
        Config(pools={}).workers = 2  # type: ignore[misc]
