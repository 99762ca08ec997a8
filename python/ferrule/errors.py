"""Failures, and their body for the client.

Code that meets a failure raises `Failure`; `envelope` makes the body of the response. An error
event inside a stream is written in Rust (`rust/core/src/error.rs`). A message never holds a
backend's address, a key or part of a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

# status → error.type, as the Messages API documents them; 529 and 408 as its servers send them
KINDS: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    411: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class RateLimit(msgspec.Struct, frozen=True):
    """One limit of a key as the client is told of it. `resets_at`: Unix seconds at which all of it
    is available again."""

    name: str
    limit: int
    remaining: int
    resets_at: int


class Failure(Exception):
    """Ends a request with a response other than 200.

    `status`: HTTP status; `kind`: `error.type`, by default what the status implies;
    `is_admission`: refused before the gateway proper (bad key, limits), which some dialects wrap in
    `detail`. The rest becomes headers: see `http.response.failure_headers`.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str | None = None,
        retry_after_s: int | None = None,
        should_retry: bool | None = None,
        rate_limits: tuple[RateLimit, ...] = (),
        allow: tuple[str, ...] = (),
        closes_connection: bool = False,
        is_admission: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind or _kind_of(status)
        self.retry_after_s = retry_after_s
        self.should_retry = should_retry
        self.rate_limits = rate_limits
        self.allow = allow
        self.closes_connection = closes_connection
        self.is_admission = is_admission

    def change_status(self, status: int) -> None:
        """Gives it another status, and the kind that this implies."""
        if status != self.status:
            self.status, self.kind = status, _kind_of(status)


def _kind_of(status: int) -> str:
    return KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")


class InvalidRequest(Failure):
    """400: something in the body is wrong. `path` is where (`messages.3.content.0.type`),
    `expected` what would be right."""

    def __init__(self, path: str, expected: str) -> None:
        super().__init__(400, f"{path}: {expected}" if path else expected)
        self.path = path


def invalid_json(body: bytes, reason: Exception) -> InvalidRequest:
    """`reason`: what the decoder says; of an empty body it would say that it was cut."""
    return InvalidRequest(
        "",
        f"The request body must be a JSON object in UTF-8: "
        f"{reason if body.strip() else 'the body is empty'}",
    )


class _Error(msgspec.Struct):
    type: str
    message: str


class _Envelope(msgspec.Struct, tag="error"):
    error: _Error
    request_id: str


class _Wrapped(msgspec.Struct):
    detail: _Envelope


_encode = msgspec.json.Encoder().encode


def envelope(failure: Failure, request_id: str, *, wrapped: bool = False) -> bytes:
    """The JSON body of an error answer; `wrapped`: inside `detail`, as the Token Factory document
    has it for refusals at the gate."""
    body = _Envelope(_Error(failure.kind, failure.message), request_id)
    return _encode(_Wrapped(body) if wrapped else body)
