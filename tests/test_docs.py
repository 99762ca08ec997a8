"""Documents agree with the tree: test numbers, links, and the table of dialect settings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from ferrule.dialects import DIALECTS

ROOT = Path(__file__).parents[1]
CASES = ROOT / "docs" / "cases.md"

_ID = r"(?:[a-z]\d\d|assertion_\d\d)"
_LEADING_IDS = re.compile(rf"(?:{_ID}_)+")
"""What a numbered name begins with; a test may carry several (`i05_j09_…`)."""
_RUST_NAME = re.compile(r"\bfn (\w+)")
_ROW = re.compile(rf"^\| ({_ID}) \|")

_CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)")
_HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)


def is_ours(path: Path) -> bool:
    """Not built, installed or cached."""
    parts = path.relative_to(ROOT).parts
    return not any(part in ("target", "node_modules") or part.startswith(".") for part in parts)


def ids_of(name: str) -> list[str]:
    """`a01_tool_arguments` → `a01`; nothing for a name without a number."""
    leading = _LEADING_IDS.match(name)
    return re.findall(_ID, leading[0]) if leading else []


def names_in_python() -> Iterator[str]:
    """Test functions, and texts that name a parameter set (`j05_error-first`)."""
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name.removeprefix("test_")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def names_in_rust() -> Iterator[str]:
    for path in (ROOT / "rust").rglob("*.rs"):
        if is_ours(path):
            yield from _RUST_NAME.findall(path.read_text())


def names_of_transcripts() -> Iterator[str]:
    yield from (path.name for path in (ROOT / "tests" / "transcripts").iterdir())


def carried() -> set[str]:
    names = [*names_in_python(), *names_in_rust(), *names_of_transcripts()]
    return {found for name in names for found in ids_of(name)}


def documented() -> list[str]:
    rows = map(_ROW.match, CASES.read_text().splitlines())
    return [row[1] for row in rows if row]


def test_ids_are_read_from_names() -> None:
    assert ids_of("a01_tool_arguments_after_text") == ["a01"]
    assert ids_of("i05_j09_what_is_not_the_backends_fault") == ["i05", "j09"]
    assert ids_of("assertion_14_placeholder") == ["assertion_14"]
    assert ids_of("sdk_075") == ids_of("a_client_that_leaves") == []


def test_every_number_in_a_test_name_is_explained() -> None:
    assert sorted(carried() - set(documented())) == []


def test_every_explained_number_has_a_test() -> None:
    assert sorted(set(documented()) - carried()) == []


def test_numbers_are_explained_once_and_in_order() -> None:
    assert documented() == sorted(set(documented()), key=lambda id_: (len(id_), id_))


def documents() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.md")) if is_ours(path)]


def anchors_of(document: Path) -> set[str]:
    """As hosting sites make them: lower case, blanks as dashes, no punctuation."""
    headings = _HEADING.findall(document.read_text())
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def leads_somewhere(document: Path, link: str) -> bool:
    file, _, anchor = link.partition("#")
    target = document.parent / file if file else document
    return target.exists() and (not anchor or anchor in anchors_of(target))


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_to_files_and_headings(document: Path) -> None:
    links = _LINK.findall(_CODE.sub("", document.read_text()))
    relative = [link for link in links if not re.match(r"[a-z][a-z+.-]*:", link)]
    assert [link for link in relative if not leads_somewhere(document, link)] == []


def settings_table() -> dict[str, list[str]]:
    """Name of a setting → its cells, one a dialect."""
    lines = (ROOT / "docs" / "dialects.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0].strip("` "): row[2:] for row in rows if len(row) == 2 + len(DIALECTS)}


def shown(value: object) -> set[str]:
    """How a value may begin in its cell; empty for texts and lists, which are not compared."""
    match value:
        case None:
            return {"–", "all"}
        case bool():
            return {"yes" if value else "no"}
        case int() | float():
            return {f"{value:,}"}
        case str() if re.fullmatch(r"[a-z_]+", value):
            return {f"`{value}`"}
    return set()


def test_the_table_of_settings_is_what_the_code_has() -> None:
    table = settings_table()
    names = {field.name for field in msgspec.structs.fields(DIALECTS["anthropic"])} - {"name"}
    assert set(table) - {"setting"} == names
    wrong = [
        (setting, dialect, cell)
        for setting in sorted(names)
        for (dialect, values), cell in zip(DIALECTS.items(), table[setting], strict=True)
        if (wanted := shown(getattr(values, setting))) and not cell.startswith(tuple(wanted))
    ]
    assert wrong == []
