"""The operator's page in a real Chromium, fed by a scripted /status: what it shows and how soon,
keyboard, themes, contrast and narrow screens.

Tests of rates control the browser's clock. test_page_live.py shows the proxy's own /status.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install playwright"
)

PAGE = Path(__file__).parents[2] / "python/ferrule/telemetry/page.html"
TTFT_EDGES_S = [0.1, 0.2, 0.4, 0.8]


def backend(name: str, **changes: Any) -> dict[str, Any]:
    base = {
        "name": name,
        "address": f"http://10.0.0.{len(name)}:8000",
        "healthy": True,
        "state": "up",
        "breaker": "closed",
    }
    return {
        **base,
        "inflight": 16,
        "slots": 64,
        "sessions": 40,
        "weight": 1.0,
        "draining": False,
        **changes,
    }


STATUS: dict[str, Any] = {
    "version": "0.1.0",
    "uptime_s": 93784.0,
    "state": "ready",
    "reason": None,
    "workers": [{"pid": 4711, "streams_active": 30}, {"pid": 4712, "streams_active": 18}],
    "pools": [
        {
            "name": "rocm",
            "discovery_age_s": 0.4,
            "queue_depth": 3,
            "backends": [
                backend("alpha"),
                backend("bravo", inflight=64, sessions=7, weight=2.0),
                backend(
                    "charlie",
                    healthy=False,
                    state="down",
                    breaker="open",
                    inflight=0,
                    sessions=0,
                    reason="connection refused",
                ),
                backend("delta", draining=True, state="draining", breaker="half_open", inflight=2),
                backend("echo", healthy=False, breaker="open", inflight=0),
                backend("foxtrot", healthy=False, state="unknown", inflight=0),
            ],
        },
        {"name": "cold", "discovery_age_s": 65.0, "queue_depth": 0, "backends": []},
    ],
    "counters": {
        "requests_total": 1000,
        "requests_failed": 10,
        "tokens_input": 50_000,
        "tokens_output": 20_000,
        "tokens_cache_read": 150_000,
        "streams_active": 48,
        "limited": 5,
        "retries": 2,
    },
    "routing": {"home": 800, "spill": 100, "failover": 50, "keyless": 50},
    "streams_ended": {
        "complete": 900,
        "client_gone": 40,
        "backend_error": 10,
        "timeout": 0,
        "drain": 0,
    },
    "latency": {
        "ttft": {"edges_s": TTFT_EDGES_S, "counts": [10, 20, 5, 1, 0]},
        "per_token": {"edges_s": [0.01, 0.025], "counts": [100, 10, 0]},
    },
}

# What one second adds.
GROWTH = {
    "counters": {
        "requests_total": 200,
        "requests_failed": 10,
        "tokens_output": 4200,
        "tokens_input": 1000,
        "tokens_cache_read": 3000,
    },
    "routing": {"home": 150, "spill": 50},
    "streams_ended": {"complete": 190, "client_gone": 10},
}


class Admin:
    """An admin port that serves the page and the current `status`. With `grows`, each request of
    /status adds one second's counts."""

    def __init__(self) -> None:
        self.status = copy.deepcopy(STATUS)
        self.grows = False
        self.answers = True
        admin = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                admin.answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        is_status = request.path == "/status"
        kind, body = (
            ("application/json", json.dumps(self.status).encode())
            if is_status
            else ("text/html", PAGE.read_bytes())
        )
        if is_status and self.grows:
            self.grow()
        code = 200 if self.answers and request.path in ("/", "/status") else 503
        request.send_response(code)
        request.send_header("content-type", kind)
        request.send_header("content-length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def grow(self) -> None:
        for part, growth in GROWTH.items():
            for name, by in growth.items():
                self.status[part][name] += by
        counts = self.status["latency"]["ttft"]["counts"]
        counts[1] += 90
        counts[3] += 10

    def backend(self, name: str) -> dict[str, Any]:
        return next(known for known in self.status["pools"][0]["backends"] if known["name"] == name)


@pytest.fixture
def admin() -> Iterator[Admin]:
    admin = Admin()
    thread = threading.Thread(target=admin.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield admin
    admin.server.shutdown()
    thread.join()
    admin.server.server_close()


@pytest.fixture
def page(new_page: Callable[[], Any]) -> Any:
    """A page that has not been opened yet."""
    return new_page()


def tile(page: Any, name: str) -> Any:
    return page.locator(f'[data-tile="{name}"] .big')


def row(page: Any, name: str) -> Any:
    return page.locator(f'[data-backend="{name}"]')


def open_with_still_clock(page: Any, admin: Admin) -> None:
    """Opens the page with a clock that only `run_seconds` advances."""
    page.clock.install(time=0)
    page.clock.pause_at(60)
    page.goto(admin.url)
    wait_for_snapshots(page, 1)


def run_seconds(page: Any, count: int) -> None:
    """Advances the page's clock; the page polls once a second."""
    have = page.evaluate("snapshots.length")
    for second in range(1, count + 1):
        page.clock.run_for(1000)
        wait_for_snapshots(page, have + second)


def wait_for_snapshots(page: Any, snapshots: int) -> None:
    """Waits until the page has drawn that many snapshots. Polled from here, because the page's own
    timers stand still."""
    while page.evaluate("snapshots.length") < snapshots:
        pass


def test_it_shows_state_pools_and_backends(page: Any, admin: Admin) -> None:
    page.goto(admin.url)
    expect = playwright.expect
    expect(page.locator("#state")).to_have_text("ready")
    expect(page.locator("#about")).to_have_text("0.1.0 · up 1 d 2 h")
    expect(page).to_have_title("ferrule: ready")
    expect(tile(page, "Streams")).to_have_text("48")
    expect(tile(page, "Queue")).to_have_text("3")
    expect(page.locator('[data-pool="rocm"] caption')).to_have_text(
        "rocm 2 of 6 healthy · list confirmed 400 ms ago · 3 in the queue"
    )
    expect(page.locator('[data-pool="cold"]')).to_contain_text("No backend is known.")
    for name, health, breaker, load in (
        ("alpha", "healthy", "closed", "16 of 64"),
        ("bravo", "healthy", "closed", "64 of 64"),
        ("charlie", "down", "open", "0 of 64"),
        ("delta", "draining", "half open", "2 of 64"),
        ("echo", "ejected", "open", "0 of 64"),
        ("foxtrot", "not known yet", "closed", "0 of 64"),
    ):
        for text in (health, breaker, load):
            expect(row(page, name)).to_contain_text(text)
    expect(row(page, "charlie").locator('[data-name="Health"] .soft')).to_have_text(
        "connection refused"
    )
    expect(row(page, "bravo").locator('[data-name="Sessions"]')).to_have_text("7")
    expect(page.locator("#workers")).to_contain_text("4711")


def test_rates_come_from_successive_snapshots(page: Any, admin: Admin) -> None:
    admin.grows = True
    open_with_still_clock(page, admin)
    run_seconds(page, 7)
    expect = playwright.expect
    expect(tile(page, "Requests")).to_have_text("200/s")
    expect(tile(page, "Failed (5xx)")).to_have_text("5.0 %")
    expect(tile(page, "Output tokens")).to_have_text("4.2K/s")
    expect(page.locator('[data-tile="Prompt tokens"] .note')).to_have_text("75 % from cache")
    # 90 of 100 are between 0.1 and 0.2 s: the median is 0.1 + 0.1 * 50 / 90. The 95th of 100 is
    # halfway between 0.4 and 0.8.
    expect(tile(page, "Time to first token")).to_have_text("156 ms")
    expect(page.locator('[data-tile="Time to first token"] .note')).to_have_text(
        "median; p95 600 ms"
    )
    expect(tile(page, "Time per token")).to_have_text("–")
    expect(page.locator('#routing [data-key="spill"]')).to_contain_text("25 %")
    expect(page.locator('#ended [data-key="complete"]')).to_contain_text("95 %")
    assert (
        page.locator('[data-tile="Requests"] .spark').first.get_attribute("points").count(",") >= 6
    )


def test_a_restarted_proxy_shows_no_negative_rate(page: Any, admin: Admin) -> None:
    admin.grows = True
    open_with_still_clock(page, admin)
    run_seconds(page, 3)
    admin.status["counters"] = dict.fromkeys(admin.status["counters"], 0)
    run_seconds(page, 1)
    playwright.expect(tile(page, "Requests")).to_have_text("–")


def test_a_backend_going_down_shows_within_two_seconds(page: Any, admin: Admin) -> None:
    page.goto(admin.url)
    playwright.expect(row(page, "alpha")).to_contain_text("healthy")
    admin.backend("alpha").update(healthy=False, state="down", breaker="open")
    playwright.expect(row(page, "alpha")).to_contain_text("down", timeout=2000)
    playwright.expect(page.locator('[data-change="rocm / alpha"]')).to_contain_text(
        "healthy → down"
    )
    admin.status["pools"][0]["backends"] = [
        known for known in admin.status["pools"][0]["backends"] if known["name"] != "alpha"
    ]
    playwright.expect(row(page, "alpha")).to_have_count(0, timeout=2000)


def test_a_silent_proxy_raises_an_alarm_until_it_answers(page: Any, admin: Admin) -> None:
    page.goto(admin.url)
    playwright.expect(page.locator("#state")).to_have_text("ready")
    admin.answers = False
    playwright.expect(page.locator("#alarm")).to_contain_text("has not answered since")
    admin.answers = True
    playwright.expect(page.locator("#alarm")).to_be_hidden()
    refused = [complaint for complaint in page.complaints if "503" in complaint]
    assert refused and refused == page.complaints
    page.complaints.clear()


def test_draining_and_not_ready_are_shown_with_their_reason(page: Any, admin: Admin) -> None:
    admin.status.update(state="not_ready", reason="no healthy backend")
    page.goto(admin.url)
    playwright.expect(page.locator("#state")).to_have_text("not ready")
    playwright.expect(page.locator("#about")).to_contain_text("no healthy backend")
    admin.status.update(
        state="draining",
        reason=None,
        config={"ok": False, "error": "f.yaml: listne", "loaded_at": ""},
    )
    playwright.expect(page.locator("#state")).to_have_text("draining", timeout=2000)
    playwright.expect(page.locator("#about")).to_contain_text(
        "the new configuration is refused: f.yaml: listne"
    )


def test_the_keyboard_reaches_everything(page: Any, admin: Admin) -> None:
    page.goto(admin.url)
    playwright.expect(row(page, "alpha")).to_be_visible()
    page.keyboard.press("Tab")
    playwright.expect(page.locator("#pause")).to_be_focused()
    page.keyboard.press("Tab")
    playwright.expect(page.locator("#theme")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    playwright.expect(page.locator('[data-pool="rocm"] th').nth(1)).to_have_attribute(
        "aria-sort", "ascending"
    )
    assert (
        page.locator('[data-pool="rocm"] tbody tr').first.get_attribute("data-backend") == "charlie"
    )
    page.keyboard.press("Enter")
    playwright.expect(page.locator('[data-pool="rocm"] th').nth(1)).to_have_attribute(
        "aria-sort", "descending"
    )
    page.keyboard.press("p")
    playwright.expect(page.locator("#pause")).to_have_attribute("aria-pressed", "true")
    admin.status["counters"]["streams_active"] = 99
    with page.expect_response("**/status"):
        pass
    playwright.expect(tile(page, "Streams")).to_have_text("48")
    page.keyboard.press("p")
    playwright.expect(tile(page, "Streams")).to_have_text("99", timeout=2000)


def test_the_theme_follows_the_system_and_then_the_reader(page: Any, admin: Admin) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto(admin.url)
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.keyboard.press("t")
    assert page.locator("html").get_attribute("data-theme") == "light"
    page.reload()
    assert page.locator("html").get_attribute("data-theme") == "light"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_colour_has_enough_contrast(page: Any, admin: Admin, theme: str) -> None:
    page.emulate_media(color_scheme=theme)
    page.goto(admin.url)
    style = "getComputedStyle(document.documentElement)"
    for ink in ("ink", "soft", "good", "warn", "bad"):
        for ground in ("ground", "card"):
            colours = [
                page.evaluate(f"{style}.getPropertyValue('--{name}').trim()")
                for name in (ink, ground)
            ]
            assert contrast(*colours) >= 4.5, (theme, ink, ground)


def contrast(one: str, other: str) -> float:
    """WCAG 2: the ratio of two colours' relative luminance."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("width", [320, 390, 768])
def test_nothing_runs_off_a_narrow_screen(page: Any, admin: Admin, width: int) -> None:
    admin.backend("alpha")["address"] = (
        "http://vllm-deepseek-v4-flash-0.vllm.inference.svc.cluster.local:8000"
    )
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(admin.url)
    playwright.expect(row(page, "alpha")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_names_are_text_never_markup(page: Any, admin: Admin) -> None:
    name = "<img src=x onerror=alert(1)>"
    admin.backend("alpha").update(name=name, address="<script>alert(2)</script>")
    page.goto(admin.url)
    playwright.expect(page.locator("tbody th").first).to_contain_text(name)
    assert page.locator("img, tbody script").count() == 0


def test_a_proxy_without_a_worker_is_shown_as_such(page: Any, admin: Admin) -> None:
    nothing = {part: {} for part in ("counters", "routing", "streams_ended", "latency")}
    page.goto(admin.url)
    playwright.expect(row(page, "alpha")).to_be_visible()
    admin.status.update(
        state="not_ready", reason="no worker is running", workers=[], pools=[], **nothing
    )
    playwright.expect(page.locator("#about")).to_contain_text("no worker is running", timeout=2000)
    playwright.expect(page.locator("[data-backend]")).to_have_count(0)
    playwright.expect(tile(page, "Streams")).to_have_text("–")
