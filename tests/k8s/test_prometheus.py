"""A real Prometheus scrapes a live proxy under load and faults; every expression of the dashboard
and of the rules must give data."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from tests.doubles.backend import wait_until
from tests.doubles.proxy import Ferrule, free_port
from tests.k8s.load import KEY, LIMITED_KEY, load
from tests.k8s.rendering import K8S, ROOT, rules_file
from tests.k8s.test_dashboard import panels
from tests.k8s.test_rules import ALERTS, RECORDINGS, rules_of

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="needs Debian's package prometheus"
    ),
]

LOAD_S = 20.0
VARIABLES = {"$namespace": ".*", "$model": ".*", "$pool": ".*", "$__rate_interval": "20s"}


@contextmanager
def sims(*options: str) -> Iterator[list[str]]:
    """Simulated engines, one for each of `options`, as processes."""
    with ExitStack() as stack:
        urls = []
        for option in options:
            port = free_port()
            command = [
                sys.executable,
                "-m",
                "ferrule",
                "sim",
                "--port",
                str(port),
                "--model",
                "m",
                "--scripted",
                *option.split(),
            ]
            engine = subprocess.Popen(command, cwd=ROOT / "python", stdout=subprocess.DEVNULL)
            stack.callback(engine.wait, 20)
            stack.callback(engine.terminate)
            urls.append(f"http://127.0.0.1:{port}")
        yield urls


def proxy_config(backends: list[str]) -> dict[str, Any]:
    """Small limits, so that a little load reaches them all."""
    pool = {
        "backends": backends,
        "slots": 2,
        "max_inflight": 4,
        "queue": {"size": 2, "timeout_s": 0.5},
        "health": {"interval_s": 0.5, "timeout_s": 0.5, "fall": 1},
        "timeouts": {"idle_s": 5},
    }
    return {
        "workers": 2,
        "auth": {"keys_file": "keys.yaml"},
        "pools": {"rocm": pool},
        "models": [{"id": "m", "pool": "rocm", "images": True}],
    }


def keys() -> dict[str, Any]:
    def entry(name: str, key: str, **limits: int) -> dict[str, Any]:
        return {
            "name": name,
            "sha256": hashlib.sha256(key.encode()).hexdigest(),
            "models": ["*"],
            **limits,
        }

    return {"keys": [entry("load", KEY), entry("limited", LIMITED_KEY, requests_per_minute=5)]}


class Prometheus:
    def __init__(self, folder: Path, target: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        rules = [str(rules_file(source, folder)) for source in (ALERTS, RECORDINGS)]
        scrape = {
            "job_name": "ferrule",
            "static_configs": [
                {"targets": [target], "labels": {"namespace": "inference", "pod": "ferrule-0"}}
            ],
        }
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": rules,
            "scrape_configs": [scrape],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(settings))
        options = [f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]
        self._log = folder / "prometheus.log"
        with self._log.open("wb") as log:
            command = [
                "prometheus",
                *options,
                f"--web.listen-address={self.url.removeprefix('http://')}",
            ]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + 30
        while not self._is_ready():
            assert self.process.poll() is None and time.monotonic() < deadline, (
                self._log.read_text()
            )
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def get(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(
            f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=10
        ) as answer:
            return json.load(answer)["data"]

    def values(self, expression: str) -> list[float]:
        """What an expression gives now, one number for each series; NaN (no observation in the
        window) is none."""
        numbers = [
            float(series["value"][1]) for series in self.get("query", query=expression)["result"]
        ]
        return [number for number in numbers if not math.isnan(number)]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


class World(NamedTuple):
    """What the tests look at: the values of every expression at the end of the load, and Prometheus
    and the proxy after it."""

    values: dict[str, list[float]]
    prometheus: Prometheus
    proxy: Ferrule


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two engines that are well and one that is dead; everything is measured while the load still
    runs."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "keys.yaml").write_text(yaml.safe_dump(keys()))
    with sims("--tokens-per-second 150", "--tokens-per-second 100 --ttft-ms 60") as engines:
        dead = f"http://127.0.0.1:{free_port()}"
        with Ferrule(proxy_config([*engines, dead]), folder) as proxy:
            prometheus = Prometheus(folder, proxy.admin)
            try:
                prometheus.wait_until_ready()
                with load(proxy.listen):
                    time.sleep(LOAD_S)
                    values = {
                        expression: prometheus.values(expression) for expression in expressions()
                    }
                yield World(values, prometheus, proxy)
            finally:
                prometheus.stop()


def expressions() -> list[str]:
    """As they are asked here: variables filled in, thresholds left out."""
    asked = [filled_in(target["expr"]) for panel in panels() for target in panel["targets"]]
    return (
        asked
        + [without_thresholds(rule["expr"]) for rule in rules_of(ALERTS)]
        + [rule["record"] for rule in rules_of(RECORDINGS)]
    )


def filled_in(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def without_thresholds(expression: str) -> str:
    """What an alert measures, whatever its threshold says of it."""
    if expression.startswith("absent("):
        expression = expression.removeprefix("absent(").removesuffix(")")
    return re.sub(r" (?:>|==) [\d.]+", "", expression)


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_every_panel_has_data(world: World, panel: dict[str, Any]) -> None:
    empty = [
        target["expr"] for target in panel["targets"] if not world.values[filled_in(target["expr"])]
    ]
    assert empty == []


@pytest.mark.parametrize("rule", rules_of(ALERTS), ids=lambda rule: rule["alert"])
def test_every_alert_measures_something(world: World, rule: dict[str, Any]) -> None:
    assert world.values[without_thresholds(rule["expr"])]


@pytest.mark.parametrize("rule", rules_of(RECORDINGS), ids=lambda rule: rule["record"])
def test_every_recording_is_recorded(world: World, rule: dict[str, Any]) -> None:
    assert max(world.values[rule["record"]]) > 0


def test_prometheus_evaluates_the_rules_without_a_complaint(world: World) -> None:
    groups = world.prometheus.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(rules_of(ALERTS)) + len(rules_of(RECORDINGS))
    assert [rule for rule in rules if rule["health"] != "ok"] == []
    pending = {
        rule["name"] for rule in rules if rule["type"] == "alerting" and rule["state"] != "inactive"
    }
    assert "FerruleBackendDown" in pending


def test_promtool_finds_nothing_wrong_with_the_metrics(world: World) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=world.proxy.admin_get("/metrics").content,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")


def test_what_prometheus_counted_is_what_the_clients_saw(world: World) -> None:
    """Summed over the workers: gauges are back at zero, and streams that began have ended."""
    prometheus = world.prometheus
    for gauge in ("streams_active", "backend_inflight", "queue_depth"):
        wait_until(
            lambda gauge=gauge: prometheus.values(f"sum(ferrule_{gauge})") == [0.0],
            10.0,
            f"{gauge} to be 0",
        )
    reasons = {
        series["metric"]["reason"]
        for series in prometheus.get("query", query="ferrule_stream_end_total > 0")["result"]
    }
    assert reasons >= {"complete", "client_gone", "backend_error"}


def test_the_dashboards_variables_find_their_values(world: World) -> None:
    wanted = {"namespace": {"inference"}, "model": {"m"}, "pool": {"rocm"}}
    variables = json.loads((K8S / "grafana/ferrule.json").read_text())["templating"]["list"][1:]
    for variable in variables:
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
        assert found is not None
        values = world.prometheus.get(
            f"label/{found[2]}/values", **{"match[]": filled_in(found[1])}
        )
        assert set(values) >= wanted[variable["name"]]
