"""Sampling parameters at the edges of their ranges; the rest of them is in the table of
dialects."""

from __future__ import annotations

from typing import Any

import pytest
from tests.messages.requests import ask, policy, refusal, upstream


@pytest.mark.parametrize("temperature", [0, 1, 0.0, 1.0, 0.3])
def test_temperatures_within_the_range(temperature: float) -> None:
    assert upstream(temperature=temperature)["temperature"] == temperature


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"top_p": 1.1}, "top_p: must be from 0 to 1"),
        ({"top_p": -0.1}, "top_p: must be from 0 to 1"),
        ({"top_k": -1}, "top_k: must be an integer of at least 0"),
        ({"max_tokens": -1}, "max_tokens: must be an integer of at least 0"),
        ({"max_tokens": 2**31}, "max_tokens: "),
    ],
)
def test_out_of_range(changes: dict[str, Any], says: str) -> None:
    assert refusal(**changes).startswith(says)


def test_a_top_p_of_0_is_one_that_engines_take() -> None:
    assert 0 < upstream(top_p=0)["top_p"] < 1e-5


@pytest.mark.parametrize("sequences", [[" ", "\n\n", ""], [], None])
def test_white_space_stops_nothing(sequences: Any) -> None:
    assert "stop" not in upstream(stop_sequences=sequences)
    assert upstream(stop_sequences=[" ", "END ", ""])["stop"] == ["END "]


def test_what_is_empty_is_no_loss() -> None:
    assert ask(policy("token-factory"), stop_sequences=[], top_p=None, top_k=None).dropped == ()


@pytest.mark.parametrize(
    ("asked", "window", "prompt", "sent"),
    [
        (128_000, 32_768, 1_000, 31_768),
        (100, 32_768, 1_000, 100),
        (128_000, 32_768, None, 32_768),
        (128_000, None, 1_000, 128_000),
        (128_000, 32_768, 32_768, 1),
        (128_000, 32_768, 50_000, 1),
        (1, 32_768, None, 1),
    ],
)
def test_assertion_07_max_tokens_fits_the_window(
    asked: int, window: int | None, prompt: int | None, sent: int
) -> None:
    translation = ask(policy(context_window=window), prompt_tokens=prompt, max_tokens=asked)
    assert translation.max_tokens == sent
    assert b'"max_tokens":%d' % sent in translation.body


def test_max_tokens_of_0_wants_nothing_back() -> None:
    translation = ask(max_tokens=0)
    assert (translation.max_tokens, translation.discard_output) == (1, True)
    assert b'"max_tokens":1' in translation.body
    assert not ask(max_tokens=1).discard_output
