"""Reads plain values into typed settings: refuses unknown keys, wrong types and ranges, expands
`${NAME}`, and reports every problem with its path.

Follows the Structs' annotations, so there is no second list of settings. `rules` checks values
against each other.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from ferrule.config.problems import Problem, join_path

Parser = Callable[[object], object]
S = TypeVar("S", bound=msgspec.Struct)

_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TYPE_NAMES = {
    "object": "a mapping",
    "array": "a list",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "null": "null",
}


class StructReader:
    """Reads one document. `parsers`: for types that are written as text. Problems are collected in
    `problems`."""

    def __init__(self, environment: Mapping[str, str], parsers: Mapping[type, Parser]) -> None:
        self.problems: list[Problem] = []
        self._environment = environment
        self._parsers = parsers

    def read_struct(self, kind: type[S], value: object, path: str) -> S | None:
        """A Struct from a mapping; an empty section has its defaults. None if there was a problem
        at or below `path`."""
        if value is None:
            value = {}
        if not isinstance(value, dict):
            self._report(path, f"expected {_TYPE_NAMES['object']}, got {_describe_type(value)}")
            return None
        before = len(self.problems)
        hints = get_type_hints(kind, include_extras=True)
        self._refuse_unknown(list(hints), value, path)
        filled = {
            name: self._read(hints[name], value[name], join_path(path, name))
            for name in hints
            if name in value
        }
        for field in msgspec.structs.fields(kind):
            if field.required and field.name not in value:
                self._report(join_path(path, field.name), "is required")
        return None if len(self.problems) > before else kind(**filled)

    def _read(self, kind: Any, value: object, path: str) -> Any:
        if get_origin(kind) in (Union, UnionType) and self._is_walked(_without_none(kind)):
            return None if value is None else self._read(_without_none(kind), value, path)
        if kind in self._parsers:
            return self._parse(self._parsers[kind], value, path)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self.read_struct(kind, value, path)
        arguments = get_args(kind)
        if get_origin(kind) is tuple and self._is_walked(arguments[0]):
            return self._read_list(arguments[0], value, path)
        if get_origin(kind) is dict and self._is_walked(arguments[1]):
            return self._read_mapping(arguments[1], value, path)
        return self._convert(kind, value, path)

    def _is_walked(self, kind: Any) -> bool:
        return kind in self._parsers or (
            isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        )

    def _read_list(self, kind: Any, value: object, path: str) -> Any:
        if value is None:
            return ()
        if not isinstance(value, list):
            return self._report(
                path, f"expected {_TYPE_NAMES['array']}, got {_describe_type(value)}"
            )
        return tuple(
            self._read(kind, item, join_path(path, index)) for index, item in enumerate(value)
        )

    def _read_mapping(self, kind: Any, value: object, path: str) -> Any:
        if value is None:
            return {}
        if not isinstance(value, dict):
            return self._report(
                path, f"expected {_TYPE_NAMES['object']}, got {_describe_type(value)}"
            )
        return {
            str(name): self._read(kind, item, join_path(path, name)) for name, item in value.items()
        }

    def _parse(self, parser: Parser, value: object, path: str) -> Any:
        expanded = self._expand(value, path)
        if expanded is _MISSING:
            return None
        try:
            return parser(expanded)
        except ValueError as error:
            return self._report(path, str(error))

    def _convert(self, kind: Any, value: object, path: str) -> Any:
        expanded = self._expand(value, path)
        if expanded is _MISSING:
            return None
        try:
            # Text from the environment may be a number; text in the file must not.
            return msgspec.convert(expanded, kind, strict=expanded == value)
        except msgspec.ValidationError as error:
            message, _, inner = str(error).partition(" - at `$")
            return self._report(
                path + inner.rstrip("`").replace("[", ".").replace("]", ""), _reword(message, kind)
            )

    def _expand(self, value: object, path: str) -> object:
        if isinstance(value, str):
            return self._expand_text(value, path) if "${" in value else value
        if isinstance(value, list):
            items = [self._expand(item, join_path(path, index)) for index, item in enumerate(value)]
            return _MISSING if _MISSING in items else items
        if isinstance(value, dict):
            entries = {
                name: self._expand(item, join_path(path, name)) for name, item in value.items()
            }
            return _MISSING if _MISSING in entries.values() else entries
        return value

    def _expand_text(self, text: str, path: str) -> object:
        parts: list[str] = []
        end = 0
        for match in _VARIABLE.finditer(text):
            name = match.group(1)
            if not _NAME.fullmatch(name):
                return self._report(
                    path,
                    f"expected ${{NAME}} with the name of an environment variable, got ${{{name}}}",
                    _MISSING,
                )
            if name not in self._environment:
                return self._report(path, f"environment variable {name} is not set", _MISSING)
            parts += [text[end : match.start()], self._environment[name]]
            end = match.end()
        return "".join(parts) + text[end:]

    def _refuse_unknown(self, known: list[str], value: Mapping[object, object], path: str) -> None:
        for name in value:
            if name not in known:
                close = difflib.get_close_matches(str(name), known, n=1)
                hint = (
                    f"did you mean {close[0]}?"
                    if close
                    else f"expected one of {', '.join(sorted(known))}"
                )
                self._report(join_path(path, name), f"unknown setting; {hint}")

    def _report(self, path: str, message: str, result: object = None) -> Any:
        self.problems.append(Problem(path, message))
        return result


_MISSING = object()


def _without_none(kind: Any) -> Any:
    rest = [argument for argument in get_args(kind) if argument is not NoneType]
    return rest[0] if len(rest) == 1 else kind


def _describe_type(value: object) -> str:
    names = {dict: "object", list: "array", NoneType: "null"}
    return _TYPE_NAMES.get(names.get(type(value), type(value).__name__), type(value).__name__)


def _reword(message: str, kind: Any) -> str:
    """msgspec's message in YAML's terms."""
    if message.startswith("Invalid enum value"):
        return f"expected one of {', '.join(_list_choices(kind))}"
    words = re.sub(r"`([a-z| ]+)`", lambda match: _reword_types(match.group(1)), message)
    return words[:1].lower() + words[1:]


def _reword_types(names: str) -> str:
    return " or ".join(_TYPE_NAMES.get(name.strip(), name.strip()) for name in names.split("|"))


def _list_choices(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    return [choice for argument in get_args(kind) for choice in _list_choices(argument)]
