"""Reads YAML into plain values: bounded in size, nodes and depth, without duplicate keys, and
without tags that construct objects.

Knows nothing of settings. Merge keys (`<<`) are refused: with them a small file can grow huge while
it is constructed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import yaml

from ferrule.config.problems import ConfigError, Problem

SIZE_LIMIT_BYTES = 4 * 1024 * 1024
NODE_LIMIT = 500_000
DEPTH_LIMIT = 32


def read_document(path: Path) -> object:
    """The file's values. Raises ConfigError if it cannot be read or parsed."""
    try:
        with path.open("rb") as file:
            text = file.read(SIZE_LIMIT_BYTES + 1)
    except OSError as error:
        raise ConfigError([Problem("", f"cannot be read: {error.strerror}")], str(path)) from None
    return parse_document(text, str(path))


def parse_document(text: bytes, source: str) -> object:
    """`text`: UTF-8, with or without a BOM; `source` names it in problems. Raises ConfigError."""
    if len(text) > SIZE_LIMIT_BYTES:
        raise ConfigError([Problem("", f"expected at most {SIZE_LIMIT_BYTES} bytes")], source)
    try:
        loader = _Loader(text.decode("utf-8-sig"))
        node = loader.get_single_node()
        if node is None:
            return None
        _check_extent(node)
        return loader.construct_document(node)
    except UnicodeDecodeError:
        raise ConfigError([Problem("", "expected UTF-8")], source) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ConfigError(
            [Problem("", f"{error.problem or error.context}{position}")], source
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError([Problem("", "expected YAML")], source) from None


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys (YAML silently takes the last) and `<<`."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, "merge keys (<<) are not supported", key.start_mark
                )

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"`{key.value}` is given twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _check_extent(root: yaml.Node) -> None:
    """Raises for too many nodes or levels, counted with aliases expanded, as later walks see
    them."""
    nodes = 0
    stack: list[tuple[yaml.Node, int]] = [(root, 1)]
    while stack:
        node, depth = stack.pop()
        nodes += 1
        if nodes > NODE_LIMIT:
            raise yaml.MarkedYAMLError(
                problem=f"expected at most {NODE_LIMIT} values", problem_mark=node.start_mark
            )
        if depth > DEPTH_LIMIT:
            raise yaml.MarkedYAMLError(
                problem=f"expected at most {DEPTH_LIMIT} levels", problem_mark=node.start_mark
            )
        stack.extend((child, depth + 1) for child in _children(node))


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key
            yield value
