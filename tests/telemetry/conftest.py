"""A real Chromium, and pages in it that may not complain."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """For modules without coroutines: its driver holds this thread's event loop as long as the
    module runs."""
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
    """Makes pages; whatever one complains of in its console, or asks of another host than it came
    from, fails the test."""
    pages = []

    def make() -> Any:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.complaints, page.requested = [], []
        page.on(
            "console",
            lambda message: (
                page.complaints.append(message.text)
                if message.type in ("error", "warning")
                else None
            ),
        )
        page.on("pageerror", lambda problem: page.complaints.append(str(problem)))
        page.on("request", lambda request: page.requested.append(request.url))
        pages.append(page)
        return page

    yield make
    for page in pages:
        page.close()
    for page in pages:
        assert page.complaints == []
        own = page.requested[0].rstrip("/")
        assert {url for url in page.requested if not url.startswith("data:")} <= {
            f"{own}/",
            f"{own}/status",
        }
