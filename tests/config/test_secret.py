"""Secrets are not shown."""

from __future__ import annotations

import pytest

from ferrule.config.secret import Secret, redact


def test_a_secret_is_shown_by_reveal_alone() -> None:
    secret = Secret("canary")
    assert "canary" not in f"{secret} {secret!r} {[secret]}"
    assert secret.reveal() == "canary"
    assert secret == Secret("canary") != Secret("other")


@pytest.mark.parametrize(
    ("url", "redacted"),
    [
        ("http://u:p@host:8000/x?y=1", "http://***@host:8000/x?y=1"),
        ("http://u@host", "http://***@host"),
        ("redis://:p%40ss@host:6379/0", "redis://***@host:6379/0"),
        ("http://u:p@ss@host", "http://***@host"),
        ("http://host/a@b", "http://host/a@b"),
        ("http://host", "http://host"),
        ("u:p@host", "***@host"),
        ("http://u:p@[host", "***@[host"),
        ("no url", "no url"),
    ],
)
def test_p05_urls_without_user_and_password(url: str, redacted: str) -> None:
    assert redact(url) == redacted
