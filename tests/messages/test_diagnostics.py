"""Names once, in order, and never a line break of a client's in a header."""

from __future__ import annotations

import pytest

from ferrule.messages.diagnostics import NAMES_MAX, Losses


def test_each_once_and_in_order() -> None:
    losses = Losses()
    for name in ("top_p", "stop_sequences", "top_p", "output_config.format"):
        losses.drop(name)
        losses.warn(name, "why")
    assert losses.dropped == ("top_p", "stop_sequences", "output_config.format")
    assert losses.warnings == ("top_p: why", "stop_sequences: why", "output_config.format: why")


@pytest.mark.parametrize("name", ["", "a b", "a,b", "a\r\nset-cookie: x", "x" * 65, "é"])
def test_names_that_could_hurt_a_header(name: str) -> None:
    losses = Losses()
    losses.drop(name)
    losses.warn(name, "why")
    assert (losses.dropped, losses.warnings) == (("unknown",), ("unknown: why",))


def test_a_request_full_of_unknown_names_makes_no_large_header() -> None:
    losses = Losses()
    for number in range(1000):
        losses.drop(f"name_{number}")
        losses.warn(f"name_{number}", "why")
    assert len(losses.dropped) == len(losses.warnings) == NAMES_MAX
