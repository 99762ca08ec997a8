"""The manifests as kustomize renders them, and the schemas of the custom resources among them."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
OVERLAYS = ("sidecar", "ingress", "ingress-nginx")

Manifest = dict[str, Any]
Id = tuple[str, str]


def folder_of(name: str) -> Path:
    return K8S / "base" if name == "base" else K8S / "overlays" / name


@cache
def _kustomize() -> list[str]:
    """The command that renders, in the order of preference: ours (make .cache/bin/kustomize), one
    on PATH, kubectl's."""
    for place in (str(ROOT / ".cache/bin/kustomize"), "kustomize"):
        if found := shutil.which(place):
            return [found, "build"]
    if found := shutil.which("kubectl"):
        return [found, "kustomize"]
    return []


@cache
def _rendered(name: str) -> str:
    return subprocess.run(
        [*_kustomize(), str(folder_of(name))],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout


def render_text(name: str) -> str:
    if not _kustomize():
        pytest.skip(
            "needs kustomize: go install sigs.k8s.io/kustomize/kustomize/v5@v5.7.1, or kubectl"
        )
    return _rendered(name)


def render(name: str) -> dict[Id, Manifest]:
    """Every resource by kind and name; the hash at the end of a generated name is left out of the
    key."""
    manifests = [document for document in yaml.safe_load_all(render_text(name)) if document]
    return {(manifest["kind"], _without_hash(manifest)): manifest for manifest in manifests}


def _without_hash(manifest: Manifest) -> str:
    name: str = manifest["metadata"]["name"]
    return name.rpartition("-")[0] if name.startswith("ferrule-config-") else name


def crd_schema(kind: str) -> tuple[str, Manifest]:
    """The apiVersion of a custom resource and its schema, closed: what it does not name is
    refused."""
    definition = yaml.safe_load(
        (Path(__file__).parent / "crds" / f"{kind.lower()}s.yaml").read_text()
    )
    version = definition["spec"]["versions"][0]
    return f"{definition['spec']['group']}/{version['name']}", _closed(
        version["schema"]["openAPIV3Schema"]
    )


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if (
        isinstance(schema.get("properties"), dict)
        and schema.get("type") == "object"
        and not schema.get("x-kubernetes-preserve-unknown-fields")
    ):
        if schema["properties"].keys() >= {"apiVersion", "kind", "metadata"}:
            closed["properties"]["metadata"] = {"type": "object"}
        closed.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        closed.pop("type", None)
    return closed


def rules_file(source: Path, folder: Path) -> Path:
    """A PrometheusRule as the plain rules file that promtool and Prometheus read."""
    target = folder / f"{source.stem}.rules.yaml"
    target.write_text(yaml.safe_dump(yaml.safe_load(source.read_text())["spec"], sort_keys=False))
    return target


def is_rewriting() -> bool:
    return bool(os.environ.get("FERRULE_REWRITE_GOLDEN"))
