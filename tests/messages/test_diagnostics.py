"""Names once, in order, and never a line break of a client's in a header."""

from __future__ import annotations

import pytest

from ferrule.messages.diagnostics import NAMES_MAX, Diagnostics


def test_each_once_and_in_order() -> None:
    diagnostics = Diagnostics()
    for name in ("top_p", "stop_sequences", "top_p", "output_config.format"):
        diagnostics.drop(name)
        diagnostics.warn(name, "why")
    assert diagnostics.dropped == ("top_p", "stop_sequences", "output_config.format")
    assert diagnostics.warnings == (
        "top_p: why",
        "stop_sequences: why",
        "output_config.format: why",
    )


@pytest.mark.parametrize("name", ["", "a b", "a,b", "a\r\nset-cookie: x", "x" * 65, "é"])
def test_names_that_could_hurt_a_header(name: str) -> None:
    diagnostics = Diagnostics()
    diagnostics.drop(name)
    diagnostics.warn(name, "why")
    assert (diagnostics.dropped, diagnostics.warnings) == (("unknown",), ("unknown: why",))


def test_a_request_full_of_unknown_names_makes_no_large_header() -> None:
    diagnostics = Diagnostics()
    for number in range(1000):
        diagnostics.drop(f"name_{number}")
        diagnostics.warn(f"name_{number}", "why")
    assert len(diagnostics.dropped) == len(diagnostics.warnings) == NAMES_MAX
