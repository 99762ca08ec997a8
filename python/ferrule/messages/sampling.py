"""Sampling parameters within the ranges that a dialect promises: temperature, top_p, top_k, stop
sequences, max_tokens."""

from __future__ import annotations

import msgspec

from ferrule.dialects import Dialect
from ferrule.errors import InvalidRequest
from ferrule.messages.diagnostics import Diagnostics
from ferrule.messages.schema import MessagesRequest

# 0 is legal in the Messages API and refused by vLLM; this picks the likeliest token just as well
_TOP_P_MIN = 1e-6


class Sampling(msgspec.Struct, frozen=True):
    temperature: float | None
    top_p: float | None
    top_k: int | None
    stop: list[str] | None


_UNASKED = Sampling(None, None, None, None)


def check_sampling(
    request: MessagesRequest, dialect: Dialect, diagnostics: Diagnostics
) -> Sampling:
    """Raises InvalidRequest for what is out of range; what the dialect does not take is left
    out."""
    temperature = request.temperature
    if (
        temperature is None
        and request.top_p is None
        and request.top_k is None
        and not request.stop_sequences
    ):
        return _UNASKED
    if temperature is not None and not 0 <= temperature <= 1:
        raise InvalidRequest("temperature", "must be from 0 to 1")
    top_k = _top_k(request, dialect, diagnostics)
    if temperature is None and top_k is not None:
        temperature = dialect.temperature_when_only_top_k
    elif temperature is not None and top_k is None:
        top_k = dialect.top_k_when_only_temperature
    return Sampling(
        temperature,
        _top_p(request, dialect, diagnostics),
        top_k,
        _stop(request, dialect, diagnostics),
    )


def check_max_tokens(request: MessagesRequest, dialect: Dialect, room_tokens: int | None) -> int:
    """The limit to send. `room_tokens`: what the context window leaves, None when unknown. 0 stays
    0: nothing is wanted back."""
    if request.max_tokens is None:
        raise InvalidRequest("max_tokens", "is required")
    if request.max_tokens < 0:
        raise InvalidRequest("max_tokens", "must be an integer of at least 0")
    tokens = request.max_tokens
    if dialect.max_tokens_cap is not None:
        tokens = min(tokens, dialect.max_tokens_cap)
    if room_tokens is not None:
        # whether the prompt alone fits is for the backend to say: its count is exact
        tokens = min(tokens, max(1, room_tokens))
    return tokens


def _top_k(request: MessagesRequest, dialect: Dialect, diagnostics: Diagnostics) -> int | None:
    top_k = request.top_k
    if top_k is None:
        return None
    if not dialect.accepts("top_k"):
        diagnostics.drop("top_k")
        return None
    if top_k < dialect.top_k_min:
        raise InvalidRequest("top_k", f"must be an integer of at least {dialect.top_k_min}")
    if top_k == 0:
        return None  # "off", which engines spell differently; absent means it everywhere
    return top_k if dialect.top_k_cap is None else min(top_k, dialect.top_k_cap)


def _top_p(request: MessagesRequest, dialect: Dialect, diagnostics: Diagnostics) -> float | None:
    top_p = request.top_p
    if top_p is None:
        return None
    if not dialect.accepts("top_p"):
        diagnostics.drop("top_p")
        return None
    if not 0 <= top_p <= 1:
        raise InvalidRequest("top_p", "must be from 0 to 1")
    return max(top_p, _TOP_P_MIN)


def _stop(request: MessagesRequest, dialect: Dialect, diagnostics: Diagnostics) -> list[str] | None:
    sequences = request.stop_sequences
    if not sequences:
        return None
    if not dialect.accepts("stop_sequences"):
        diagnostics.drop("stop_sequences")
        return None
    if dialect.stop_sequences_max is not None and len(sequences) > dialect.stop_sequences_max:
        raise InvalidRequest(
            "stop_sequences", f"must hold at most {dialect.stop_sequences_max} sequences"
        )
    longest = dialect.stop_sequence_chars_max
    for index, sequence in enumerate(sequences):
        if longest is not None and len(sequence) > longest:
            raise InvalidRequest(
                f"stop_sequences.{index}", f"must be at most {longest} characters long"
            )
    return [sequence for sequence in sequences if sequence.strip()] or None
