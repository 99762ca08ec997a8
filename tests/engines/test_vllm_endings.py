"""How streams of a real vLLM end when something dies or drains. Runs last among the vLLM tests,
because it ends the engines."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from tests.doubles.backend import wait_until
from tests.doubles.events import assert_ends_with_error, assert_stream_invariant, read_events
from tests.doubles.proxy import Ferrule
from tests.engines.conftest import vllm_config
from tests.engines.servers import Vllm

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
NAME = "vLLM"
SLOW = {
    "model": "tiny",
    "max_tokens": 400,
    "messages": [{"role": "user", "content": "[[script:endless]] [[delay:30]]"}],
}
QUICK = {
    "model": "tiny",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "[[script:greeting]]"}],
}


@pytest.mark.cell(NAME, "proxy drain")
def test_proxy_that_drains_lets_streams_end(vllm: Vllm, new_proxy: Callable[..., Ferrule]) -> None:
    proxy = new_proxy(vllm_config(vllm.url))
    with proxy.open_stream(**SLOW) as answer:
        raw = answer.read_until(b"text_delta")
        proxy.signal(signal.SIGTERM)
        raw += answer.read()
    message = assert_stream_invariant(read_events(raw))
    assert message["content"][-1]["text"].endswith("99 100")
    proxy.stop()


@pytest.mark.cell(NAME, "engine kill")
def test_engine_killed_in_mid_stream(
    vllm: Vllm, second_vllm: Vllm, new_proxy: Callable[..., Ferrule]
) -> None:
    proxy = new_proxy(vllm_config(vllm.url, second_vllm.url))
    headers = {"x-claude-code-session-id": session_of(proxy, second_vllm)}
    with proxy.open_stream(headers=headers, **SLOW) as answer:
        raw = answer.read_until(b"text_delta")
        second_vllm.kill_engine()
        raw += answer.read()
    assert_ends_with_error(read_events(raw))
    # the same session goes on at the other backend, before any health check has noticed
    again = proxy.stream(headers=headers, **QUICK)
    assert again.message["stop_reason"] == "end_turn"


def session_of(proxy: Ferrule, server: Vllm) -> str:
    """A session whose home is this server."""
    for number in range(50):
        before = server.metric("vllm:request_success_total")
        proxy.stream(headers={"x-claude-code-session-id": f"s{number}"}, **QUICK)
        if server.metric("vllm:request_success_total") > before:
            return f"s{number}"
    raise AssertionError("no session of fifty went to this backend")


@pytest.mark.cell(NAME, "engine drain")
def test_engine_that_is_terminated_ends_the_stream_with_an_error(
    vllm: Vllm, new_proxy: Callable[..., Ferrule]
) -> None:
    """Its streams end with `finish_reason: abort`, which is no end of a message."""
    proxy = new_proxy(vllm_config(vllm.url))
    with proxy.open_stream(**SLOW) as answer:
        raw = answer.read_until(b"text_delta")
        os.kill(vllm.process.pid, signal.SIGTERM)
        raw += answer.read()
    assert_ends_with_error(read_events(raw))
    wait_until(lambda: proxy.readyz() == 503, 30, "the proxy to see that no backend is left")
    assert proxy.ask(**QUICK).status == 529
