"""PDFs become text where that is wanted; a broken one becomes a note, never an error."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from tests.messages.requests import answered, assistant, call, policy, raw, result, user

from ferrule.messages import Policy, decode, documents, text_of, tokenize_body, translate
from ferrule.messages.documents import PDF_PAGES_MAX, TEXT_CHARS_MAX, text_of_pdf

NOTE = "[document omitted: this model reads text only]"


def pdf(*pages: str) -> bytes:
    """A PDF with one line of text a page."""
    kids = " ".join(f"{4 + 2 * index} 0 R" for index in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for index, words in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({words}) Tj ET"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * index} 0 R "
            f"/Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    data, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(data))
        data += f"{number} 0 obj\n{content}\nendobj\n".encode()
    rows = "".join(f"{place:010d} 00000 n \n" for place in places)
    size = len(objects) + 1
    table = (
        f"xref\n0 {size}\n0000000000 65535 f \n{rows}trailer\n<< /Size {size} /Root 1 0 R "
        f">>\nstartxref\n{len(data)}\n%%EOF"
    )
    return data + table.encode()


def document(data: bytes, **more: Any) -> dict[str, Any]:
    source = {
        "type": "base64",
        "media_type": "application/pdf",
        "data": base64.b64encode(data).decode(),
    }
    return {"type": "document", "source": source, **more}


def resolved(under: Policy, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    request = decode(raw(messages=list(messages)))
    request = documents.resolve(request, documents.read(documents.pending(request, under)))
    conversation: list[dict[str, Any]] = json.loads(translate(request, under, "m").body)["messages"]
    return conversation


def test_the_text_of_all_pages() -> None:
    assert text_of_pdf(pdf("Hello", "World")) == "Hello\n\nWorld"


@pytest.mark.parametrize(
    "data",
    [b"", b"%PDF", b"JVBE", b"%PDF-1.4\n" + b"\x00" * 100, pdf("Hello")[:200], pdf(""), b"<html>"],
)
def test_what_cannot_be_read_has_no_text(data: bytes) -> None:
    assert text_of_pdf(data) is None


def test_too_many_pages() -> None:
    assert text_of_pdf(pdf(*["x"] * PDF_PAGES_MAX)) is not None
    assert text_of_pdf(pdf(*["x"] * (PDF_PAGES_MAX + 1))) is None


def test_too_much_text_is_cut() -> None:
    text = text_of_pdf(pdf(*["x" * (TEXT_CHARS_MAX // 2)] * 4))
    assert text is not None
    assert text.count("x") == TEXT_CHARS_MAX


def test_a_pdf_becomes_its_text_with_title_and_context() -> None:
    said = resolved(
        policy(),
        user(document(pdf("Hello"), title="T", context="C"), {"type": "text", "text": "sum up"}),
    )
    assert said == [{"role": "user", "content": "Document: T\n\nContext: C\n\nHello\n\nsum up"}]


def test_a_pdf_inside_a_tool_result() -> None:
    said = resolved(
        policy(),
        user("go"),
        assistant(call("c1")),
        user(result("c1", [{"type": "text", "text": "read:"}, document(pdf("Hello"))])),
    )
    assert said[2] == answered("c1", "read:\nHello")


def test_two_pdfs_keep_their_places() -> None:
    said = resolved(
        policy(), user(document(pdf("one")), document(b"%PDF broken"), document(pdf("two")))
    )
    assert said == [{"role": "user", "content": f"one\n\n{NOTE}\n\ntwo"}]


def test_one_that_was_not_read_is_a_note() -> None:
    request = decode(raw(messages=[user(document(pdf("Hello")))]))
    for one in (request, documents.resolve(request, {})):
        assert json.loads(translate(one, policy(), "m").body)["messages"][0]["content"] == NOTE


@pytest.mark.parametrize(
    ("dialect", "images", "wanted"),
    [
        ("anthropic", False, True),
        ("tokenify", False, True),
        ("token-factory", True, True),
        ("token-factory", False, False),
        ("pooled", True, False),
    ],
)
def test_pdfs_are_read_where_their_text_is_used(dialect: str, images: bool, wanted: bool) -> None:
    request = decode(raw(messages=[user(document(pdf("Hello")))]))
    pending = documents.pending(request, policy(dialect, images=images))
    assert [one.path for one in pending] == (["messages.0.content.0"] if wanted else [])


def test_nothing_to_read() -> None:
    plain = {"type": "document", "source": {"type": "text", "data": "D"}}
    request = decode(
        raw(
            messages=[
                user("a"),
                user(
                    plain,
                    result("c1", "r"),
                    {"type": "document", "source": {"type": "url", "url": "u"}},
                ),
            ]
        )
    )
    assert documents.pending(request, policy()) == []
    assert documents.read([documents.Pending("p", b'"!"')]) == {}


def test_a_client_cannot_bring_the_extracted_text_along() -> None:
    request = decode(
        raw(messages=[user(document(b"%PDF"))], documents={"messages.0.content.0": "x"})
    )
    assert json.loads(translate(request, policy(), "m").body)["messages"][0]["content"] == NOTE


def test_extracted_texts_are_counted() -> None:
    request = decode(raw(messages=[user(document(pdf("Hello")))]))
    request = documents.resolve(request, documents.read(documents.pending(request, policy())))
    assert text_of(request) == ["Hello"]
    assert b"Hello" in tokenize_body(request, policy())
