"""The operator's page as the proxy serves it: /status fills every part, and a dead backend shows
within two seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.doubles.backend import ScriptedBackend
from tests.doubles.proxy import Ferrule, config_for

playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install playwright"
)

PROBES = {"interval_s": 0.3, "timeout_s": 0.3, "fall": 1}


def test_the_page_shows_the_proxy_as_it_is(
    new_page: Callable[[], Any],
    new_proxy: Callable[..., Ferrule],
    new_backend: Callable[..., ScriptedBackend],
) -> None:
    stays, dies = new_backend(), new_backend()
    proxy = new_proxy(config_for(stays.url, dies.url, pool={"health": PROBES}, workers=2))
    expect, page = playwright.expect, new_page()
    page.goto(f"http://{proxy.admin}/")

    expect(page.locator("#state")).to_have_text("ready")
    expect(page.locator("[data-backend]")).to_have_count(2)
    expect(page.locator("#workers tbody tr")).to_have_count(2)
    expect(page.locator('[data-pool="p"] caption')).to_contain_text("2 of 2 healthy")
    for backend in (stays, dies):
        expect(page.locator("[data-backend]", has_text=backend.url)).to_contain_text("healthy")

    for number in range(4):
        proxy.stream(messages=[{"role": "user", "content": f"session {number}"}])
    for name, text in (
        ("Requests", "4 in all"),
        ("Output tokens", "in all"),
        ("Time to first token", "median"),
    ):
        expect(page.locator(f'[data-tile="{name}"] .note')).to_contain_text(text)
    expect(page.locator('#routing [data-key="home"] .value')).to_have_text("4")
    expect(page.locator('#ended [data-key="complete"] .value')).to_have_text("4")

    dies.stop()
    expect(page.locator("[data-backend]", has_text=dies.url)).to_contain_text("down", timeout=2000)
    expect(page.locator("[data-backend]", has_text=stays.url)).to_contain_text("healthy")
    expect(page.locator("[data-change]").first).to_contain_text("healthy → down")
