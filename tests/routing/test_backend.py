"""Names of backends, and addresses as others may see them."""

import pytest

from ferrule.routing.backend import canonical_url, name_of


def test_a_name_is_short_stable_and_not_the_address() -> None:
    assert name_of("rocm", "http://10.0.0.11:8000", ()) == name_of(
        "rocm", "http://10.0.0.11:8000/", ()
    )
    name = name_of("rocm", "http://10.0.0.11:8000", ())
    assert name.startswith("rocm-")
    assert len(name) == len("rocm-") + 6
    assert "10.0" not in name


def test_a_name_does_not_depend_on_credentials() -> None:
    assert name_of("p", "http://user:secret@h:1", ()) == name_of("p", "http://h:1", ())


def test_a_name_that_is_taken_grows() -> None:
    first = name_of("p", "http://h:1", ())
    second = name_of("p", "http://h:1", {first})
    assert second.startswith(first)
    assert len(second) == len(first) + 1


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://h:1", "http://h:1"),
        ("http://u:p@h:1/openai/", "http://h:1/openai"),
        ("http://u:p@ss@h:1", "http://h:1"),
        ("http://[::1]:8000?token=x", "http://[::1]:8000"),
    ],
)
def test_p05_redacted_address(url: str, shown: str) -> None:
    assert canonical_url(url) == shown
