"""Writes ferrule.json, the Grafana dashboard, from the panels in panels.py. Run it after changing
them: python k8s/grafana/generate.py.

Decides layout, colours and variables; knows nothing of what the panels mean.
"""

from __future__ import annotations

import json
import sys
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from panels import ROWS, Panel, Query

TARGET = Path(__file__).with_name("ferrule.json")
WIDTH, HEIGHT, COLUMNS = 8, 8, 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
CODE_COLOURS = (
    ("^(2..|complete|home)$", "green"),
    ("^(4..|client_gone|spill)$", "yellow"),
    ("^(5..|backend_error|timeout|failover)$", "red"),
)

Json = dict[str, Any]


def build_dashboard() -> Json:
    return {
        "uid": "ferrule",
        "title": "ferrule",
        "description": "The edge in front of the LLM servers: traffic, latency, routing, backends, limits.",
        "tags": ["ferrule", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _build_variables()},
        "annotations": {"list": []},
        "panels": _build_panels(),
    }


def _build_variables() -> list[Json]:
    source = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
    }
    return [
        source,
        _build_variable("namespace", "Namespace", "label_values(ferrule_build_info, namespace)"),
        _build_variable(
            "model", "Model", 'label_values(ferrule_requests_total{namespace=~"$namespace"}, model)'
        ),
        _build_variable(
            "pool",
            "Pool",
            'label_values(ferrule_discovery_age_seconds{namespace=~"$namespace"}, pool)',
        ),
    ]


def _build_variable(name: str, label: str, query: str) -> Json:
    """`All` is `.*`, which also matches series without the label."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": ["All"], "value": ["$__all"]},
        "refresh": 2,
        "sort": 1,
    }


def _build_panels() -> list[Json]:
    ids = count(1)
    panels: list[Json] = []
    top = 0
    for row in ROWS:
        panels.append(
            {
                "id": next(ids),
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "panels": [],
                "gridPos": _build_position(0, top, COLUMNS, 1),
            }
        )
        top += 1
        for index, panel in enumerate(row.panels):
            line, column = divmod(index, COLUMNS // WIDTH)
            panels.append(
                {
                    "id": next(ids),
                    **_build_panel(panel),
                    "gridPos": _build_position(column * WIDTH, top + line * HEIGHT, WIDTH, HEIGHT),
                }
            )
        top += -(-len(row.panels) // (COLUMNS // WIDTH)) * HEIGHT
    return panels


def _build_position(x: int, y: int, width: int, height: int) -> Json:
    return {"x": x, "y": y, "w": width, "h": height}


def _build_panel(panel: Panel) -> Json:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "targets": [
            _build_target(query, ref, panel)
            for query, ref in zip(panel.queries, "ABCDEF", strict=False)
        ],
        "fieldConfig": {"defaults": _build_defaults(panel), "overrides": _build_overrides()},
        "options": OPTIONS[panel.kind],
    }


def _build_target(query: Query, ref: str, panel: Panel) -> Json:
    target: Json = {
        "refId": ref,
        "datasource": DATASOURCE,
        "expr": query.expr,
        "legendFormat": query.legend,
        "range": True,
    }
    return {**target, "format": "heatmap"} if panel.kind == "heatmap" else target


def _build_defaults(panel: Panel) -> Json:
    defaults: Json = {"unit": panel.unit, "min": 0}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none"}
        defaults["custom"] = {
            "fillOpacity": 25 if panel.stacked else 8,
            "lineWidth": 1,
            "showPoints": "never",
            "stacking": stacking,
        }
    if panel.kind == "state-timeline":
        states = {
            "0": {"text": "out", "color": "red", "index": 0},
            "1": {"text": "in", "color": "green", "index": 1},
        }
        defaults["mappings"] = [{"type": "value", "options": states}]
    return defaults


def _build_overrides() -> list[Json]:
    return [
        {
            "matcher": {"id": "byRegexp", "options": f"/{name}/"},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for name, colour in CODE_COLOURS
    ]


_LEGEND = {"displayMode": "list", "placement": "bottom", "showLegend": True}
OPTIONS: dict[str, Json] = {
    "timeseries": {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"]},
        "textMode": "value_and_name",
        "colorMode": "none",
        "graphMode": "none",
    },
    "heatmap": {
        "calculate": False,
        "yAxis": {"unit": "s"},
        "color": {"scheme": "Oranges", "mode": "scheme", "steps": 64},
        "cellGap": 1,
    },
    "state-timeline": {
        "showValue": "never",
        "mergeValues": True,
        "rowHeight": 0.8,
        "legend": _LEGEND,
    },
}


def render() -> str:
    return json.dumps(build_dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    TARGET.write_text(render())
