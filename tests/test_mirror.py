"""Tests mirror the source: every module has a test of its own name in the same place, or a reason
why it needs none."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "python" / "ferrule"

WITHOUT = {
    "__main__.py": "runs cli.main, which tests/e2e starts as a user does",
    "demo.py": "tests/e2e/test_lifecycle.py runs it",
    "admission/stores/lua.py": "scripts for Redis, run by tests/admission/stores/test_redis.py",
    "admission/stores/memory.py": "held to the same rules as the others by tests/admission/stores/test_contract.py",
    "gateway/state.py": "fields and no decisions",
    "sim/engine.py": "tests/sim/test_server.py asks it over the wire, as clients do",
    "sim/faults.py": "tests/sim/test_server.py plays each",
    "sim/stream.py": "tests/sim/test_server.py reads it",
    "sim/wire.py": "tests/sim/test_server.py reads it",
    "telemetry/request_record.py": "fields and no decisions; tests/telemetry/test_recorder.py counts them",
}


def modules() -> list[str]:
    found = (path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))
    return sorted(str(path) for path in found if path.name != "__init__.py")


@pytest.mark.parametrize("module", modules())
def test_a_module_has_its_test(module: str) -> None:
    path = Path(module)
    has_test = (ROOT / "tests" / path.parent / f"test_{path.name}").exists()
    assert has_test != (module in WITHOUT), WITHOUT.get(
        module, f"no tests/{path.parent}/test_{path.name}"
    )


def test_the_exceptions_exist() -> None:
    assert set(WITHOUT) <= set(modules())
