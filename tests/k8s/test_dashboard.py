"""The dashboard's JSON: written by its script, without overlapping panels, and with queries for
metrics and labels that exist."""

from __future__ import annotations

import importlib.util
import json
import re
from itertools import combinations
from typing import Any

import pytest
from tests.k8s.rendering import K8S
from tests.k8s.test_rules import ALERTS, RECORDINGS, rules_of

from ferrule.telemetry.metrics import Metrics

FROM_PROMETHEUS = {"up": {"job", "instance"}}
FROM_THE_SCRAPE = {"namespace", "pod", "job", "le"}


def load_generator() -> Any:
    spec = importlib.util.spec_from_file_location("generate", K8S / "grafana/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((K8S / "grafana/ferrule.json").read_text())
    return loaded


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    queries = [target["expr"] for panel in panels() for target in panel["targets"]]
    return queries + [rule["expr"] for source in (ALERTS, RECORDINGS) for rule in rules_of(source)]


def known_series() -> dict[str, set[str]]:
    """Every series name that a scrape may return, with its labels."""
    known = {name: set(labels) for name, labels in FROM_PROMETHEUS.items()}
    for family in Metrics().families():
        suffixes = {
            "histogram": ("_bucket", "_sum", "_count"),
            "counter": ("_total",),
            "gauge": ("",),
        }[family.kind]
        known |= {family.name + suffix: set(family.labels) for suffix in suffixes}
    return known


def test_the_file_is_up_to_date() -> None:
    assert (K8S / "grafana/ferrule.json").read_text() == load_generator().render()


def test_rows_and_variables() -> None:
    rows = [panel["title"] for panel in dashboard()["panels"] if panel["type"] == "row"]
    assert rows == [
        "Traffic and errors",
        "Latency",
        "Routing",
        "Backends",
        "Keys and limits",
        "Process",
    ]
    assert [variable["name"] for variable in dashboard()["templating"]["list"]] == [
        "datasource",
        "namespace",
        "model",
        "pool",
    ]


def test_panels_have_their_own_place_and_number() -> None:
    everything = dashboard()["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    for one, other in combinations([panel["gridPos"] for panel in everything], 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in everything)


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_a_panel_explains_itself_and_keeps_to_the_chosen_namespace(panel: dict[str, Any]) -> None:
    assert panel["description"]
    assert panel["datasource"]["uid"] == "${datasource}"
    for target in panel["targets"]:
        assert len(re.findall(r"\{[^{}]*\}", target["expr"])) == target["expr"].count(
            'namespace=~"$namespace"'
        )
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            assert re.search(rf"by \([^)]*\b{label}\b", target["expr"]), label


@pytest.mark.parametrize("expression", expressions())
def test_expressions_ask_only_for_what_exists(expression: str) -> None:
    known = known_series()
    selectors = re.findall(r"\b((?:ferrule_\w+)|up)\b(?:\{([^}]*)\})?", expression)
    assert selectors
    for name, matchers in selectors:
        assert name in known, name
        assert (
            set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) <= known[name] | FROM_THE_SCRAPE
        ), expression


def test_every_metric_is_shown_somewhere() -> None:
    text = "\n".join(expressions())
    for family in Metrics().families():
        assert re.search(rf"\b{family.name}(?:_bucket|_total)?\b", text), family.name
