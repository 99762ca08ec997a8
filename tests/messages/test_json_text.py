"""Literals behave as the texts they spell."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import InvalidRequest
from ferrule.messages.json_text import NOTHING, join, quote, string_in, unquote, wrap

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXTS)
def test_there_and_back(text: str) -> None:
    assert unquote(quote(text)) == text == json.loads(quote(text))


@given(st.lists(TEXTS, min_size=1))
def test_joining_literals_is_joining_texts(texts: list[str]) -> None:
    assert unquote(join([quote(text) for text in texts])) == "\n\n".join(texts)
    assert unquote(join([json.dumps(text).encode() for text in texts])) == "\n\n".join(texts)


@given(TEXTS)
def test_wrapping(text: str) -> None:
    assert unquote(wrap(rb"<\n", quote(text), b">")) == f"<\n{text}>"


@pytest.mark.parametrize(("raw", "literal"), [(b'"a"', b'"a"'), (b'""', None), (b"null", None)])
def test_strings_in_opaque_members(raw: bytes, literal: bytes | None) -> None:
    assert string_in(msgspec.Raw(raw), "p", "text") == literal
    assert string_in(NOTHING, "p", "text") is None


@pytest.mark.parametrize("raw", [b"5", b"[]", b"{}", b"true"])
def test_members_that_are_no_strings(raw: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        string_in(msgspec.Raw(raw), "messages.0.content.1", "text")
    assert caught.value.message == "messages.0.content.1.text: must be a string"
