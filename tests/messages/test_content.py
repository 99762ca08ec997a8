"""Each block type and its treatment."""

from __future__ import annotations

from typing import Any

import pytest
from tests.messages.requests import (
    EVERY_DIALECT,
    PNG,
    PNG_PART,
    ask,
    assistant,
    policy,
    refusal,
    result,
    system,
    text,
    translated,
    user,
)

HIT = {
    "type": "search_result",
    "source": "https://e.org",
    "title": "T",
    "content": [text("one"), text("two")],
}


def said(*blocks: Any, **settings: Any) -> Any:
    """The content of the one user message that these blocks become; None when nothing is left."""
    return (
        translated([user(*blocks, text("."))], policy(**settings))[0]["content"]
        .removesuffix(".")
        .removesuffix("\n\n")
        or None
    )


@pytest.mark.parametrize(
    ("block", "becomes"),
    [
        (text("a"), "a"),
        (text(""), None),
        ({"type": "text"}, None),
        ({"type": "text", "text": None}, None),
        (HIT, "Search result: T\nSource: https://e.org\n\none\n\ntwo"),
        ({"type": "search_result", "content": []}, None),
        (
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "D"},
            },
            "D",
        ),
        (
            {
                "type": "document",
                "title": "T",
                "context": "C",
                "source": {"type": "text", "data": "D"},
            },
            "Document: T\n\nContext: C\n\nD",
        ),
        (
            {"type": "document", "title": "T", "source": {"type": "content", "content": "D"}},
            "Document: T\n\nD",
        ),
        (
            {"type": "document", "source": {"type": "content", "content": [text("a"), text("b")]}},
            "a\n\nb",
        ),
        ({"type": "document", "source": {"type": "text", "data": ""}}, None),
        ({"type": "tool_reference", "tool_name": "F"}, "Tool F is now available."),
        (
            {"type": "container_upload", "file_id": "f"},
            "[uploaded file omitted: there are no stored files here]",
        ),
        ({"type": "compaction", "content": "so far"}, "so far"),
        ({"type": "compaction", "content": None, "encrypted_content": "x"}, None),
        ({"type": "redacted_thinking", "data": "x"}, None),
        ({"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}, None),
        ({"type": "mcp_tool_listing", "mcp_server_name": "x", "tools": [1]}, None),
        ({"type": "connector_text", "text": "c"}, "c"),
        ({"type": "from_the_future", "title": {"a": 1}, "url": 5}, None),
    ],
)
def test_a_block_in_a_user_turn(block: dict[str, Any], becomes: str | None) -> None:
    assert said(block) == becomes


@pytest.mark.parametrize("dialect", EVERY_DIALECT)
def test_d05_plain_text_documents_become_text_in_every_dialect(dialect: str) -> None:
    documents = [
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "D"}},
        {"type": "document", "source": {"type": "content", "content": "D"}},
        {"type": "document", "source": {"type": "content", "content": [text("D")]}},
    ]
    for document in documents:
        assert said(document, dialect=dialect) == "D"
        assert (
            translated([user(result("c1", [document]))], policy(dialect))[0]["content"]
            == "[Result of tool call c1]\n\nD"
        )


def test_a_document_of_parts_keeps_its_images() -> None:
    document = {
        "type": "document",
        "title": "T",
        "source": {"type": "content", "content": [text("a"), PNG]},
    }
    assert translated([user(document)], policy(images=True)) == [
        {"role": "user", "content": [text("Document: T"), text("a"), PNG_PART]}
    ]


def test_unknown_blocks_are_reported_under_a_safe_name() -> None:
    assert ask(
        messages=[user(text("a"), {"type": "from_the_future"}, {"type": "x\r\ny: z"})]
    ).dropped == ("from_the_future", "unknown")


@pytest.mark.parametrize(
    ("block", "becomes"),
    [
        (
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
            '[web_search: {"query":"x"}]',
        ),
        (
            {
                "type": "web_search_tool_result",
                "content": [
                    {
                        "type": "web_search_result",
                        "url": "u",
                        "title": "t",
                        "encrypted_content": "x",
                    }
                ],
            },
            "[web_search result]\nt: u",
        ),
        (
            {
                "type": "web_search_tool_result",
                "content": {
                    "type": "web_search_tool_result_error",
                    "error_code": "max_uses_exceeded",
                },
            },
            "[web_search result]\nerror: max_uses_exceeded",
        ),
        (
            {
                "type": "web_fetch_tool_result",
                "content": {
                    "type": "web_fetch_result",
                    "url": "u",
                    "content": {"type": "document", "source": {"type": "text", "data": "D"}},
                },
            },
            "[web_fetch result]\nu\nD",
        ),
        (
            {
                "type": "code_execution_tool_result",
                "content": {
                    "type": "code_execution_result",
                    "stdout": "o",
                    "stderr": "e",
                    "return_code": 1,
                    "content": [],
                },
            },
            "[code_execution result]\no\ne\nexit status 1",
        ),
        (
            {
                "type": "tool_search_tool_result",
                "content": {
                    "type": "tool_search_tool_search_result",
                    "tool_references": [{"type": "tool_reference", "tool_name": "F"}],
                },
            },
            "[tool_search result]\nTool F is now available.",
        ),
        (
            {"type": "advisor_tool_result", "content": {"type": "advisor_result", "text": "hm"}},
            "[advisor result]\nhm",
        ),
    ],
)
def test_what_servers_once_did_becomes_text(block: dict[str, Any], becomes: str) -> None:
    assert (
        translated([user("q"), assistant(block, text("a")), user("go")])[1]["content"]
        == f"{becomes}\n\na"
    )


def test_results_nested_without_end_are_cut() -> None:
    nested: Any = "deep"
    for _ in range(100):
        nested = [{"type": "web_search_result", "content": nested}]
    block = {"type": "web_search_tool_result", "content": nested}
    assert (
        translated([user("q"), assistant(block), user("go")])[1]["content"] == "[web_search result]"
    )


@pytest.mark.parametrize("place", ["user", "assistant", "system"])
def test_texts_of_another_type_are_refused_with_their_place(place: str) -> None:
    message = {"user": user, "assistant": assistant, "system": system}[place](
        text("a"), {"type": "text", "text": 5}
    )
    assert refusal(messages=[user("hi"), message]) == "messages.1.content.1.text: must be a string"
