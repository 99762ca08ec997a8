"""A real kube-apiserver: it takes every manifest, its Pod Security admission lets the pods in, and
discovery follows its EndpointSlices.

Needs what `make test-kube` makes: .cache/bin/kube-apiserver (built from Go modules) and Debian's
etcd-server.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.k8s.control_plane import APISERVER, ControlPlane, Refused
from tests.k8s.rendering import K8S, OVERLAYS, Manifest, render

from ferrule.discovery.kubernetes import ApiAccess, KubernetesService, Service
from ferrule.routing.backend import BackendSpec

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        not APISERVER.exists() or shutil.which("etcd") is None,
        reason="needs kube-apiserver and etcd: make test-kube",
    ),
]

NAMESPACE = "inference"
CRDS = Path(__file__).parent / "crds"


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    plane = ControlPlane(tmp_path_factory.mktemp("kube"))
    try:
        for crd in sorted(CRDS.glob("*.yaml")):
            plane.apply(yaml.safe_load(crd.read_text()), "")
        labels = {
            f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")
        }
        plane.apply(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": NAMESPACE, "labels": labels},
            },
            "",
        )
        for account in ("default", "ferrule"):
            plane.apply(
                {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}},
                NAMESPACE,
            )
        yield plane
    finally:
        plane.stop()


@pytest.mark.parametrize("name", ["base", *OVERLAYS])
def test_it_takes_every_manifest(control_plane: ControlPlane, name: str) -> None:
    for manifest in render(name).values():
        control_plane.apply(manifest, NAMESPACE, is_dry=True)


def test_it_takes_the_example_engine(control_plane: ControlPlane) -> None:
    for manifest in yaml.safe_load_all((K8S / "examples/vllm.yaml").read_text()):
        control_plane.apply(manifest, NAMESPACE, is_dry=True)


@pytest.mark.parametrize("name", ["base", "sidecar"])
def test_pod_security_lets_the_pods_in(control_plane: ControlPlane, name: str) -> None:
    template = render(name)["Deployment", "ferrule"]["spec"]["template"]
    control_plane.apply(pod(template), NAMESPACE, is_dry=True)


def test_pod_security_would_have_refused_a_privileged_one(control_plane: ControlPlane) -> None:
    template = yaml.safe_load(
        yaml.safe_dump(render("base")["Deployment", "ferrule"]["spec"]["template"])
    )
    template["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(Refused, match="violates PodSecurity"):
        control_plane.apply(pod(template), NAMESPACE, is_dry=True)


def pod(template: Manifest) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], "name": "ferrule"},
        "spec": template["spec"],
    }


# Discovery, with the rights that the Role gives and no others


def endpoint_slice(name: str, **addresses: bool) -> Manifest:
    """`addresses`: last number of an address → whether its pod is ready."""
    endpoints = [
        {"addresses": [f"10.1.0.{number.lstrip('n')}"], "conditions": {"ready": ready}}
        for number, ready in addresses.items()
    ]
    labels = {"kubernetes.io/service-name": "vllm"}
    ports = [{"name": "http", "port": 8000, "protocol": "TCP"}]
    head = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": labels},
    }
    return {**head, "addressType": "IPv4", "endpoints": endpoints, "ports": ports}


@pytest.fixture
def access(control_plane: ControlPlane, tmp_path: Path) -> ApiAccess:
    rendered = render("base")
    for kind in ("Role", "RoleBinding"):
        binding = rendered[kind, "ferrule-discovery"]
        if kind == "RoleBinding":
            binding = {
                **binding,
                "subjects": [
                    {**subject, "namespace": NAMESPACE} for subject in binding["subjects"]
                ],
            }
        control_plane.apply(binding, NAMESPACE)
    token = tmp_path / "token"
    token.write_text(control_plane.token_of("ferrule", NAMESPACE))
    return ApiAccess(control_plane.url, token, control_plane.ca_file)


async def test_discovery_follows_endpoints_as_they_come_and_go(
    control_plane: ControlPlane, access: ApiAccess
) -> None:
    heard: asyncio.Queue[list[str]] = asyncio.Queue()

    def on_change(specs: list[BackendSpec]) -> None:
        heard.put_nowait([spec.url for spec in specs])

    async def change(call: Any, *arguments: Any) -> list[str]:
        await asyncio.to_thread(call, *arguments)
        return await asyncio.wait_for(heard.get(), 10)

    await asyncio.to_thread(
        control_plane.apply, endpoint_slice("vllm-a", n1=True, n2=False), NAMESPACE
    )
    watching = asyncio.create_task(
        KubernetesService(Service(NAMESPACE, "vllm", 8000), access).watch(on_change)
    )
    try:
        assert await asyncio.wait_for(heard.get(), 10) == urls(1)
        assert await change(
            control_plane.apply, endpoint_slice("vllm-a", n1=True, n2=True), NAMESPACE
        ) == urls(1, 2)
        assert await change(
            control_plane.apply, endpoint_slice("vllm-b", n3=True), NAMESPACE
        ) == urls(1, 2, 3)
        assert await change(
            control_plane.apply, endpoint_slice("vllm-a", n1=False, n2=True), NAMESPACE
        ) == urls(2, 3)
        assert await change(control_plane.delete, endpoint_slice("vllm-b"), NAMESPACE) == urls(2)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def urls(*numbers: int) -> list[str]:
    return [f"http://10.1.0.{number}:8000" for number in numbers]


@pytest.mark.usefixtures("access")
@pytest.mark.parametrize(
    ("group", "resource", "verb", "allowed"),
    [
        ("discovery.k8s.io", "endpointslices", "watch", True),
        ("discovery.k8s.io", "endpointslices", "update", False),
        ("", "secrets", "get", False),
        ("", "pods", "list", False),
        ("", "configmaps", "list", False),
    ],
)
def test_the_account_may_read_endpoint_slices_and_nothing_else(
    control_plane: ControlPlane, group: str, resource: str, verb: str, allowed: bool
) -> None:
    wish = {"namespace": NAMESPACE, "group": group, "resource": resource, "verb": verb}
    spec = {"user": f"system:serviceaccount:{NAMESPACE}:ferrule", "resourceAttributes": wish}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = control_plane.ask("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert answer["status"]["allowed"] is allowed
