"""The rendered manifests: as agreed (golden), valid by the schemas of several Kubernetes releases,
and safe.

A golden file is written anew with FERRULE_REWRITE_GOLDEN=1. An overlay's shows only what differs
from the base.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.k8s.rendering import (
    K8S,
    OVERLAYS,
    Id,
    Manifest,
    crd_schema,
    folder_of,
    is_rewriting,
    render,
)

from ferrule.config import Config, loads

jsonschema = pytest.importorskip(
    "jsonschema", reason="needs kubernetes-validate: pip install kubernetes-validate"
)
kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason="needs kubernetes-validate: pip install kubernetes-validate"
)

GOLDEN = Path(__file__).parent / "golden"
ALL = ("base", *OVERLAYS)
RELEASES = ("1.32", "1.34", "1.37")
CUSTOM = {"PodMonitor", "PrometheusRule", "HTTPRoute"}


def differences(name: str) -> list[Manifest]:
    """What is compared: the dashboard's JSON, which has a test of its own, is left out."""
    rendered, base = render(name), render("base")
    changed = [
        manifest
        for id_, manifest in rendered.items()
        if name == "base" or base.get(id_) != manifest
    ]
    gone = [
        {"kind": kind, "metadata": {"name": f"{own} (not in this overlay)"}}
        for kind, own in base
        if (kind, own) not in rendered
    ]
    return [
        {**manifest, "data": "…"}
        if id_of(manifest) == ("ConfigMap", "ferrule-dashboard")
        else manifest
        for manifest in [*changed, *gone]
    ]


def id_of(manifest: Manifest) -> Id:
    return manifest["kind"], manifest["metadata"]["name"]


@pytest.mark.parametrize("name", ALL)
def test_rendering_is_as_agreed(name: str) -> None:
    golden = GOLDEN / f"{name}.yaml"
    text = yaml.safe_dump_all(differences(name), sort_keys=True, allow_unicode=True, width=140)
    if is_rewriting():
        golden.write_text(text)
    assert golden.read_text() == text


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", ALL)
def test_every_resource_is_valid(name: str, release: str) -> None:
    for manifest in render(name).values():
        if manifest["kind"] in CUSTOM:
            version, schema = crd_schema(manifest["kind"])
            assert manifest["apiVersion"] == version
            jsonschema.Draft202012Validator(schema).validate(manifest)
        else:
            kubernetes_validate.validate(manifest, release, strict=True)


@pytest.mark.parametrize("kind", sorted(CUSTOM))
def test_a_custom_resource_with_a_misspelt_field_is_refused(kind: str) -> None:
    name = "ingress" if kind == "HTTPRoute" else "base"
    manifest = next(known for known in render(name).values() if known["kind"] == kind)
    spoilt = {**manifest, "spec": {**manifest["spec"], "mispelt": 1}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(crd_schema(kind)[1]).validate(spoilt)


@pytest.mark.parametrize("release", RELEASES)
def test_the_example_engine_is_valid_and_is_what_the_base_looks_for(release: str) -> None:
    engine, service = yaml.safe_load_all((K8S / "examples/vllm.yaml").read_text())
    for manifest in (engine, service):
        kubernetes_validate.validate(manifest, release, strict=True)
    pods = engine["spec"]["template"]
    assert service["spec"]["selector"].items() <= pods["metadata"]["labels"].items()
    egress = render("base")["NetworkPolicy", "ferrule"]["spec"]["egress"]
    assert {"podSelector": {"matchLabels": {"app": "vllm"}}} in [
        to for rule in egress for to in rule.get("to", [])
    ]
    assert pods["metadata"]["labels"]["app"] == "vllm"
    assert (
        pods["spec"]["terminationGracePeriodSeconds"]
        == pod_of("base")["terminationGracePeriodSeconds"]
    )
    found = yaml.safe_load((K8S / "base/ferrule.yaml").read_text())["pools"]["rocm"]["discover"][
        "kubernetes"
    ]
    assert (found["service"], found["port"]) == (
        service["metadata"]["name"],
        service["spec"]["ports"][0]["port"],
    )


# Safety


def pod_of(name: str) -> Any:
    return render(name)["Deployment", "ferrule"]["spec"]["template"]["spec"]


def proxy_of(name: str) -> Any:
    pod = pod_of(name)
    return next(
        container
        for container in [*pod["containers"], *pod.get("initContainers", [])]
        if container["name"] == "ferrule"
    )


@pytest.mark.parametrize("name", ALL)
def test_pods_meet_the_restricted_standard(name: str) -> None:
    pod = pod_of(name)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not any(pod.get(forbidden) for forbidden in ("hostNetwork", "hostPID", "hostIPC"))
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert not context.get("privileged")
    assert {next(iter(volume.keys() - {"name"})) for volume in pod["volumes"]} <= {
        "configMap",
        "secret",
        "emptyDir",
    }
    assert proxy_of(name)["securityContext"]["readOnlyRootFilesystem"] is True


def test_only_endpoint_slices_may_be_read() -> None:
    rendered = render("base")
    assert rendered["Role", "ferrule-discovery"]["rules"] == [
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["get", "list", "watch"],
        }
    ]
    assert not any(kind.startswith("ClusterRole") for kind, _ in rendered)


def test_the_sidecar_has_no_access_to_the_api() -> None:
    rendered = render("sidecar")
    assert pod_of("sidecar")["automountServiceAccountToken"] is False
    assert not any(
        kind in ("Role", "RoleBinding", "HorizontalPodAutoscaler") for kind, _ in rendered
    )


@pytest.mark.parametrize("name", ALL)
def test_the_admin_port_is_for_probes_and_prometheus_only(name: str) -> None:
    rendered = render(name)
    assert [port["targetPort"] for port in rendered["Service", "ferrule"]["spec"]["ports"]] == [
        "http"
    ]
    admin = [
        rule
        for rule in rendered["NetworkPolicy", "ferrule"]["spec"]["ingress"]
        if any(port["port"] == "admin" for port in rule["ports"])
    ]
    assert len(admin) == 1
    assert admin[0]["from"] == [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    ]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert proxy_of(name)[probe]["httpGet"]["port"] == "admin"


@pytest.mark.parametrize("name", ALL)
def test_backends_can_make_a_pod_unready_but_never_restart_it(name: str) -> None:
    probes = {
        probe: proxy_of(name)[probe]["httpGet"]["path"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert probes == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }


# Rollouts


def config_of(name: str, folder: Path) -> Config:
    """The configuration as the pod reads it: its environment is set, and its keys are there (here
    in another place)."""
    keys = folder / "keys.yaml"
    keys.write_text("keys: []")
    text = (
        (folder_of(name) / "ferrule.yaml")
        .read_text()
        .replace("/etc/ferrule/keys/keys.yaml", str(keys))
    )
    return loads(text, environment={"POD_NAMESPACE": "inference"})


@pytest.mark.parametrize("name", ["base", "sidecar"])
def test_no_rollout_cuts_a_stream(name: str, tmp_path: Path) -> None:
    config = config_of(name, tmp_path)
    longest_s = max(pool.timeouts.total_s for pool in config.pools.values())
    pause_s = 10
    assert config.drain_grace_s >= longest_s
    assert pod_of(name)["terminationGracePeriodSeconds"] >= pause_s + config.drain_grace_s + 10
    stop = proxy_of(name)["lifecycle"]["preStop"]
    assert stop in (
        {"sleep": {"seconds": pause_s}},
        {"exec": {"command": ["/bin/sh", "-c", f"sleep {pause_s} && kill -TERM 1"]}},
    )
    assert (
        render(name)["Deployment", "ferrule"]["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"]
        == 0
    )


def test_ingresses_wait_longer_than_the_longest_silence(tmp_path: Path) -> None:
    config = config_of("base", tmp_path)
    silence_s = max(
        max(pool.timeouts.first_event_s, pool.timeouts.idle_s) for pool in config.pools.values()
    )
    annotations = render("ingress-nginx")["Ingress", "ferrule"]["metadata"]["annotations"]
    assert float(annotations["nginx.ingress.kubernetes.io/proxy-read-timeout"]) > silence_s
    assert annotations["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert annotations["nginx.ingress.kubernetes.io/proxy-body-size"] == f"{config.body_limit_mb}m"
    assert render("ingress")["HTTPRoute", "ferrule"]["spec"]["rules"][0]["timeouts"] == {
        "request": "0s",
        "backendRequest": "0s",
    }


def test_the_sidecar_is_the_same_container_started_first() -> None:
    ours, base = proxy_of("sidecar"), proxy_of("base")
    assert ours["restartPolicy"] == "Always"
    assert {
        key: value for key, value in ours.items() if key not in ("restartPolicy", "lifecycle")
    } == {key: value for key, value in base.items() if key != "lifecycle"}
    assert [container["name"] for container in pod_of("sidecar")["containers"]] == ["vllm"]


@pytest.mark.parametrize("name", ALL)
def test_the_pod_mounts_what_its_arguments_and_configuration_name(name: str) -> None:
    proxy, rendered = proxy_of(name), render(name)
    mounts = {mount["name"]: mount["mountPath"] for mount in proxy["volumeMounts"]}
    config = yaml.safe_load(rendered["ConfigMap", "ferrule-config"]["data"]["ferrule.yaml"])
    volumes = {volume["name"]: volume for volume in pod_of(name)["volumes"]}
    assert proxy["args"] == ["serve", "--config", f"{mounts['config']}/ferrule.yaml"]
    assert (
        volumes["config"]["configMap"]["name"]
        == rendered["ConfigMap", "ferrule-config"]["metadata"]["name"]
    )
    assert config["auth"]["keys_file"] == f"{mounts['keys']}/keys.yaml"
    assert volumes["keys"]["secret"]["secretName"] == "ferrule-keys"
    ports = {port["name"]: port["containerPort"] for port in proxy["ports"]}
    assert (config["listen"], config["admin"]) == (
        f"0.0.0.0:{ports['http']}",
        f"0.0.0.0:{ports['admin']}",
    )


@pytest.mark.parametrize("name", ALL)
def test_selectors_meet_the_pods(name: str) -> None:
    rendered = render(name)
    labels = rendered["Deployment", "ferrule"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        rendered["Service", "ferrule"]["spec"]["selector"],
        rendered["Deployment", "ferrule"]["spec"]["selector"]["matchLabels"],
        rendered["PodDisruptionBudget", "ferrule"]["spec"]["selector"]["matchLabels"],
        rendered["NetworkPolicy", "ferrule"]["spec"]["podSelector"]["matchLabels"],
        rendered["PodMonitor", "ferrule"]["spec"]["selector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector.items() <= labels.items()
    assert rendered["PodMonitor", "ferrule"]["spec"]["jobLabel"] in labels
