"""Ports that cannot be had: one line that names the setting, and no sharing with strangers."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from tests.app_state import config_of

from ferrule.config import Config, ConfigError, Flags
from ferrule.process import run_worker
from ferrule.process import worker as working
from ferrule.process.ports import reserve
from ferrule.process.supervisor import Supervisor
from ferrule.process.worker import WorkerSettings


def test_a_reserved_port_can_be_shared() -> None:
    held, port = reserve("127.0.0.1", 0)
    with held, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", port))
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))


def test_a_port_that_others_share_is_not_reserved() -> None:
    with socket.socket() as theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        theirs.bind(("127.0.0.1", 0))
        theirs.listen()
        with pytest.raises(OSError, match="in use"):
            reserve("127.0.0.1", theirs.getsockname()[1])


@pytest.fixture
def taken() -> Iterator[str]:
    """An address that another process listens on, and would share."""
    with socket.socket() as theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        theirs.bind(("127.0.0.1", 0))
        theirs.listen()
        yield f"127.0.0.1:{theirs.getsockname()[1]}"


async def opened(settings: WorkerSettings, configuration: Config) -> None:
    if configuration.workers > 1:
        await Supervisor(settings, configuration, "info").run()
    else:
        await run_worker.serve_alone(settings, configuration)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("setting", ["listen", "admin"])
@pytest.mark.parametrize("is_flag", [False, True], ids=["file", "flag"])
async def test_a_port_that_is_taken_is_one_line(
    taken: str, workers: int, setting: str, is_flag: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "tune_gc", lambda: None)
    monkeypatch.setattr(working, "tune_malloc", lambda: None)
    other = {"listen": "admin", "admin": "listen"}[setting]
    configuration = config_of(
        "http://127.0.0.1:9", workers=workers, **{setting: taken, other: "127.0.0.1:0"}
    )
    with pytest.raises(ConfigError) as raised:
        await opened(WorkerSettings(Flags(**{setting: taken} if is_flag else {})), configuration)
    assert (
        str(raised.value) == f"{'--' if is_flag else ''}{setting}: {taken}: address already in use"
    )


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_host_that_does_not_resolve_is_one_line(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "tune_malloc", lambda: None)
    with pytest.raises(ConfigError, match=r"\Alisten: no-such-host\.invalid:1: [a-z ]+\Z"):
        configuration = config_of(
            "http://127.0.0.1:9",
            workers=workers,
            listen="no-such-host.invalid:1",
            auth={"allow_anonymous": True},
        )
        await opened(WorkerSettings(Flags()), configuration)
