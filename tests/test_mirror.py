"""Tests mirror the source both ways: every module has a test of its own name in the same place, and
every test there has its module, or a reason why not."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "python" / "ferrule"
TESTS = ROOT / "tests"
CORE = ROOT / "rust" / "core" / "src"

WITHOUT_TEST = {
    "__main__.py": "runs cli.main, which tests/e2e starts as a user does",
    "demo.py": "tests/e2e/test_lifecycle.py runs it",
    "admission/stores/lua.py": "scripts for Redis, run by tests/admission/stores/test_redis.py",
    "admission/stores/memory.py": "held to the rules of all stores by test_contract.py beside it",
    "gateway/state.py": "fields and no decisions",
    "sim/engine.py": "tests/sim/test_server.py asks it over the wire, as clients do",
    "sim/faults.py": "tests/sim/test_server.py plays each",
    "sim/stream.py": "tests/sim/test_server.py reads it",
    "sim/wire.py": "tests/sim/test_server.py reads it",
    "telemetry/request_record.py": "fields and no decisions; test_recorder.py counts them",
}

WITHOUT_MODULE = {
    "test_core.py": "the extension, which `_core.pyi` documents",
    "test_docs.py": "the documents",
    "test_mirror.py": "this rule",
    "test_transcripts.py": "golden cases, through the extension",
    "admission/stores/test_contract.py": "what every store must do",
    "messages/test_dialect_table.py": "the whole way of a request, by dialect",
    "messages/test_properties.py": "the whole way of a request, with random ones",
    "messages/test_recordings.py": "the whole way of a request, with recorded ones",
    "routing/test_affinity.py": "`rank` of the extension",
    "telemetry/test_cardinality.py": "labels stay bounded in a running proxy",
    "telemetry/test_page.py": "page.html in a browser",
    "telemetry/test_page_live.py": "page.html in a browser, over a running proxy",
}
OTHER_KINDS = ("clients", "doubles", "e2e", "engines", "k8s", "resilience")
"""Directories of tests that are about no single module."""

CORE_WITHOUT_TEST = {
    "chunk/parse.rs": "chunk/tests.rs",
    "chunk/scan.rs": "chunk/tests.rs",
    "lib.rs": "names the modules",
}


def modules() -> list[str]:
    found = (path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))
    return sorted(str(path) for path in found if path.name != "__init__.py")


def mirrored_tests() -> list[str]:
    found = (path.relative_to(TESTS) for path in TESTS.rglob("test_*.py"))
    return sorted(str(path) for path in found if path.parts[0] not in OTHER_KINDS)


def core_files() -> list[str]:
    found = (path.relative_to(CORE) for path in CORE.rglob("*.rs"))
    return sorted(str(path) for path in found if "tests" not in path.with_suffix("").parts)


@pytest.mark.parametrize("module", modules())
def test_a_module_has_its_test(module: str) -> None:
    path = Path(module)
    has_test = (TESTS / path.parent / f"test_{path.name}").exists()
    reason = WITHOUT_TEST.get(module, f"no tests/{path.parent}/test_{path.name}")
    assert has_test != (module in WITHOUT_TEST), reason


@pytest.mark.parametrize("test", mirrored_tests())
def test_a_test_has_its_module(test: str) -> None:
    """`test_balancer_properties.py` is about `balancer.py`."""
    path = Path(test)
    words = path.stem.removeprefix("test_").split("_")
    names = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
    has_module = any((SOURCE / path.parent / f"{name}.py").exists() for name in names)
    assert has_module != (test in WITHOUT_MODULE), WITHOUT_MODULE.get(test, f"nothing for {test}")


@pytest.mark.parametrize("file", core_files())
def test_a_file_of_the_core_has_its_test(file: str) -> None:
    has_test = "#[cfg(test)]" in (CORE / file).read_text()
    reason = CORE_WITHOUT_TEST.get(file, f"no tests in {file}")
    assert has_test != (file in CORE_WITHOUT_TEST), reason


def test_the_exceptions_exist() -> None:
    assert set(WITHOUT_TEST) <= set(modules())
    assert set(WITHOUT_MODULE) <= set(mirrored_tests())
    assert set(CORE_WITHOUT_TEST) <= set(core_files())
