"""The record of one request: the source of its log line, its counts and its span."""

from __future__ import annotations

from time import time

from ferrule._core import Outcome
from ferrule.routing.selection import Choice

OTHER = "other"
"""The label for names that clients made up: labels are bounded."""


class RequestRecord:
    """Durations in seconds; `…_at` on the monotonic clock, 0.0 for never. Tokens as the backend
    reported them. Never holds text of a prompt or a key."""

    __slots__ = (
        "backend", "branch", "cache_read_tokens", "connected_s", "dropped", "end_reason",
        "ended_at", "error", "first_event_at", "has_outcome", "has_usage", "input_tokens",
        "label", "model", "output_tokens", "pool", "queued_s", "received_at", "received_unix_s",
        "request_id", "route", "sent_at", "status", "stop_reason", "stream", "tenant",
        "trace_headers",
    )  # fmt: skip

    def __init__(self, request_id: str, route: str, received_at: float) -> None:
        self.received_unix_s = time()
        self.request_id = request_id
        self.route = route
        self.received_at = received_at
        self.status = 0
        self.stream = False
        self.tenant: str | None = None
        self.model: str | None = None
        self.label = OTHER
        self.pool: str | None = None
        self.backend: str | None = None
        self.branch: str | None = None
        self.ended_at = 0.0
        self.queued_s = 0.0
        self.connected_s = 0.0
        self.sent_at = 0.0
        self.first_event_at = 0.0
        self.input_tokens = 0
        self.output_tokens = 0
        self.cache_read_tokens = 0
        self.has_outcome = False
        self.has_usage = False
        self.stop_reason: str | None = None
        self.end_reason: str | None = None
        self.error: str | None = None
        self.dropped: tuple[str, ...] = ()
        self.trace_headers = ""
        """The trace context to send to the backend, as header lines; empty for none."""

    def set_choice(self, choice: Choice) -> None:
        self.backend = choice.backend.name
        self.branch = choice.branch

    def set_outcome(self, outcome: Outcome) -> None:
        self.input_tokens = outcome.input_tokens
        self.output_tokens = outcome.output_tokens
        self.cache_read_tokens = outcome.cache_read_tokens
        self.stop_reason = outcome.stop_reason
        self.has_outcome = True
        self.has_usage = outcome.has_usage

    def set_usage(self, input_tokens: int, cache_read_tokens: int, output_tokens: int) -> None:
        """The usage that a backend reported in a response that was not streamed."""
        self.input_tokens = input_tokens
        self.cache_read_tokens = cache_read_tokens
        self.output_tokens = output_tokens
        self.has_outcome = self.has_usage = True

    def tokens(self, estimated_input: int) -> int:
        """Input plus output, as a key's limit counts them. A response that was cut short has no
        usage: then the input is the estimate, and the output the deltas that arrived."""
        if self.has_usage or not self.output_tokens:
            return self.input_tokens + self.cache_read_tokens + self.output_tokens
        return estimated_input + self.output_tokens
