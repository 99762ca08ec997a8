"""A real Chromium, and pages that must not log errors."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Not for modules with coroutines: its driver occupies this thread's event loop."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright: pip install playwright"
    )
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Debian's package chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def new_page(browser: Any) -> Iterator[Callable[[], Any]]:
    """Makes pages. The test fails if one logs an error or warning, or sends a request to another
    host."""
    pages = []

    def make() -> Any:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.complaints, page.requests = [], []
        page.on(
            "console",
            lambda message: (
                page.complaints.append(message.text)
                if message.type in ("error", "warning")
                else None
            ),
        )
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda request: page.requests.append(request.url))
        pages.append(page)
        return page

    yield make
    for page in pages:
        page.close()
    for page in pages:
        assert page.complaints == []
        origin = page.requests[0].rstrip("/")
        assert {url for url in page.requests if not url.startswith("data:")} <= {
            f"{origin}/",
            f"{origin}/status",
        }
