"""Problems as text: one line each, with source and path."""

from __future__ import annotations

from ferrule.config.problems import ConfigError, Problem, join_path


def test_a_problem_begins_with_its_path() -> None:
    assert str(Problem("pools.p", "expected more")) == "pools.p: expected more"
    assert str(Problem("", "expected a mapping")) == "expected a mapping"


def test_every_line_names_the_source() -> None:
    problems = [Problem("a", "x"), Problem("b", "y")]
    error = ConfigError(problems, "f.yaml")
    assert str(error) == "f.yaml: a: x\nf.yaml: b: y"
    assert str(ConfigError(problems)) == "a: x\nb: y"
    assert error.problems == problems


def test_paths_are_dotted() -> None:
    assert join_path(join_path("", "pools"), 1) == "pools.1"
