"""Typed tools that a client runs itself, offered as functions."""

from __future__ import annotations

import pytest
from tests.messages.requests import upstream

from ferrule.messages.typed_tools import CLIENT_TOOLS, family


@pytest.mark.parametrize(
    ("type_", "name", "required"),
    [
        ("bash_20250124", "bash", None),
        ("bash_20241022", "bash", None),
        ("text_editor_20250124", "str_replace_editor", ["command", "path"]),
        ("text_editor_20250429", "str_replace_based_edit_tool", ["command", "path"]),
        ("text_editor_20250728", "str_replace_based_edit_tool", ["command", "path"]),
        ("memory_20250818", "memory", ["command"]),
    ],
)
def test_each_is_offered_with_its_schema(type_: str, name: str, required: list[str] | None) -> None:
    for tool in (
        {"type": type_, "name": name},
        {"type": type_, "max_characters": 9, "cache_control": None},
    ):
        function = upstream(tools=[tool])["tools"][0]["function"]
        assert (function["name"], function["parameters"].get("required")) == (name, required)
        assert "command" in function["parameters"]["properties"]


def test_the_editor_has_all_its_fields() -> None:
    fields = upstream(tools=[{"type": "text_editor_20250728", "name": "e"}])["tools"][0][
        "function"
    ]["parameters"]["properties"]
    assert set(fields) == {
        "command",
        "path",
        "file_text",
        "old_str",
        "new_str",
        "insert_line",
        "insert_text",
        "view_range",
    }
    assert "undo_edit" not in fields["command"]["enum"]


def test_one_of_them_may_be_insisted_on() -> None:
    sent = upstream(tools=[{"type": "bash_20250124"}], tool_choice={"type": "tool", "name": "bash"})
    assert sent["tool_choice"]["function"]["name"] == "bash"


def test_families() -> None:
    assert [
        family(name) for name in ("web_search_20250305", "tool_search_tool_bm25", "mcp_toolset")
    ] == [
        "web_search",
        "tool_search_tool_bm25",
        "mcp_toolset",
    ]
    assert {family(name) for name in CLIENT_TOOLS} == {"bash", "text_editor", "memory"}
