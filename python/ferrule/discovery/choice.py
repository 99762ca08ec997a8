"""Chooses a pool's discovery: the configured list, a DNS name or a Kubernetes service."""

from __future__ import annotations

import os

from ferrule.config import ConfigError, PoolConfig, Problem
from ferrule.discovery.dns import DnsName
from ferrule.discovery.kubernetes import KubernetesService, Service, read_cluster_access
from ferrule.discovery.static import StaticList
from ferrule.discovery.watcher import Watcher
from ferrule.routing.backend import BackendSpec


def build_watcher(pool: str, settings: PoolConfig) -> Watcher:
    """Raises ConfigError for Kubernetes discovery outside a cluster."""
    discover = settings.discover
    if discover is None:
        return StaticList(
            [BackendSpec(backend.url.url, backend.weight) for backend in settings.backends]
        )
    if discover.dns is not None:
        return DnsName(discover.dns.host, discover.dns.port, discover.interval_s)
    kubernetes = discover.kubernetes
    assert kubernetes is not None, "the rules of the configuration ask for one of the two"
    try:
        access = read_cluster_access(os.environ)
    except LookupError as error:
        raise ConfigError([Problem(f"pools.{pool}.discover.kubernetes", str(error))]) from error
    service = Service(kubernetes.namespace, kubernetes.service, kubernetes.port)
    return KubernetesService(service, access)
