"""What the manifests rely on when a pod ends: liveness and the admin port last as long as the last
stream, and readiness ends at once."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from tests.doubles.backend import Hold, ScriptedBackend, stream, wait_until
from tests.doubles.frames import DONE, D, U
from tests.doubles.proxy import Ferrule, config_for


@pytest.mark.parametrize("workers", [1, 2])
def test_a_pod_that_ends_lives_until_its_last_stream(
    new_proxy: Callable[..., Ferrule], new_backend: Callable[..., ScriptedBackend], workers: int
) -> None:
    backend, hold = new_backend(), Hold()
    backend.play(
        stream(D({"content": "begun"}), hold, D({"content": " and ended"}, "stop"), U(3, 2), DONE)
    )
    proxy = new_proxy(config_for(backend.url, workers=workers, drain_grace_s=30))
    with proxy.open_stream() as answer:
        answer.read_until(b"begun")
        proxy.signal(signal.SIGTERM)
        wait_until(lambda: proxy.readyz() == 503, 5.0, "the proxy to be unready")
        assert proxy.admin_get("/livez").status == 200
        assert proxy.status()["state"] == "draining"
        assert proxy.metric("streams_active") == 1
        hold.release()
        rest = answer.read()
    assert b"and ended" in rest
    assert b"message_stop" in rest
    assert proxy.process.wait(10) == 0
    with pytest.raises(OSError):
        proxy.admin_get("/livez")


def test_a_dead_backend_makes_the_pod_unready_and_leaves_it_alive(
    new_proxy: Callable[..., Ferrule], new_backend: Callable[..., ScriptedBackend]
) -> None:
    backend = new_backend()
    proxy = new_proxy(
        config_for(backend.url, pool={"health": {"interval_s": 0.2, "timeout_s": 0.2, "fall": 1}})
    )
    backend.stop()
    proxy.wait_for_readyz(503)
    assert proxy.admin_get("/livez").status == 200
