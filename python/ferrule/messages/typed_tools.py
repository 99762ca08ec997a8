"""Tools that have a type instead of a schema: those a client runs get a schema made here, those
Anthropic's servers run have none."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

_DATE = re.compile(r"_\d{8}$")

# server tools that only find other tools: without them the client's own are still there
TOOL_SEARCH_FAMILIES = frozenset({"tool_search_tool_bm25", "tool_search_tool_regex"})


class TypedTool(msgspec.Struct, frozen=True):
    """A client's own tool of a well-known kind, as a function."""

    name: str
    description: msgspec.Raw
    parameters: msgspec.Raw


def _raw(schema: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(schema))


def _text(description: str) -> dict[str, object]:
    return {"type": "string", "description": description}


def _line_range(description: str) -> dict[str, object]:
    return {
        "type": "array",
        "items": {"type": "integer"},
        "minItems": 2,
        "maxItems": 2,
        "description": description,
    }


_EDIT_FIELDS: dict[str, object] = {
    "path": _text("Absolute path of a file or directory"),
    "file_text": _text("The content of the new file, for create"),
    "old_str": _text("The text to be replaced, for str_replace; it must occur exactly once"),
    "new_str": _text("The text to put in its place, for str_replace"),
    "insert_line": {
        "type": "integer",
        "description": "The line after which to insert; 0 is the start of the file",
    },
    "insert_text": _text("The text to insert, for insert"),
    "view_range": _line_range("First and last line to show, for view; -1 is the end of the file"),
}


def _editor(name: str, commands: list[str]) -> TypedTool:
    command = {"type": "string", "enum": commands, "description": "What to do"}
    schema = {
        "type": "object",
        "properties": {"command": command, **_EDIT_FIELDS},
        "required": ["command", "path"],
    }
    return TypedTool(name, _raw("View, create and edit text files."), _raw(schema))


_BASH = TypedTool(
    "bash",
    _raw("Run a command in a persistent bash session."),
    _raw(
        {
            "type": "object",
            "properties": {
                "command": _text("The command to run"),
                "restart": {
                    "type": "boolean",
                    "description": "Restart the session instead of running a command",
                },
            },
        }
    ),
)

_MEMORY = TypedTool(
    "memory",
    _raw("Keep notes in files under /memories that outlast the conversation."),
    _raw(
        {
            "type": "object",
            "properties": {
                "command": {
                    "type": "string",
                    "enum": ["view", "create", "str_replace", "insert", "delete", "rename"],
                },
                **_EDIT_FIELDS,
                "old_path": _text("The path to rename, for rename"),
                "new_path": _text("The new path, for rename"),
            },
            "required": ["command"],
        }
    ),
)

_OLD_EDITOR = _editor(
    "str_replace_editor", ["view", "create", "str_replace", "insert", "undo_edit"]
)
_EDITOR = _editor("str_replace_based_edit_tool", ["view", "create", "str_replace", "insert"])

CLIENT_TOOLS: Mapping[str, TypedTool] = {
    "bash_20241022": _BASH,
    "bash_20250124": _BASH,
    "text_editor_20241022": _OLD_EDITOR,
    "text_editor_20250124": _OLD_EDITOR,
    "text_editor_20250429": _EDITOR,
    "text_editor_20250728": _EDITOR,
    "memory_20250818": _MEMORY,
}


def family(tool_type: str) -> str:
    """`web_search_20250305` → `web_search`."""
    return _DATE.sub("", tool_type)
