"""What `ferrule check` reports about the keys file and the store of limits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.app_state import config_of
from tests.check.backends import make_config, make_report, make_survey
from tests.doubles.proxy import free_port

from ferrule import check
from ferrule.check.admission import check_store, find_unused_keys, read_keys
from ferrule.config import Config

SHA256 = "0" * 63


def config_with_keys(folder: Path, text: str, **settings: Any) -> Config:
    file = folder / "keys.yaml"
    file.write_text(text)
    return make_config(auth={"keys_file": str(file)}, **settings)


def find_warnings(settings: Config) -> list[str]:
    tenants, problems = read_keys(settings)
    assert problems == []
    assert tenants is not None
    return [
        str(warning).partition("keys.yaml: ")[2]
        for warning in find_unused_keys(
            settings, tenants, make_survey(settings, make_report()).catalog
        )
    ]


def test_without_a_keys_file_there_are_no_problems() -> None:
    assert read_keys(make_config()) == (None, [])


def test_problems_of_the_keys_file(tmp_path: Path) -> None:
    tenants, problems = read_keys(config_with_keys(tmp_path, "keys: [{name: a, sha256: x}]"))
    assert tenants is None
    (problem,) = problems
    assert str(problem).startswith(f"{tmp_path}/keys.yaml: keys.0.sha256: expected 64 hex digits")


def test_an_empty_list_refuses_everyone(tmp_path: Path) -> None:
    assert find_warnings(config_with_keys(tmp_path, "keys: []")) == [
        "keys: is empty, so every request is refused"
    ]


@pytest.mark.parametrize(
    ("models", "is_unused"),
    [
        ('["*"]', False),
        ("[m]", False),
        ('["m*"]', False),
        ("[claude-haiku-4-5]", False),  # covered by the alias claude-haiku-*
        ('["claude-haiku-*"]', False),
        ("[gone, m]", False),
        ("[gone]", True),
        ("[]", True),
    ],
)
def test_a_key_that_matches_no_model(tmp_path: Path, models: str, is_unused: bool) -> None:
    text = (
        f"keys: [{{name: a, sha256: '{SHA256}1'}}, {{name: b, sha256: '{SHA256}2', models: "
        f"{models}}}]"
    )
    warnings = find_warnings(config_with_keys(tmp_path, text))
    assert [warning.split(":")[0] for warning in warnings] == (
        ["keys.1.models"] if is_unused else []
    )


async def test_a_store_that_is_not_there() -> None:
    port = free_port()
    (problem,) = await check_store(
        make_config(limits={"store": f"redis://user:secret@127.0.0.1:{port}/0"})
    )
    assert problem.path == "limits.store"
    assert problem.message.startswith(f"redis://***@127.0.0.1:{port}/0 is not reachable: ")
    assert await check_store(make_config()) == []


async def test_a_store_that_answers() -> None:
    async def pong(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            writer.write(b"+PONG\r\n" if b"PING" in data else b"+OK\r\n" * data.count(b"*"))
        writer.close()

    server = await asyncio.start_server(pong, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert await check_store(make_config(limits={"store": f"redis://127.0.0.1:{port}"})) == []


async def test_the_status_counts_problems_and_no_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: Any
) -> None:
    (tmp_path / "keys.yaml").write_text("keys: []")
    auth = {"keys_file": str(tmp_path / "keys.yaml")}
    assert await check.run(config_of(backend.url, auth=auth)) == 0
    assert "warning" in capsys.readouterr().err
    (tmp_path / "keys.yaml").write_text("keys: 7")
    assert await check.run(config_of(backend.url, auth=auth)) == 1
    assert "keys.yaml: keys: " in capsys.readouterr().err
