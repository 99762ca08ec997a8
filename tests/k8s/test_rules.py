"""Alerts and recording rules under promtool: their syntax, and each alert once firing and once
quiet (k8s/alerts/tests.yaml)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.k8s.rendering import K8S, rules_file

ALERTS = K8S / "alerts/alerts.yaml"
RECORDINGS = K8S / "grafana/genai-rules.yaml"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs Debian's package prometheus"
)


def rules_of(source: Path) -> list[dict[str, Any]]:
    return [
        rule
        for group in yaml.safe_load(source.read_text())["spec"]["groups"]
        for rule in group["rules"]
    ]


def promtool(*arguments: str) -> None:
    done = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("source", [ALERTS, RECORDINGS], ids=lambda source: source.stem)
def test_promtool_accepts_the_rules(source: Path, tmp_path: Path) -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(rules_file(source, tmp_path)))


@needs_promtool
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    rules_file(ALERTS, tmp_path)
    tests = tmp_path / "tests.yaml"
    tests.write_text((K8S / "alerts/tests.yaml").read_text())
    promtool("test", "rules", str(tests))


def test_every_alert_is_seen_firing() -> None:
    cases = [
        case
        for test in yaml.safe_load((K8S / "alerts/tests.yaml").read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    fired = {case["alertname"] for case in cases if case["exp_alerts"]}
    assert fired == {rule["alert"] for rule in rules_of(ALERTS)}


@pytest.mark.parametrize("rule", rules_of(ALERTS), ids=lambda rule: rule["alert"])
def test_every_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert len(rule["annotations"]["summary"]) > 20
    assert len(rule["annotations"]["runbook"]) > 60
    assert re.search(rf"^\|? ?`{rule['alert']}`", (K8S / "README.md").read_text(), re.MULTILINE), (
        "k8s/README.md does not explain it"
    )


def test_recordings_bear_the_names_of_the_convention() -> None:
    names = {rule["record"] for rule in rules_of(RECORDINGS)}
    metrics = ("time_to_first_token", "time_per_output_token", "request_duration")
    assert names == {
        f"gen_ai_server_{metric}_seconds_{part}"
        for metric in metrics
        for part in ("bucket", "sum", "count")
    }
