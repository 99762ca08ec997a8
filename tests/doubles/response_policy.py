"""A model's response policy for tests that are not about one setting of it."""

from __future__ import annotations

from ferrule._core import ResponsePolicy


def response_policy(**settings: object) -> ResponsePolicy:
    """`settings`: those that differ from the Messages API's own behaviour."""
    defaults: dict[str, object] = {
        "signature_prefix": "ferrule1.",
        "stop_reasons": None,
        "report_stop_sequence": True,
        "close_block_on_error": True,
        "split_think": False,
        "context_window": None,
    }
    return ResponsePolicy(**{**defaults, **settings})  # type: ignore[arg-type]
