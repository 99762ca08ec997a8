"""Limits: what is taken is given back on every way out, and what is over is refused with an honest
answer."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.doubles.backend import Hold, Pause, Reset, ScriptedBackend, stream, wait_until
from tests.doubles.frames import DONE, Canned, D, U
from tests.doubles.proxy import Ferrule, assert_error, config_for, free_port


def key_entry(name: str, **limits: Any) -> dict[str, Any]:
    return {
        "name": name,
        "sha256": hashlib.sha256(f"sk-{name}".encode()).hexdigest(),
        "models": ["*"],
        **limits,
    }


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer sk-{name}"}


KEYS = [
    key_entry("single", concurrency=1),
    key_entry("slow", requests_per_minute=1),
    key_entry("refused", requests_per_minute=1),
    key_entry("tokens", tokens_per_minute=50),
    key_entry("aborter", tokens_per_minute=50),
    key_entry("roomy", requests_per_minute=600, tokens_per_minute=1_000_000, concurrency=4),
]


def write_keys(folder: Path, *entries: dict[str, Any]) -> str:
    path = folder / "keys.yaml"
    path.write_text(yaml.safe_dump({"keys": list(entries)}))
    return str(path)


@pytest.fixture(scope="module")
def shared_limited(
    new_proxy: Callable[..., Ferrule],
    shared_backend: ScriptedBackend,
    tmp_path_factory: pytest.TempPathFactory,
) -> Ferrule:
    keys = write_keys(tmp_path_factory.mktemp("keys"), *KEYS)
    return new_proxy(config_for(shared_backend.url, auth={"keys_file": keys}, workers=2))


@pytest.fixture
def limited(shared_limited: Ferrule, backend: ScriptedBackend) -> Ferrule:
    """Two workers, and a key for each kind of limit."""
    return shared_limited


def _complete(proxy: Ferrule) -> None:
    assert proxy.stream(headers=bearer("single")).message


def _abort(proxy: Ferrule) -> None:
    with proxy.open_stream(headers=bearer("single")) as answer:
        answer.read_some()
        answer.reset()


def _whole(proxy: Ferrule) -> None:
    assert proxy.ask(headers=bearer("single")).status == 200


def _broken(proxy: Ferrule) -> None:
    proxy.stream(headers=bearer("single"))


ENDLESS = [step for _ in range(100) for step in (D({"content": "x"}), Pause(0.05))]


@pytest.mark.parametrize(
    ("way_out", "play"),
    [
        (_complete, Canned("x")),
        (_abort, stream(*ENDLESS)),
        (_whole, Canned("x")),
        (_broken, stream(D({"content": "x"}), Reset())),
    ],
    ids=["complete", "aborted", "whole", "broken"],
)
def test_m01_a_slot_is_given_back(
    limited: Ferrule, backend: ScriptedBackend, way_out: Callable[[Ferrule], None], play: Any
) -> None:
    backend.play(play)
    way_out(limited)
    backend.play(Canned("x"))
    _wait_for_a_slot(limited)


def _wait_for_a_slot(proxy: Ferrule) -> None:
    wait_until(
        lambda: proxy.ask(headers=bearer("single")).status == 200, 2, "the slot to be given back"
    )


def test_m01_one_slot_is_one_request(limited: Ferrule, backend: ScriptedBackend) -> None:
    hold = Hold()
    backend.play(stream(D({"content": "x"}), hold, D({}, "stop"), DONE))
    with limited.open_stream(headers=bearer("single")) as answer:
        answer.read_some()
        refused = limited.ask(headers=bearer("single"))
        assert_error(refused, 429, "rate_limit_error")
        assert int(refused.headers["retry-after"]) >= 1
        hold.release()
        answer.read()


def test_m03_what_is_refused_costs_nothing(limited: Ferrule, backend: ScriptedBackend) -> None:
    for _ in range(10):
        assert (
            limited.ask(
                headers=bearer("single"), messages=[{"role": "user2", "content": "x"}]
            ).status
            == 400
        )
    assert limited.ask(headers=bearer("single")).status == 200


def test_h13_retry_after_within_the_minute(limited: Ferrule, backend: ScriptedBackend) -> None:
    first, second = (limited.ask(headers=bearer("slow")) for _ in range(2))
    assert first.status == 200
    assert first.headers["anthropic-ratelimit-requests-limit"] == "1"
    assert first.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert "T" in first.headers["anthropic-ratelimit-requests-reset"]
    assert_error(second, 429, "rate_limit_error")
    assert 1 <= int(second.headers["retry-after"]) <= 60
    assert len(backend.requests) == 1


def test_limits_are_shared_by_messages_and_chat(limited: Ferrule, backend: ScriptedBackend) -> None:
    assert limited.ask(headers=bearer("refused")).status == 200
    assert limited.ask("/v1/chat/completions", headers=bearer("refused")).status == 429


def test_m07_streamed_tokens_count(limited: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(stream(D({"content": "x"}), D({}, "stop"), U(5, 60), DONE))
    assert limited.stream(headers=bearer("tokens"), max_tokens=20).message
    backend.play(Canned("x"))
    wait_until(
        lambda: limited.ask(headers=bearer("tokens")).status == 429, 2, "the tokens to be settled"
    )


def test_m07_an_aborted_stream_counts_what_it_produced(
    limited: Ferrule, backend: ScriptedBackend
) -> None:
    backend.play(stream(*([D({"content": "word "})] * 80), Hold()))
    with limited.open_stream(headers=bearer("aborter"), max_tokens=20) as answer:
        data = b""
        while data.count(b"text_delta") < 80:
            data += answer.read_some()
        answer.reset()
    wait_until(
        lambda: limited.ask(headers=bearer("aborter")).status == 429, 2, "the tokens to be settled"
    )


def most_at_once(
    proxies: list[Ferrule], backend: ScriptedBackend, name: str
) -> tuple[int, list[int]]:
    backend.most_inflight = 0
    backend.play(stream(D({"content": "x"}), Pause(0.15), D({}, "stop"), DONE))
    with ThreadPoolExecutor(40) as threads:
        statuses = list(
            threads.map(
                lambda n: proxies[n % len(proxies)].ask(headers=bearer(name), stream=True).status,
                range(40),
            )
        )
    return backend.most_inflight, statuses


def test_concurrency_is_exact_over_workers(limited: Ferrule, backend: ScriptedBackend) -> None:
    most, statuses = most_at_once([limited], backend, "roomy")
    assert most <= 4
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 4
    assert limited.metric("limited_total") > 0


# Two replicas and a store


@pytest.fixture(scope="module")
def redis_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    binary = shutil.which("redis-server") or shutil.which("valkey-server")
    if binary is None:
        pytest.skip("neither redis-server nor valkey-server is installed")
    port = free_port()
    options = [
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--dir",
        str(tmp_path_factory.mktemp("redis")),
    ]
    process = subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL)
    yield port, process
    process.send_signal(signal.SIGCONT)
    process.terminate()
    process.wait(10)


@pytest.fixture(scope="module")
def replicas(
    new_proxy: Callable[..., Ferrule],
    shared_backend: ScriptedBackend,
    redis_server: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> list[Ferrule]:
    keys = write_keys(
        tmp_path_factory.mktemp("keys"),
        key_entry("shared", concurrency=4),
        key_entry("other", requests_per_minute=600),
    )
    limits = {"store": f"redis://127.0.0.1:{redis_server[0]}/0", "on_store_failure": "allow"}
    return [
        new_proxy(config_for(shared_backend.url, auth={"keys_file": keys}, limits=limits))
        for _ in range(2)
    ]


def test_m05_two_replicas_share_one_store(
    replicas: list[Ferrule], backend: ScriptedBackend
) -> None:
    most, statuses = most_at_once(replicas, backend, "shared")
    assert most <= 4
    assert set(statuses) == {200, 429}


def test_m09_a_store_that_hangs_delays_nobody_for_long(
    replicas: list[Ferrule], backend: ScriptedBackend, redis_server: Any
) -> None:
    _, process = redis_server
    process.send_signal(signal.SIGSTOP)
    try:
        waits = []
        for _ in range(5):
            begin = time.monotonic()
            assert replicas[0].ask(headers=bearer("other")).status == 200
            waits.append(time.monotonic() - begin)
        assert max(waits) < 1.0, waits
    finally:
        os.kill(process.pid, signal.SIGCONT)
    wait_until(
        lambda: (
            replicas[0].ask(headers=bearer("other")).headers["anthropic-ratelimit-requests-limit"]
            == "600"
        ),
        10,
        "the store's return",
    )
