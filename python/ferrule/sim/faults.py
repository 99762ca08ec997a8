"""What the simulated server does wrong on purpose, by name. `ferrule sim --fault NAME`, or
`[[fault:NAME]]` in a prompt when scripted.

`NAME:N` gives the fault its number: bytes, tokens or seconds, as the table says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

FAULTS: Mapping[str, str] = {
    "refuse": "the port is not opened; asked for in a prompt: reset before any byte",
    "hang": "the request is read and never answered",
    "503": "HTTP 503, the engine is busy",
    "500-draining": "HTTP 500, as vLLM answers new requests while it drains",
    "error-first": "HTTP 200, and an error object as the first event",
    "error-mid": "an error object after N tokens (4)",
    "abort": "finish_reason abort after N tokens (4), usage and [DONE]: what SIGTERM does to vLLM",
    "no-finish": "the body ends after N tokens (4) with neither finish_reason nor [DONE]",
    "garbage": "after N tokens (4) a data line that is not JSON",
    "reset-after-k": "the connection is reset after N bytes of the body (1000)",
    "cut-mid-chunk": "the connection is closed in the middle of an HTTP chunk, after N tokens (4)",
    "slow-bytes": "one byte per write",
    "silent-then-stream": "head and role chunk, then N seconds (45) of silence, then the answer",
    "keepalive-only": "head, then a comment every second and nothing else",
    "json-instead": "a whole reply as application/json although a stream was asked for",
    "empty-200": "HTTP 200 with an empty body",
    "done-only": "a stream of nothing but [DONE]",
}

_DEFAULT_NUMBERS: Mapping[str, float] = {"reset-after-k": 1000, "silent-then-stream": 45}
_TOKENS = 4
_MARK = re.compile(r"\[\[fault:([a-z0-9-]+(?::[0-9.]+)?)\]\]")


class Fault(msgspec.Struct, frozen=True):
    name: str
    number: float


def parse(text: str | None) -> Fault | None:
    """`NAME` or `NAME:N`; raises ValueError for a name that is not in the table."""
    if text is None:
        return None
    name, _, number = text.partition(":")
    if name not in FAULTS:
        raise ValueError(f"no fault is called {name!r}; there are {', '.join(FAULTS)}")
    return Fault(name, float(number) if number else _DEFAULT_NUMBERS.get(name, _TOKENS))


def asked_in(prompt: str) -> Fault | None:
    found = _MARK.search(prompt)
    return parse(found[1]) if found else None
