"""Which surface a path belongs to."""

from __future__ import annotations

import pytest

from ferrule.http.routes import UNKNOWN, Route, route_of


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/", "root"),
        ("/?x=1", "root"),
        ("/api", "root"),
        ("/api/", "root"),
        ("/v1/messages", "messages"),
        ("/v1/messages/", "messages"),
        ("/v1/messages?beta=true", "messages"),
        ("/api/v1/messages?beta=true", "messages"),
        ("/v1/messages/count_tokens", "count_tokens"),
        ("/v1/chat/completions", "chat"),
        ("/v1/models", "models"),
        ("/v1/models/", "models"),
        ("/v1/messages/batches", UNKNOWN),
        ("/api/api/v1/messages", UNKNOWN),
        ("/v1/v1/messages", UNKNOWN),
        ("/apiv1/messages", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_routes(path: str, name: str) -> None:
    assert route_of(path).name == name


@pytest.mark.parametrize(
    ("path", "argument"),
    [
        ("/v1/models/m", "m"),
        ("/v1/models/org/m", "org/m"),
        ("/v1/models/org%2Fm?x", "org/m"),
        ("/api/v1/models/a%20b", "a b"),
    ],
)
def test_models_are_named_raw_or_encoded(path: str, argument: str) -> None:
    assert route_of(path) == Route("model", ("GET", "HEAD"), argument)
