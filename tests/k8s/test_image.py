"""The image without a container engine: the Dockerfile is read, and its steps are run in a clean
place (make test-image).

What a container engine adds (base images, layers, the file system of the last stage) is not tested
here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.k8s.rendering import ROOT

WANTED = os.environ.get("FERRULE_TEST_IMAGE")


class Step(NamedTuple):
    stage: int
    word: str
    rest: str


def steps() -> list[Step]:
    text = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text())
    stage, found = 0, []
    for line in filter(None, (line.partition("# ")[0].strip() for line in text.splitlines())):
        word, _, rest = line.partition(" ")
        stage += word == "FROM"
        found.append(Step(stage, word, rest.strip()))
    return found


def last_stage() -> list[Step]:
    return [step for step in steps() if step.stage == max(step.stage for step in steps())]


def test_the_last_stage_runs_nothing_and_runs_as_nobody() -> None:
    words = [step.word for step in last_stage()]
    assert "RUN" not in words
    assert [step.rest for step in last_stage() if step.word == "USER"] == ["65532:65532"]
    assert [step.rest for step in last_stage() if step.word == "COPY"] == [
        "--from=build /opt/ferrule /opt/ferrule"
    ]
    assert [step.rest for step in last_stage() if step.word == "ENTRYPOINT"] == ['["ferrule"]']
    assert "slim" in next(step.rest for step in steps() if step.word == "ARG")


def test_only_what_is_copied_enters_the_build() -> None:
    copied = {
        source
        for step in steps()
        if step.word == "COPY" and "--from" not in step.rest
        for source in step.rest.split()[:-1]
    }
    allowed = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(
    not WANTED, reason="builds the extension from nothing, for minutes: make test-image"
)
def test_its_steps_give_a_program_that_runs(tmp_path: Path) -> None:
    source, places = (
        tmp_path / "src",
        {"/opt": str(tmp_path / "opt"), "python -m": f"{sys.executable} -m"},
    )
    (tmp_path / "opt").mkdir()
    source.mkdir()
    for step in steps():
        if step.word == "COPY" and "--from" not in step.rest:
            copy(step.rest.split()[:-1], source)
        if step.word == "RUN" and not step.rest.startswith("apt-get"):
            command = re.sub(
                "|".join(map(re.escape, places)), lambda found: places[found[0]], step.rest
            )
            environment = {**os.environ, "CARGO_TARGET_DIR": str(tmp_path / "target")}
            subprocess.run(
                command, shell=True, check=True, cwd=source, env=environment, timeout=1200
            )
    ferrule = tmp_path / "opt/ferrule/bin/ferrule"
    environment = {"PATH": str(ferrule.parent)}
    done = subprocess.run(
        [ferrule, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=tmp_path,
        timeout=60,
    )
    assert "serve" in done.stdout
    core = "from ferrule import _core; print(len(_core.rank(b'session', [('a', 1.0), ('b', 1.0)])))"
    done = subprocess.run(
        [ferrule.parent / "python", "-c", core],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.stdout.strip() == "2"


def copy(sources: list[str], target: Path) -> None:
    for name in sources:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source,
                target / name,
                ignore=shutil.ignore_patterns(
                    "target", "__pycache__", "*.so", "corpus", "artifacts"
                ),
            )
        else:
            shutil.copy(source, target / name)
