"""Command lines: what they run, and how errors are printed."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from ferrule import __version__, cli, demo, sim
from ferrule.cli import main
from ferrule.config import Flags

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello world"}]}


@pytest.fixture(autouse=True)
def keep_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "set_up", lambda level: None)


@pytest.mark.parametrize(
    "arguments",
    [[], ["no-such"], ["serve", "--no-such"], ["count"], ["keys"], ["serve", "--dialect", "x"]],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: ferrule" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize("command", ["serve", "check"])
def test_problems_are_printed_with_their_path(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("listne: 1\n")
    assert main([command, "--config", str(file)]) == 1
    output = capsys.readouterr().err
    assert f"{file}: listne" in output
    assert main([command, "--config", str(tmp_path / "absent.yaml")]) == 1
    assert "absent.yaml" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["serve", "check"])
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], "--backend"),
        (["--config", "FILE", "--backend", "http://a"], "--backend"),
        (["--config", "FILE", "--workers", "0"], "--workers"),
        (["--backend", "http://a", "--listen", "8080"], "--listen"),
        (["--backend", "http://a", "--admin", "x:y"], "--admin"),
        (["--backend", "ftp://a"], "--backend"),
        (["--backend", "http://a", "--listen", "0.0.0.0:1"], "--listen"),
    ],
)
def test_problems_of_flags_are_wrong_usage(
    command: str,
    flags: list[str],
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("pools: {p: {backends: ['http://127.0.0.1:9']}}")
    assert main([command, *(str(file) if flag == "FILE" else flag for flag in flags)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{expected}: ")


def test_a_problem_of_the_file_is_not_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("pools: {p: {backends: ['http://127.0.0.1:9'], slots: 0}}")
    assert main(["serve", "--config", str(file), "--workers", "0"]) == 1
    assert "slots" in capsys.readouterr().err
    file.write_text("pools: {p: {backends: ['http://127.0.0.1:9']}}")
    assert (
        main(["serve", "--config", str(file), "--listen", "0.0.0.0:1"]) == 1
    )  # the fix may be in the file: auth.keys_file
    assert "auth.keys_file" in capsys.readouterr().err


def test_a_bad_keys_file_is_reported_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "keys.yaml").write_text("keys: [{name: a}]")
    config = {
        "pools": {"p": {"backends": ["http://127.0.0.1:9"]}},
        "auth": {"keys_file": "keys.yaml"},
    }
    (tmp_path / "f.yaml").write_text(yaml.safe_dump(config))
    assert main(["serve", "--config", str(tmp_path / "f.yaml")]) == 1
    assert "keys.yaml" in capsys.readouterr().err


def test_flags_are_passed_on() -> None:
    options = cli._build_parser().parse_args(
        [
            "serve",
            "--backend",
            "http://a",
            "--backend",
            "http://b",
            "--workers",
            "2",
            "--dialect",
            "pooled",
        ]
    )
    assert cli._flags(options) == Flags(
        backends=("http://a", "http://b"), workers=2, dialect="pooled"
    )


@pytest.mark.parametrize(("workers", "runs"), [("1", "alone"), ("2", "supervised")])
def test_more_than_one_worker_is_supervised(
    monkeypatch: pytest.MonkeyPatch, workers: str, runs: str
) -> None:
    from ferrule.process import run_worker, supervisor

    monkeypatch.setattr(run_worker, "serve_alone", lambda settings, configuration: "alone")
    monkeypatch.setattr(
        supervisor, "Supervisor", lambda *arguments: SimpleNamespace(run=lambda: "supervised")
    )
    monkeypatch.setattr("uvloop.run", lambda what: what)
    assert main(["serve", "--backend", "http://127.0.0.1:9", "--workers", workers]) == runs  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("admin", "warnings"), [("127.0.0.1:1", 0), ("[::1]:1", 0), ("0.0.0.0:1", 1)]
)
def test_an_admin_port_beyond_loopback_gets_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, admin: str, warnings: int
) -> None:
    from ferrule.process import run_worker

    monkeypatch.setattr(run_worker, "serve_alone", lambda settings, configuration: 0)
    monkeypatch.setattr("uvloop.run", lambda what: what)
    assert main(["serve", "--backend", "http://127.0.0.1:9", "--admin", admin]) == 0
    assert [record.levelname for record in caplog.records if admin in record.message] == [
        "WARNING"
    ] * warnings


def test_sim_and_demo_have_their_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim, "main", lambda arguments: len(arguments))
    assert main(["sim", "--port", "1"]) == 2
    monkeypatch.setattr(demo, "run", lambda *arguments: arguments)
    assert main(["demo", "--once"]) == (True, "127.0.0.1:8080", "127.0.0.1:9090")  # type: ignore[comparison-overlap]


def test_a_new_key_and_its_entry(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "team-a"]) == 0
    output = capsys.readouterr().out
    key = output.split("\n", 1)[0]
    assert output.count(key) == 1
    entry = yaml.safe_load(output[output.index("keys:") :])["keys"][0]
    assert (entry["name"], len(entry["sha256"])) == ("team-a", 64)
    assert main(["keys", "new", "bad\nname"]) == 2
    assert "bad\\nname" in capsys.readouterr().err


# count


def count_tokens(capsys: pytest.CaptureFixture[str], *arguments: str) -> int:
    assert main(["count", *arguments]) == 0, capsys.readouterr().err
    return int(capsys.readouterr().out)


@pytest.mark.parametrize("body", [BODY, {"messages": BODY["messages"]}], ids=["named", "unnamed"])
def test_count(tmp_path: Path, capsys: pytest.CaptureFixture[str], body: dict[str, Any]) -> None:
    file = tmp_path / "body.json"
    file.write_text(json.dumps(body))
    assert count_tokens(capsys, "--model", "m", str(file)) == 2


def test_count_of_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(json.dumps(BODY).encode())))
    assert count_tokens(capsys, "-") == 2


def test_count_with_a_models_own_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "body.json").write_text(json.dumps(BODY))
    config = {
        "pools": {"p": {"backends": ["http://127.0.0.1:9"]}},
        "models": [{"id": "m", "tokenizer": "cl100k_base"}],
    }
    (tmp_path / "f.yaml").write_text(yaml.safe_dump(config))
    assert (
        count_tokens(capsys, "--config", str(tmp_path / "f.yaml"), str(tmp_path / "body.json")) == 2
    )
    assert (
        main(
            [
                "count",
                "--config",
                str(tmp_path / "f.yaml"),
                "--model",
                "n",
                str(tmp_path / "body.json"),
            ]
        )
        == 1
    )
    assert "no model 'n'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "JSON"),
        ("[]", "object"),
        ("{}", "model"),
        ('{"model":"m","messages":[]}', "messages"),
        ('{"model":"m","messages":7}', "messages"),
    ],
)
def test_count_of_an_invalid_body(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, expected: str
) -> None:
    file = tmp_path / "body.json"
    file.write_text(text)
    assert main(["count", str(file)]) == 1
    assert expected in capsys.readouterr().err
    assert main(["count", str(tmp_path / "absent")]) == 1
    assert "absent" in capsys.readouterr().err
