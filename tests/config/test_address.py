"""Addresses and backend URLs: what is accepted, how they are normalised, and that no password is
shown."""

from __future__ import annotations

import base64
import errno
import socket

import pytest

from ferrule.config.address import (
    Address,
    BackendUrl,
    describe_os_error,
    parse_address,
    parse_backend_url,
)
from ferrule.config.secret import Secret


@pytest.mark.parametrize(
    ("text", "address", "is_loopback"),
    [
        ("127.0.0.1:8080", Address("127.0.0.1", 8080), True),
        ("127.9.9.9:1", Address("127.9.9.9", 1), True),
        ("localhost:0", Address("localhost", 0), True),
        ("LocalHost:1", Address("localhost", 1), True),
        ("[::1]:8080", Address("::1", 8080), True),
        ("0.0.0.0:8080", Address("0.0.0.0", 8080), False),
        ("[::]:65535", Address("::", 65535), False),
        ("10.0.0.1:80", Address("10.0.0.1", 80), False),
        ("localhost.example.com:80", Address("localhost.example.com", 80), False),
    ],
)
def test_addresses(text: str, address: Address, is_loopback: bool) -> None:
    assert parse_address(text) == address
    assert address.is_loopback is is_loopback
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "value",
    ["", "8080", ":8080", "h:", "h:x", "h:65536", "h:-1", "::1:80", "h:²", 8080, None, ["h:1"]],
)
def test_invalid_addresses(value: object) -> None:
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        parse_address(value)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://10.0.0.11:8000", "http://10.0.0.11:8000"),
        ("HTTP://Host.Example:80/", "http://host.example"),
        ("https://h:443", "https://h"),
        ("https://h:80", "https://h:80"),
        ("http://h:1/openai/", "http://h:1/openai"),
        ("http://h:1/OpenAI//", "http://h:1/OpenAI"),
        ("http://[FE80::1]:8000", "http://[fe80::1]:8000"),
        (" http://h ", "http://h"),
    ],
)
def test_backend_urls_are_normalised(text: str, url: str) -> None:
    assert parse_backend_url(text) == BackendUrl(url)


def test_p05_a_users_password_leaves_the_url() -> None:
    parsed = parse_backend_url("http://us%40er:p%3Ass@host:8000/x")
    assert parsed.url == "http://host:8000/x"
    assert parsed.authorization == Secret("Basic " + base64.b64encode(b"us@er:p:ss").decode())
    assert parse_backend_url("http://user@host").authorization == Secret(
        "Basic " + base64.b64encode(b"user:").decode()
    )
    assert "p:ss" not in repr(parsed) + str(parsed)
    assert "cDpz" not in repr(parsed) + str(parsed)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("host:8000", "expected http://"),
        ("ftp://u:canary@host", "expected http://"),
        ("http://", "expected http://"),
        ("http://u:canary@", "expected http://"),
        ("http://u:canary@h:x", "no URL"),
        ("http://u:canary@h:99999", "no URL"),
        ("http://u:canary@h:0", "expected http://"),
        ("http://u:canary@[::1", "no URL"),
        ("http://u:canary@h?q=1", "no query"),
        ("http://u:canary@h#f", "no query"),
        ("http://u:canary@h/a b", "percent-encode"),
        ("http://u:canary@h/é", "percent-encode"),
        ("http://u:canary@h/v1", "without /v1"),
        ("http://u:canary@h/x/v1/", "without /v1"),
        (7, "expected a URL"),
        (None, "expected a URL"),
    ],
)
def test_invalid_backend_urls_are_reported_without_the_password(
    value: object, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected) as raised:
        parse_backend_url(value)
    assert "canary" not in str(raised.value)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EADDRINUSE, "error while attempting to bind"), "address already in use"),
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            "name or service not known",
        ),
        (OSError("Multiple exceptions"), "multiple exceptions"),
    ],
)
def test_reasons_are_in_the_systems_words(error: OSError, reason: str) -> None:
    assert describe_os_error(error) == reason
