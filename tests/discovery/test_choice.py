"""Which discovery a pool's settings choose."""

from __future__ import annotations

import pytest

from ferrule.config import ConfigError, PoolConfig, loads
from ferrule.discovery.choice import build_watcher
from ferrule.discovery.dns import DnsName
from ferrule.discovery.kubernetes import KubernetesService
from ferrule.discovery.static import StaticList
from ferrule.discovery.watcher import Watcher
from ferrule.routing.backend import BackendSpec


def settings(pool: str) -> PoolConfig:
    return loads(f"pools: {{p: {pool}}}").pools["p"]


KUBERNETES = "{discover: {kubernetes: {service: s, port: http}}}"


@pytest.mark.parametrize(
    ("pool", "kind"),
    [
        ("{backends: ['http://127.0.0.1:9']}", StaticList),
        ("{discover: {dns: 'a.example:8000'}}", DnsName),
        (KUBERNETES, KubernetesService),
    ],
    ids=["static", "dns", "kubernetes"],
)
def test_kinds(monkeypatch: pytest.MonkeyPatch, pool: str, kind: type[Watcher]) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert isinstance(build_watcher("p", settings(pool)), kind)


async def test_the_list_has_urls_and_weights() -> None:
    received: list[BackendSpec] = []
    pool = settings("{backends: ['http://127.0.0.1:9/', {url: 'http://127.0.0.2:9', weight: 2}]}")
    await build_watcher("p", pool).watch(received.extend)
    assert received == [
        BackendSpec("http://127.0.0.1:9", 1.0),
        BackendSpec("http://127.0.0.2:9", 2.0),
    ]


def test_kubernetes_outside_a_cluster_is_a_problem_with_its_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(
        ConfigError, match=r"pools\.p\.discover\.kubernetes: .*KUBERNETES_SERVICE_HOST"
    ):
        build_watcher("p", settings(KUBERNETES))
