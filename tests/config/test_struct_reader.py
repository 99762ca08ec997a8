"""Reading plain values into Structs made for the test: wording, paths, environment."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from ferrule.config.struct_reader import StructReader


class Word(msgspec.Struct, frozen=True):
    text: str


def parse_word(value: object) -> Word:
    if not isinstance(value, str) or " " in value:
        raise ValueError("expected one word")
    return Word(value)


class Inner(msgspec.Struct, frozen=True):
    interval_s: float = 5.0
    count: Annotated[int, Meta(ge=1)] = 1


class Outer(msgspec.Struct, frozen=True):
    name: str
    mode: Literal["fast", "slow"] | None = None
    inner: Inner = Inner()
    maybe: Inner | None = None
    word: Word | None = None
    words: tuple[Word, ...] = ()
    inners: tuple[Inner, ...] = ()
    named: dict[str, Inner] = msgspec.field(default_factory=dict)
    tags: tuple[str, ...] = ()
    enabled: bool = False
    free: dict[str, object] = msgspec.field(default_factory=dict)


ENVIRONMENT = {"N": "7", "S": "se cret", "E": "", "B": "true"}


def read(value: object) -> tuple[Outer | None, list[str]]:
    reader = StructReader(ENVIRONMENT, {Word: parse_word})
    outer = reader.read_struct(Outer, value, "")
    return outer, [str(problem) for problem in reader.problems]


def test_every_kind_of_field() -> None:
    value = {
        "name": "n",
        "mode": "slow",
        "inner": {"interval_s": 3},
        "maybe": {"count": 2},
        "word": "w",
        "words": ["a", "b"],
        "inners": [{"count": 4}, None],
        "named": {"x": {"count": 5}},
        "tags": ["t"],
        "enabled": True,
        "free": {"a": [1]},
    }
    expected = Outer(
        name="n",
        mode="slow",
        inner=Inner(interval_s=3.0),
        maybe=Inner(count=2),
        word=Word("w"),
        words=(Word("a"), Word("b")),
        inners=(Inner(count=4), Inner()),
        named={"x": Inner(count=5)},
        tags=("t",),
        enabled=True,
        free={"a": [1]},
    )
    assert read(value) == (expected, [])


def test_empty_sections_have_their_defaults() -> None:
    assert read({"name": "n", "inner": None, "maybe": None, "words": None, "named": None}) == (
        Outer(name="n"),
        [],
    )


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({"nam": 1}, ["nam: unknown setting; did you mean name?"]),
        (
            {"zzzz": 1},
            [
                "zzzz: unknown setting; expected one of enabled, free, inner, inners, maybe, "
                "mode, name, named, tags, word, words"
            ],
        ),
        (
            {1: 1},
            [
                "1: unknown setting; expected one of enabled, free, inner, inners, maybe, mode, "
                "name, named, tags, word, words"
            ],
        ),
        (
            {"inner": {"intervall_s": 1}},
            ["inner.intervall_s: unknown setting; did you mean interval_s?"],
        ),
        ({"inner": {"count": 0}}, ["inner.count: expected a whole number >= 1"]),
        ({"inner": {"count": True}}, ["inner.count: expected a whole number, got true or false"]),
        ({"inner": {"count": "2"}}, ["inner.count: expected a whole number, got text"]),
        ({"inner": {"count": 1.5}}, ["inner.count: expected a whole number, got a number"]),
        ({"inner": 3}, ["inner: expected a mapping, got a whole number"]),
        ({"inners": {"count": 1}}, ["inners: expected a list, got a mapping"]),
        ({"inners": [{}, {"count": "x"}]}, ["inners.1.count: expected a whole number, got text"]),
        ({"named": [1]}, ["named: expected a mapping, got a list"]),
        (
            {"named": {"x": {"interval_s": None}}},
            ["named.x.interval_s: expected a number, got null"],
        ),
        ({"mode": "medium"}, ["mode: expected one of fast, slow"]),
        ({"mode": 3}, ["mode: expected text or null, got a whole number"]),
        ({"word": "a b"}, ["word: expected one word"]),
        ({"words": ["a", 2]}, ["words.1: expected one word"]),
        ({"tags": ["a", 2]}, ["tags.1: expected text, got a whole number"]),
        ({"enabled": "yes"}, ["enabled: expected true or false, got text"]),
        (
            {"tags": "x", "enabled": 1},
            [
                "tags: expected a list, got text",
                "enabled: expected true or false, got a whole number",
            ],
        ),
    ],
)
def test_every_problem_has_its_path_and_what_is_expected(
    changes: dict[object, object], problems: list[str]
) -> None:
    assert read({"name": "n", **changes}) == (None, problems)


def test_required_fields() -> None:
    assert read({}) == (None, ["name: is required"])
    assert read([]) == (None, ["expected a mapping, got a list"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": "${S}"}, Outer(name="se cret")),
        ({"name": "a ${N} b${E}c ${N}"}, Outer(name="a 7 bc 7")),
        ({"name": "$N ${ $"}, Outer(name="$N ${ $")),
        ({"name": "${N}"}, Outer(name="7")),
        ({"inner": {"count": "${N}"}}, Outer(name="n", inner=Inner(count=7))),
        ({"inner": {"interval_s": "0.${N}"}}, Outer(name="n", inner=Inner(interval_s=0.7))),
        ({"enabled": "${B}"}, Outer(name="n", enabled=True)),
        ({"tags": ["${N}", "x"]}, Outer(name="n", tags=("7", "x"))),
        ({"words": ["x${N}"]}, Outer(name="n", words=(Word("x7"),))),
        ({"free": {"a": {"b": ["${N}"]}}}, Outer(name="n", free={"a": {"b": ["7"]}})),
    ],
)
def test_environment_variables(changes: dict[str, object], expected: Outer) -> None:
    assert read({"name": "n", **changes}) == (expected, [])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "x${NOPE}"}, "name: environment variable NOPE is not set"),
        ({"word": "${NOPE}"}, "word: environment variable NOPE is not set"),
        ({"tags": ["a", "${NOPE}"]}, "tags.1: environment variable NOPE is not set"),
        ({"free": {"a": "${NOPE}"}}, "free.a: environment variable NOPE is not set"),
        (
            {"name": "${N:-1}"},
            "name: expected ${NAME} with the name of an environment variable, got ${N:-1}",
        ),
        (
            {"name": "${}"},
            "name: expected ${NAME} with the name of an environment variable, got ${}",
        ),
        ({"inner": {"count": "${S}"}}, "inner.count: expected a whole number, got text"),
    ],
)
def test_missing_and_malformed_environment_variables(
    changes: dict[str, object], problem: str
) -> None:
    assert read({"name": "n", **changes}) == (None, [problem])
