"""Images and documents under each value of the media setting."""

from __future__ import annotations

from typing import Any

import pytest
from tests.messages.requests import (
    PDF,
    PNG,
    PNG_PART,
    policy,
    refusal,
    result,
    text,
    translated,
    user,
)

HOSTS = frozenset({"img.example.org"})


def url_image(url: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "url", "url": url}}


def test_a_base64_image_becomes_a_data_url() -> None:
    assert translated([user(text("see"), PNG)], policy(images=True)) == [
        {"role": "user", "content": [text("see"), PNG_PART]}
    ]


def test_urls_pass_for_known_hosts_only() -> None:
    under = policy(images=True, media_hosts=HOSTS)
    good = url_image("https://img.example.org/a.png")
    assert translated([user(good)], under)[0]["content"] == [
        {"type": "image_url", "image_url": {"url": "https://img.example.org/a.png"}}
    ]


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example.org/a.png",
        "https://img.example.org.evil.org/a.png",
        "https://img.example.org@evil.org/a.png",
        "http://169.254.169.254/latest",
        "file:///etc/passwd",
        "ftp://img.example.org/a.png",
        "//img.example.org/a.png",
        "https://[::1",
        "",
    ],
)
def test_other_urls_are_refused_naming_the_block(url: str) -> None:
    says = refusal(
        policy(images=True, media_hosts=HOSTS), messages=[user(text("see"), url_image(url))]
    )
    assert says.startswith("messages.0.content.1.source.url: must be ")
    assert refusal(
        policy(images=True), messages=[user(url_image("https://img.example.org/a.png"))]
    ).startswith("messages.0.content.0.source.url")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (None, "messages.0.content.0.source: must be an object"),
        ("x", "messages.0.content.0.source: must be an object"),
        (
            {"type": "file", "file_id": "f"},
            "messages.0.content.0.source.type: must be 'base64' or 'url'",
        ),
        (
            {"type": "base64", "media_type": "image/png"},
            "messages.0.content.0.source.data: must be the image in base64",
        ),
        (
            {"type": "base64", "media_type": "image/png", "data": 5},
            "messages.0.content.0.source.data: must be a string",
        ),
        (
            {"type": "base64", "media_type": "text/html", "data": "x"},
            "messages.0.content.0.source.media_type: must be one of image/gif",
        ),
    ],
)
def test_images_without_a_usable_source(source: Any, says: str) -> None:
    assert refusal(
        policy(images=True), messages=[user({"type": "image", "source": source})]
    ).startswith(says)


def test_d05_a_pdf_beside_a_result_is_never_a_schema_error() -> None:
    for dialect in ("pooled", "tokenify", "anthropic"):
        said = translated([user(result("c1", "r"), PDF)], policy(dialect))
        assert said[0]["content"].endswith("[document omitted: this model reads text only]")
    assert refusal(policy("token-factory"), messages=[user(result("c1", "r"), PDF)]).startswith(
        "messages.0.content.1: this model reads text only"
    )


@pytest.mark.parametrize(
    ("dialect", "source", "says"),
    [
        (
            "anthropic",
            {"type": "file", "file_id": "f"},
            "messages.0.content.0.source.type: must be 'base64'",
        ),
        (
            "anthropic",
            {"type": "url", "url": "https://e.org/a.pdf"},
            "messages.0.content.0.source.url: must be on a host",
        ),
        (
            "token-factory",
            {"type": "url", "url": "https://e.org/a.pdf"},
            "messages.0.content.0: this model reads text only",
        ),
        ("anthropic", None, "messages.0.content.0.source: must be an object"),
    ],
)
def test_documents_that_cannot_be_had(dialect: str, source: Any, says: str) -> None:
    assert refusal(
        policy(dialect), messages=[user({"type": "document", "source": source})]
    ).startswith(says)


def test_notes_ask_nothing_of_a_source() -> None:
    for source in ({"type": "url", "url": "https://e.org/a.pdf"}, {"type": "file", "file_id": "f"}):
        for kind in ("image", "document"):
            said = translated([user({"type": kind, "source": source})], policy("pooled"))
            assert said == [
                {"role": "user", "content": f"[{kind} omitted: this model reads text only]"}
            ]


def test_a_document_from_a_known_host_is_still_a_note() -> None:
    document = {
        "type": "document",
        "source": {"type": "url", "url": "https://img.example.org/a.pdf"},
    }
    assert (
        translated([user(document)], policy(media_hosts=HOSTS))[0]["content"]
        == "[document omitted: this model reads text only]"
    )
