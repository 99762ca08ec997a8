"""The YAML that is accepted, and files that would exhaust the reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrule.config.document import DEPTH_LIMIT, SIZE_LIMIT_BYTES, parse_document, read_document
from ferrule.config.problems import ConfigError


def parse_invalid(text: bytes) -> str:
    with pytest.raises(ConfigError) as raised:
        parse_document(text, "f.yaml")
    return str(raised.value)


def test_plain_values() -> None:
    assert parse_document(b"a: [1, x, null, true, 1.5]\nb: {c: d}\n", "f") == {
        "a": [1, "x", None, True, 1.5],
        "b": {"c": "d"},
    }
    assert parse_document("a: 北".encode(), "f") == {"a": "北"}
    assert parse_document(b"\xef\xbb\xbfa: 1", "f") == {"a": 1}
    assert parse_document(b"", "f") is None
    assert parse_document(b"a: &x [1]\nb: *x\n", "f") == {"a": [1], "b": [1]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a: 1\nb: 2\na: 3\n", "f.yaml: `a` is given twice (line 3, column 1)"),
        (b"x: {a: 1, a: 1}", "f.yaml: `a` is given twice (line 1, column 11)"),
        (
            b"a: &x {b: 1}\nc: {<<: *x}\n",
            "f.yaml: merge keys (<<) are not supported (line 2, column 5)",
        ),
        (b"a: [1", "f.yaml: expected ',' or ']', but got '<stream end>' (line 1, column 6)"),
        (b"a: 1\n---\nb: 1\n", "f.yaml: but found another document (line 2, column 1)"),
        (b"a: *nobody", "f.yaml: found undefined alias 'nobody' (line 1, column 4)"),
        (b"\xff\xfe\xff", "f.yaml: expected UTF-8"),
        (b"a: \x00", "f.yaml: expected YAML"),
        (b"a: 2020-13-45", "f.yaml: expected YAML"),
        (b"? [a]\n: 1", "f.yaml: found unhashable key (line 1, column 3)"),
        (b"#" * (SIZE_LIMIT_BYTES + 1), f"f.yaml: expected at most {SIZE_LIMIT_BYTES} bytes"),
    ],
)
def test_refusals_have_a_position(text: bytes, message: str) -> None:
    assert parse_invalid(text) == message


def test_tags_build_nothing() -> None:
    assert "could not determine a constructor" in parse_invalid(
        b"a: !!python/object/apply:os.getcwd []"
    )


def test_aliases_do_not_explode() -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(
        f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 25)
    )
    assert "expected at most" in parse_invalid(bomb.encode())


def test_an_alias_of_itself_ends() -> None:
    assert f"expected at most {DEPTH_LIMIT} levels" in parse_invalid(b"a: &a [*a]")


@pytest.mark.parametrize(
    "text",
    [b"[" * 100, b"[" * 50_000 + b"]" * 50_000, b"{a: " * 50_000],
    ids=["open", "lists", "mappings"],
)
def test_depth_does_not_break_the_reader(text: bytes) -> None:
    assert parse_invalid(text).startswith("f.yaml: ")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_document(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_document(tmp_path)
