"""Problems as text: each on a line of its own, with its source and its path."""

from __future__ import annotations

from ferrule.config.problems import ConfigError, Problem, join


def test_a_problem_stands_behind_its_path() -> None:
    assert str(Problem("pools.p", "expected more")) == "pools.p: expected more"
    assert str(Problem("", "expected a mapping")) == "expected a mapping"


def test_every_line_names_the_source() -> None:
    problems = [Problem("a", "x"), Problem("b", "y")]
    error = ConfigError(problems, "f.yaml")
    assert str(error) == "f.yaml: a: x\nf.yaml: b: y"
    assert str(ConfigError(problems)) == "a: x\nb: y"
    assert error.problems == problems


def test_paths_are_dotted() -> None:
    assert join(join("", "pools"), 1) == "pools.1"
