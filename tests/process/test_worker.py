"""One worker in this process: what a reload replaces and refuses, how it drains, and what it tells
of itself."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml
from tests.app_state import running_worker, until
from tests.doubles.backend import Hold, Reply, ScriptedBackend, whole
from tests.doubles.frames import DONE, D
from tests.doubles.proxy import REQ, config_for

from ferrule.backends.pool import WorkerId
from ferrule.config import ConfigError, Flags
from ferrule.process import worker as working
from ferrule.process.worker import Worker, WorkerSettings


@pytest.fixture(autouse=True)
def uncalmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What suits a server for the whole of its life does not suit a test run."""
    monkeypatch.setattr(working, "tune_gc", lambda: None)
    monkeypatch.setattr(working, "tune_malloc", lambda: None)
    monkeypatch.setattr(working, "SWEEP_S", 3600.0)


class Files:
    """A config file as a test writes it, reached the way a ConfigMap is: through two symlinks."""

    def __init__(self, folder: Path, backend: ScriptedBackend) -> None:
        self.folder, self.backend = folder, backend
        self.path = folder / "ferrule.yaml"
        self.versions = 0

    def write(self, **settings: Any) -> WorkerSettings:
        self.versions += 1
        version = self.folder / f"v{self.versions}"
        version.mkdir()
        config = {**config_for(self.backend.url, listen="127.0.0.1:0"), **settings}
        (version / "ferrule.yaml").write_text(yaml.safe_dump(config))
        new = self.folder / "..new"
        new.symlink_to(version.name)
        new.rename(self.folder / "..data")
        if not self.path.is_symlink():
            self.path.symlink_to("..data/ferrule.yaml")
        return WorkerSettings(Flags(), str(self.path))


@pytest.fixture
def files(tmp_path: Path, backend: ScriptedBackend) -> Files:
    return Files(tmp_path, backend)


@pytest.fixture
async def running(files: Files) -> AsyncIterator[tuple[Worker, aiohttp.ClientSession]]:
    async with running_worker(files.write()) as both:
        yield both


async def status_of(client: aiohttp.ClientSession, **members: Any) -> int:
    async with client.post("/v1/messages", json=REQ(**members)) as answer:
        await answer.read()
        return answer.status


async def test_a_changed_file_is_read_again(
    files: Files, running: tuple[Worker, aiohttp.ClientSession]
) -> None:
    worker, client = running
    worker._sweep_once(monotonic())
    first = worker.state.config
    files.write(models=[{"id": "renamed", "pool": "p", "upstream": "m"}])
    worker._sweep_once(monotonic())
    assert worker.state.config is not first
    assert await status_of(client, model="renamed") == 200
    assert await status_of(client, model="m") == 404
    second = worker.state.config
    worker._sweep_once(monotonic())
    assert worker.state.config is second  # it has not changed since


@pytest.mark.parametrize(
    "wrong",
    [{"listne": 1}, {"models": [{"id": "m", "pool": "q"}]}, {"auth": {"keys_file": "absent.yaml"}}],
    ids=["unknown", "reference", "absent-keys"],
)
async def test_a_bad_file_is_refused_and_the_old_kept(
    files: Files,
    running: tuple[Worker, aiohttp.ClientSession],
    wrong: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker, client = running
    before = (worker.state.config, worker.state.keys, worker.state.catalog)
    files.write(**wrong)
    with caplog.at_level(logging.ERROR):
        worker._sweep_once(monotonic())
    assert "configuration refused; the one of 20" in caplog.text
    received = worker.snapshot().config
    assert received is not None
    assert (received.ok, received.error in caplog.text if received.error else False) == (
        False,
        True,
    )
    assert (worker.state.config, worker.state.keys, worker.state.catalog) == before
    assert await status_of(client) == 200
    caplog.clear()
    worker._sweep_once(monotonic())
    assert caplog.text == ""  # said once
    files.write()
    worker._sweep_once(monotonic())
    mended = worker.snapshot().config
    assert mended is not None
    assert (mended.ok, mended.error) == (True, None)
    assert mended.loaded_at >= received.loaded_at


async def test_one_of_several_workers_speaks_of_a_reload(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    settings = files.write()
    second = msgspec.structs.replace(settings, worker_id=WorkerId(1, 2))
    async with running_worker(second) as (worker, _):
        files.write(listne=1)
        worker.reload()
        assert "listne" not in caplog.text
        received = worker.snapshot().config
        assert received is not None
        assert "listne" in (received.error or "")


async def test_a_file_that_vanishes_is_a_bad_file(
    files: Files, running: tuple[Worker, aiohttp.ClientSession], caplog: pytest.LogCaptureFixture
) -> None:
    worker, client = running
    files.path.unlink()
    with caplog.at_level(logging.ERROR):
        worker._sweep_once(monotonic())
    assert "refused" in caplog.text
    assert await status_of(client) == 200


async def test_pools_come_and_go(
    files: Files, running: tuple[Worker, aiohttp.ClientSession]
) -> None:
    worker, client = running
    kept = worker.state.pools["p"]
    config = config_for(files.backend.url)
    files.write(pools={**config["pools"], "q": config["pools"]["p"]})
    worker.reload()
    assert list(worker.state.pools) == ["p", "q"]
    assert worker.state.pools["p"] is kept
    files.write(pools={"q": config["pools"]["p"]}, models=[{"id": "m", "pool": "q"}])
    worker.reload()
    assert list(worker.state.pools) == ["q"]
    await until(lambda: worker.state.pools["q"].is_ready(monotonic()))
    assert await status_of(client) == 200


async def test_a_count_whose_pool_goes_while_its_body_comes_is_an_estimate(
    files: Files, running: tuple[Worker, aiohttp.ClientSession]
) -> None:
    config = config_for(files.backend.url)
    pools = {**config["pools"], "q": config["pools"]["p"]}
    models = [{"id": "m", "pool": "p"}, {"id": "n", "pool": "q"}]
    files.write(dialect="tokenify", pools=pools, models=models)
    worker, client = running
    worker.reload()
    await until(lambda: worker.state.pools["q"].is_ready(monotonic()))

    async def upload() -> AsyncIterator[bytes]:
        body = json.dumps(REQ(model="n")).encode()
        yield body[:5]
        await until(lambda: worker.proxy.running == 1)
        removed = worker.state.pools["q"]
        files.write(dialect="tokenify", pools=config["pools"], models=models[:1])
        worker.reload()
        await until(lambda: removed._session is not None and removed._session.closed)
        yield body[5:]

    async with client.post("/v1/messages/count_tokens", data=upload()) as answer:
        assert (answer.status, (await answer.json())["input_tokens"] > 0) == (200, True)


async def test_what_takes_a_restart_is_said(
    files: Files, running: tuple[Worker, aiohttp.ClientSession], caplog: pytest.LogCaptureFixture
) -> None:
    worker, _ = running
    files.write(workers=3)
    worker.reload()
    assert "workers changed; restart to apply it" in caplog.text


async def test_a_stream_that_runs_is_not_touched_by_a_reload(
    files: Files, running: tuple[Worker, aiohttp.ClientSession]
) -> None:
    worker, client = running
    hold = Hold()
    files.backend.play(Reply((D({"content": "a"}), hold, D({"content": "b"}), D({}, "stop"), DONE)))
    async with client.post("/v1/messages", json=REQ(stream=True)) as answer:
        await answer.content.readuntil(b"text_delta")
        files.write(models=[{"id": "n", "pool": "p"}])
        worker.reload()
        hold.release()
        assert (await answer.read()).endswith(
            b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
        )


# Draining


async def test_draining_waits_for_what_runs(
    files: Files, running: tuple[Worker, aiohttp.ClientSession]
) -> None:
    worker, client = running
    hold = Hold()
    files.backend.play(Reply((D({"content": "a"}), hold, D({}, "stop"), DONE)))
    async with client.post("/v1/messages", json=REQ(stream=True)) as answer:
        await answer.content.readuntil(b"text_delta")
        draining = asyncio.ensure_future(worker.drain())
        await until(lambda: worker.proxy.lifecycle.is_draining)
        snapshot = worker.snapshot()
        assert (snapshot.is_ready, snapshot.is_draining, snapshot.reason) == (
            False,
            True,
            "draining",
        )
        async with client.get("/v1/models") as late:
            assert (late.status, late.headers["connection"]) == (200, "close")
        assert not draining.done()
        hold.release()
        await answer.read()
        await draining


async def test_what_comes_late_in_a_drain_is_turned_away(
    files: Files, running: tuple[Worker, aiohttp.ClientSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "QUIET_BEFORE_EXIT_S", 0.0)
    worker, client = running
    hold = Hold()
    files.backend.play(Reply((D({"content": "a"}), hold, D({}, "stop"), DONE)))
    async with client.post("/v1/messages", json=REQ(stream=True)) as answer:
        await answer.content.readuntil(b"text_delta")
        draining = asyncio.ensure_future(worker.drain())
        await until(lambda: worker.proxy.lifecycle.rejects_new)
        async with client.post("/v1/messages", json=REQ()) as late:
            assert (late.status, late.headers["connection"]) == (529, "close")
            assert (await late.json())["error"]["type"] == "overloaded_error"
        hold.release()
        assert b"message_stop" in await answer.read()
        await draining


async def test_draining_ends_with_the_grace(
    files: Files, running: tuple[Worker, aiohttp.ClientSession]
) -> None:
    worker, client = running
    files.write(drain_grace_s=0.05)
    worker.reload()
    files.backend.play(Reply((D({"content": "a"}), Hold())))
    async with client.post("/v1/messages", json=REQ(stream=True)) as answer:
        await answer.content.readuntil(b"text_delta")
        await worker.drain()
        assert b"event: error" in await answer.read()


async def test_a_second_signal_ends_a_drain_at_once(
    files: Files, running: tuple[Worker, aiohttp.ClientSession], caplog: pytest.LogCaptureFixture
) -> None:
    worker, client = running
    files.backend.play(Reply((D({"content": "a"}), Hold())))
    worker.end()
    assert worker.ended.is_set()
    async with client.post("/v1/messages", json=REQ(stream=True)) as answer:
        await answer.content.readuntil(b"text_delta")
        with caplog.at_level(logging.INFO):
            draining = asyncio.ensure_future(worker.drain())
            await until(lambda: worker.proxy.lifecycle.is_draining)
            assert (
                "draining for at most 5 s, a second signal ends it now; 1 stream is running"
                in caplog.text
            )
            worker.end()
            await draining
        assert b"event: error" in await answer.read()
    assert "second signal; 1 stream is cut" in caplog.text


# What it tells


async def test_a_snapshot(running: tuple[Worker, aiohttp.ClientSession]) -> None:
    worker, client = running
    assert await status_of(client) == 200
    snapshot = worker.snapshot()
    assert (snapshot.is_ready, snapshot.reason, snapshot.worker.streams_active) == (True, None, 0)
    assert [pool.name for pool in snapshot.pools] == ["p"]
    (requests,) = [family for family in snapshot.families if family.name == "ferrule_requests"]
    assert [(sample.labels, sample.value) for sample in requests.samples] == [
        (("messages", "m", "200"), 1)
    ]


async def test_why_it_is_not_ready(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.backend.routes["GET", "/health"] = whole({}, 503)
    async with running_worker(files.write(), waits=False) as (worker, _):
        await until(lambda: worker.snapshot().reason == "no healthy backend")
        monkeypatch.setattr(worker.state.pools["p"].watcher, "age_s", lambda: 1e9)
        monkeypatch.setattr(worker.state.pools["p"].watcher, "stale_after_s", 1.0)
        assert worker.snapshot().reason == "discovery is stale: p"


@pytest.mark.parametrize(
    ("edge", "is_overloaded"),
    [({"max_streams": 1}, True), ({"max_streams": 2}, False), ({"max_memory_mb": 1}, True)],
)
async def test_overload(files: Files, edge: dict[str, int], is_overloaded: bool) -> None:
    async with running_worker(files.write(edge=edge)) as (worker, client):
        files.backend.play(Reply((D({"content": "a"}), Hold())))
        async with client.post("/v1/messages", json=REQ(stream=True)) as answer:
            await answer.content.readuntil(b"text_delta")
            worker._sweep_once(monotonic())
            assert worker.proxy.lifecycle.is_overloaded is ("max_memory_mb" in edge)
            if is_overloaded:
                assert await status_of(client) == 529


async def test_a_sweep_that_fails_is_not_the_last(
    files: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(working, "SWEEP_S", 0.005)
    async with running_worker(files.write()) as (worker, _):
        swept: Iterator[int] = iter(range(1000))
        seen: list[int] = []

        def sweep_once(now: float) -> None:
            seen.append(next(swept))
            raise RuntimeError("boom")

        monkeypatch.setattr(worker, "_sweep_once", sweep_once)
        await until(lambda: len(seen) >= 2)
    assert "the sweep failed" in caplog.text


def test_settings_are_a_file_or_flags(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    assert WorkerSettings(Flags(backends=("http://127.0.0.1:9",))).read().pools["default"].backends
    assert files.write().read().models[0].id == "m"
    with pytest.raises(ConfigError, match="--backend"):
        WorkerSettings(Flags()).read()
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    outside = files.write(pools={"p": {"discover": {"kubernetes": {"service": "s", "port": 1}}}})
    with pytest.raises(ConfigError, match=r"pools\.p\.discover\.kubernetes"):
        outside.read()
