"""The process: ready, draining, reloaded, restarted; and what a bad start prints."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.backend import Hold, ScriptedBackend, stream, wait_until
from tests.doubles.events import assert_ends_with_error, read_events, story_of
from tests.doubles.frames import DONE, Canned, D
from tests.doubles.proxy import ROOT, Ferrule, assert_error, config_for, free_port
from tests.e2e.test_cases_limits import key_entry, write_keys

STREAMS = 40


@contextmanager
def held(backend: ScriptedBackend) -> Iterator[Hold]:
    """Streams stop after `a`, and go on with `b` once released; what is not streamed is answered at
    once."""
    hold = Hold()
    stopped = stream(D({"content": "a"}), hold, D({"content": "b"}), D({}, "stop"), DONE)
    backend.play(lambda seen: stopped if seen.json.get("stream") else Canned("whole"))
    try:
        yield hold
    finally:
        hold.release()


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_lets_streams_end(
    new_backend: Callable[..., ScriptedBackend], tmp_path: Path, workers: int
) -> None:
    backend = new_backend()
    with (
        Ferrule(config_for(backend.url, workers=workers, drain_grace_s=20), tmp_path) as proxy,
        ThreadPoolExecutor(STREAMS) as threads,
        held(backend) as hold,
    ):
        live = [threads.submit(proxy.stream) for _ in range(STREAMS)]
        backend.wait_for_requests(STREAMS)
        proxy.signal(signal.SIGTERM)
        proxy.wait_for_readyz(503, 2)
        assert "draining" in proxy.admin_get("/readyz").text
        assert proxy.admin_get("/livez").status == 200
        hold.release()
        assert [story_of(done.result().message) for done in live] == [[("text", "ab")]] * STREAMS
        assert proxy.process.wait(10) == 0


def test_new_requests_while_draining_are_told_to_leave(
    new_backend: Callable[..., ScriptedBackend], tmp_path: Path
) -> None:
    backend = new_backend()
    with (
        Ferrule(config_for(backend.url, drain_grace_s=20), tmp_path) as proxy,
        ThreadPoolExecutor(1) as threads,
        held(backend) as hold,
    ):
        with closing(http.client.HTTPConnection(proxy.listen, timeout=5)) as kept:
            kept.request("GET", "/v1/models")
            kept.getresponse().read()
            live = threads.submit(proxy.stream)
            backend.wait_for_requests(1)
            proxy.signal(signal.SIGTERM)
            proxy.wait_for_readyz(503, 2)
            kept.request("GET", "/v1/models")
            answer = kept.getresponse()
            assert answer.status in (200, 529)
            assert answer.headers["connection"] == "close"
        hold.release()
        assert live.result().message


def test_streams_that_outlive_the_grace_end_with_an_error(
    new_backend: Callable[..., ScriptedBackend], tmp_path: Path
) -> None:
    backend = new_backend()
    with (
        Ferrule(config_for(backend.url, drain_grace_s=1), tmp_path) as proxy,
        ThreadPoolExecutor(1) as threads,
        held(backend),
    ):
        live = threads.submit(proxy.stream)
        backend.wait_for_requests(1)
        proxy.signal(signal.SIGTERM)
        assert story_of(assert_ends_with_error(live.result(10).events)) == [("text", "a")]
        assert proxy.process.wait(10) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_second_signal_ends_it_at_once(
    new_backend: Callable[..., ScriptedBackend], tmp_path: Path, workers: int
) -> None:
    backend = new_backend()
    settings = config_for(backend.url, workers=workers, drain_grace_s=600)
    with Ferrule(settings, tmp_path) as proxy, ThreadPoolExecutor(1) as threads, held(backend):
        live = threads.submit(proxy.stream)
        backend.wait_for_requests(1)
        proxy.signal(signal.SIGTERM)
        proxy.wait_for_readyz(503, 2)
        proxy.signal(signal.SIGINT)
        assert story_of(assert_ends_with_error(live.result(10).events)) == [("text", "a")]
        assert proxy.process.wait(10) == 0


@pytest.mark.parametrize("by", ["signal", "change", "symlink"])
def test_reload(new_backend: Callable[..., ScriptedBackend], tmp_path: Path, by: str) -> None:
    one, other = new_backend(), new_backend()
    other.play(Canned("other"))
    folder = tmp_path / "run"
    folder.mkdir()
    if by == "symlink":  # as a ConfigMap changes
        (folder / "v1").mkdir()
        (folder / "..data").symlink_to("v1")
        (folder / "ferrule.yaml").symlink_to("..data/ferrule.yaml")
    with (
        Ferrule(config_for(one.url), folder) as proxy,
        ThreadPoolExecutor(1) as threads,
        held(one) as hold,
    ):
        live = threads.submit(proxy.stream)
        one.wait_for_requests(1)
        if by == "symlink":
            (folder / "v2").mkdir()
            proxy.config_path = folder / "v2" / "ferrule.yaml"
            proxy.write_config(config_for(other.url))
            (folder / "..new").symlink_to("v2")
            os.replace(folder / "..new", folder / "..data")
        else:
            proxy.write_config(config_for(other.url))
        if by == "signal":
            proxy.signal(signal.SIGHUP)
        wait_until(
            lambda: story_of_ask(proxy) == [("text", "other")], 8, "the new backend to be used"
        )
        hold.release()
        assert story_of(live.result(10).message) == [("text", "ab")]


def story_of_ask(proxy: Ferrule) -> Any:
    answer = proxy.client.post(
        "/v1/messages",
        {
            "model": "m",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": str(time.monotonic())}],
        },
    )
    return story_of(answer.json()) if answer.status == 200 else answer.text


def test_a_bad_file_changes_nothing(
    new_backend: Callable[..., ScriptedBackend], tmp_path: Path
) -> None:
    backend = new_backend()
    with Ferrule(config_for(backend.url), tmp_path) as proxy:
        proxy.write_config({**config_for(backend.url), "no_such_setting": 1})
        proxy.signal(signal.SIGHUP)
        wait_until(lambda: "no_such_setting" in proxy.log(), 5, "the problem in the log")
        assert proxy.ask().status == 200
        assert proxy.readyz() == 200


def test_keys_are_read_again(new_backend: Callable[..., ScriptedBackend], tmp_path: Path) -> None:
    backend = new_backend()
    keys = write_keys(tmp_path, key_entry("old"))
    with Ferrule(config_for(backend.url, auth={"keys_file": keys}), tmp_path) as proxy:
        assert proxy.ask(headers={"x-api-key": "sk-old"}).status == 200
        write_keys(tmp_path, key_entry("new"))
        proxy.signal(signal.SIGHUP)
        wait_until(
            lambda: proxy.ask(headers={"x-api-key": "sk-new"}).status == 200, 8, "the new key"
        )
        assert_error(proxy.ask(headers={"x-api-key": "sk-old"}), 401, "authentication_error")


def test_a_dead_worker_is_replaced(
    new_backend: Callable[..., ScriptedBackend], tmp_path: Path
) -> None:
    backend = new_backend()
    with Ferrule(config_for(backend.url, workers=2), tmp_path) as proxy:
        before = workers_of(proxy)
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: len(set(workers_of(proxy)) - {before[0]}) == 2, 10, "a new worker")
        wait_until(lambda: proxy.readyz() == 200, 10, "readiness")
        for _ in range(10):
            assert proxy.ask().status == 200


def workers_of(proxy: Ferrule) -> list[int]:
    children = (
        Path(f"/proc/{proxy.process.pid}/task/{proxy.process.pid}/children").read_text().split()
    )
    serving = []
    for pid in children:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"resource_tracker" not in command:
            serving.append(int(pid))
    return serving


# How it starts


def ferrule(*args: str, folder: Path, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "ferrule", *args]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({"pools": {"p": {"backends": ["http://127.0.0.1:9"], "slots": 0}}}, "pools.p.slots"),
        ({"listne": "x"}, "listne"),
        ({"pools": {"p": {"backends": ["ftp://x"]}}}, "pools.p.backends.0"),
        (
            {
                "pools": {"p": {"backends": ["http://127.0.0.1:9"]}},
                "models": [{"id": "m", "pool": "q"}],
            },
            "models.0.pool",
        ),
        (
            {
                "pools": {
                    "p": {"backends": ["http://127.0.0.1:9"], "api_key": "${NO_SUCH_VARIABLE}"}
                }
            },
            "NO_SUCH_VARIABLE",
        ),
    ],
    ids=["value", "unknown-key", "url", "reference", "environment"],
)
def test_a_problem_is_printed_with_its_place(
    tmp_path: Path, config: dict[str, Any], place: str
) -> None:
    proxy = Ferrule(config, tmp_path, waits=False)
    assert proxy.process.wait(20) == 1
    assert place in proxy.log()
    assert "Traceback" not in proxy.log()


def test_wrong_usage_is_status_2(tmp_path: Path) -> None:
    assert ferrule("serve", "--no-such-flag", folder=tmp_path).returncode == 2
    assert ferrule("no-such-command", folder=tmp_path).returncode == 2


def test_without_a_file_every_listed_model_is_served(
    new_backend: Callable[..., ScriptedBackend], tmp_path: Path
) -> None:
    backend = new_backend(model="listed/model")
    with Ferrule(None, tmp_path, args=["--backend", backend.url]) as proxy:
        assert proxy.message(model="listed/model")["model"] == "listed/model"
        assert_error(proxy.ask(model="m"), 400, "invalid_request_error")


def test_demo_once(tmp_path: Path) -> None:
    done = ferrule(
        "demo",
        "--once",
        "--listen",
        f"127.0.0.1:{free_port()}",
        "--admin",
        f"127.0.0.1:{free_port()}",
        folder=tmp_path,
        timeout_s=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "I am demo, a simulated model" in done.stdout
    assert "curl -N http://127.0.0.1:" in done.stdout
    assert "The operator's page: http://127.0.0.1:" in done.stdout
    assert ".\n\n[end_turn, by" in done.stdout  # a whole sentence, and no line of the access log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_demo_that_is_ended_ends_its_proxy(tmp_path: Path, number: signal.Signals) -> None:
    listen = free_port()
    command = [
        sys.executable,
        "-m",
        "ferrule",
        "demo",
        "--listen",
        f"127.0.0.1:{listen}",
        "--admin",
        f"127.0.0.1:{free_port()}",
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]),
    }
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert any("Serving until" in line for line in process.stdout)
            process.send_signal(number)
            assert process.wait(15) == 0
        finally:
            process.kill()
    with (
        pytest.raises(ConnectionRefusedError),
        closing(http.client.HTTPConnection("127.0.0.1", listen, timeout=5)) as late,
    ):
        late.request("GET", "/")


def test_sim_ends_its_streams_with_abort(tmp_path: Path) -> None:
    port = free_port()
    path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    command = [
        sys.executable,
        "-m",
        "ferrule",
        "sim",
        "--port",
        str(port),
        "--model",
        "m",
        "--tokens-per-second",
        "5",
    ]
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert f"http://127.0.0.1:{port}" in process.stdout.readline()
        with (
            Ferrule(config_for(f"http://127.0.0.1:{port}", pool={"retries": 0}), tmp_path) as proxy,
            proxy.open_stream(max_tokens=100) as answer,
        ):
            raw = answer.read_until(b"text_delta")
            process.send_signal(signal.SIGTERM)
            raw += answer.read()
        assert_ends_with_error(read_events(raw))
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait(5)
        if process.stdout is not None:
            process.stdout.close()


def test_check_prints_what_backends_can_do(
    new_backend: Callable[..., ScriptedBackend], tmp_path: Path
) -> None:
    import yaml

    backend = new_backend()
    config = tmp_path / "ferrule.yaml"
    config.write_text(yaml.safe_dump(config_for(backend.url)))
    good = ferrule("check", "--config", str(config), folder=tmp_path)
    assert good.returncode == 0, good.stdout + good.stderr
    assert "32768" in good.stdout.replace(",", "").replace(" ", "")
    config.write_text(yaml.safe_dump(config_for("http://127.0.0.1:9")))
    assert ferrule("check", "--config", str(config), folder=tmp_path).returncode == 1


def test_check_says_nothing_of_a_reader_that_leaves(
    new_backend: Callable[..., ScriptedBackend], tmp_path: Path
) -> None:
    path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "ferrule", "check", "--backend", new_backend().url]
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": path},
            stdout=writes,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
            check=False,
        )
    finally:
        os.close(writes)
    assert done.stderr == ""


def test_keys_new_prints_a_key_once(tmp_path: Path) -> None:
    done = ferrule("keys", "new", "team-a", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "team-a" in done.stdout
    assert "sha256" in done.stdout


def test_count_counts_a_body(tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_text('{"messages":[{"role":"user","content":"hello world, this is a test"}]}')
    done = ferrule("count", "--model", "m", str(body), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert any(4 <= int(word) <= 40 for word in done.stdout.split() if word.isdigit())
