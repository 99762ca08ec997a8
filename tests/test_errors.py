"""The one table from status to error type, and the two shapes of an envelope."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from ferrule import messages
from ferrule.chat import passthrough as chat
from ferrule.errors import Failure, InvalidRequest, envelope, invalid_json


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
        (418, "invalid_request_error"),
        (599, "api_error"),
    ],
)
def test_kinds(status: int, kind: str) -> None:
    assert Failure(status, "x").kind == kind


def test_a_kind_that_is_given_wins() -> None:
    assert Failure(400, "x", kind="billing_error").kind == "billing_error"


@pytest.mark.parametrize(
    ("status", "kind"), [(429, "billing_error"), (529, "overloaded_error"), (500, "api_error")]
)
def test_another_status_implies_another_kind_and_changes_nothing_else(
    status: int, kind: str
) -> None:
    failure = Failure(429, "x", kind="billing_error", retry_after_s=3, is_admission=True)
    failure.change_status(status)
    assert (failure.status, failure.kind) == (status, kind)
    assert (failure.message, failure.retry_after_s, failure.is_admission) == ("x", 3, True)


def test_invalid_requests_name_their_path() -> None:
    failure = InvalidRequest("messages.0.role", "must be a role")
    assert (failure.status, failure.message, failure.path) == (
        400,
        "messages.0.role: must be a role",
        "messages.0.role",
    )
    assert InvalidRequest("", "must be JSON").message == "must be JSON"


@pytest.mark.parametrize(
    ("body", "said"),
    [(b"", "the body is empty"), (b" \n", "the body is empty"), (b"{", "it was cut")],
)
@pytest.mark.parametrize("decode", [messages.decode, chat.decode])
def test_what_is_no_json(decode: Callable[[bytes], object], body: bytes, said: str) -> None:
    assert invalid_json(body, ValueError("it was cut")).message.endswith(f": {said}")
    with pytest.raises(InvalidRequest) as raised:
        decode(body)
    assert raised.value.message.endswith("the body is empty") is not body.startswith(b"{")


def test_envelopes() -> None:
    failure = Failure(404, 'no "m"')
    plain = {
        "type": "error",
        "error": {"type": "not_found_error", "message": 'no "m"'},
        "request_id": "req_1",
    }
    assert json.loads(envelope(failure, "req_1")) == plain
    assert json.loads(envelope(failure, "req_1", wrapped=True)) == {"detail": plain}
