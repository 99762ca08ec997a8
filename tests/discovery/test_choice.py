"""Which discovery a pool's settings mean."""

from __future__ import annotations

import pytest

from ferrule.config import ConfigError, PoolConfig, loads
from ferrule.discovery.choice import watcher_for
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
    assert isinstance(watcher_for("p", settings(pool)), kind)


async def test_the_list_has_urls_and_weights() -> None:
    received: list[BackendSpec] = []
    pool = settings("{backends: ['http://127.0.0.1:9/', {url: 'http://127.0.0.2:9', weight: 2}]}")
    await watcher_for("p", pool).watch(received.extend)
    assert received == [
        BackendSpec("http://127.0.0.1:9", 1.0),
        BackendSpec("http://127.0.0.2:9", 2.0),
    ]


def test_a_cluster_that_is_not_there_is_a_problem_with_a_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(
        ConfigError, match=r"pools\.p\.discover\.kubernetes: .*KUBERNETES_SERVICE_HOST"
    ):
        watcher_for("p", settings(KUBERNETES))
