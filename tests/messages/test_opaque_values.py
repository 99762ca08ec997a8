"""What was handed out comes back as it was; what others made is left alone."""

from __future__ import annotations

import base64

import pytest

from ferrule.messages.opaque_values import engine_id, reasoning_of


def packed(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize("prefix", ["ferrule1.", "pooled1."])
@pytest.mark.parametrize("reasoning", ["t", "two words", "北🌍é\n\n  ", "x" * 10_000, '"quoted"\\'])
def test_e05_our_signatures_give_the_exact_reasoning_back(prefix: str, reasoning: str) -> None:
    assert reasoning_of(prefix + packed(reasoning)) == reasoning


@pytest.mark.parametrize(
    "signature",
    [
        None,
        "",
        "s",
        "c2lnbmF0dXJl",
        "ferrule1.***",
        "ferrule1.a",
        "ferrule1.a+b/",
        "ferrule1.gICA",
        "ferrule2." + packed("t"),
        "é" * 9,
    ],
)
def test_e05_foreign_and_broken_signatures_are_never_an_error(signature: str | None) -> None:
    assert reasoning_of(signature) is None


@pytest.mark.parametrize(
    "original", ["call_0", "functions.Bash:0", "a b", "x", "chatcmpl-tool-1/2+3"]
)
def test_a_wrapped_id_gives_the_engine_its_own_back(original: str) -> None:
    assert engine_id(f"toolu_{'0123456789abcdef01'}_{packed(original)}") == original


@pytest.mark.parametrize(
    "tool_id",
    [
        "",
        "call_1",
        "toolu_01A09q90qw90lq917835lq9",
        "toolu_0123456789abcdef01",
        "toolu_0123456789abcdef01_",
        "toolu_0123456789ABCDEF01_" + packed("call_0"),
        "toolu_0123456789abcdef01_a",
        "toolu_0123456789abcdef01_***",
        "toolu_0123456789abcdef01_" + packed("é"),
        "toolu_0123456789abcdef01_" + packed("a\nb"),
        "x" + "toolu_0123456789abcdef01_" + packed("call_0"),
    ],
)
def test_any_other_id_is_left_alone(tool_id: str) -> None:
    assert engine_id(tool_id) == tool_id
