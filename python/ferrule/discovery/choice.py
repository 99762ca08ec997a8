"""Chooses a pool's discovery: the configured list, a DNS name or a Kubernetes service."""

from __future__ import annotations

import os

from ferrule.config import ConfigError, PoolConfig, Problem
from ferrule.discovery.dns import DnsName
from ferrule.discovery.kubernetes import KubernetesService, Service, in_cluster
from ferrule.discovery.static import StaticList
from ferrule.discovery.watcher import Watcher
from ferrule.routing.backend import BackendSpec


def watcher_for(pool: str, settings: PoolConfig) -> Watcher:
    """Raises ConfigError for Kubernetes discovery outside a cluster."""
    found = settings.discover
    if found is None:
        return StaticList(
            [BackendSpec(backend.url.url, backend.weight) for backend in settings.backends]
        )
    if found.dns is not None:
        return DnsName(found.dns.host, found.dns.port, found.interval_s)
    assert found.kubernetes is not None
    where = found.kubernetes
    try:
        access = in_cluster(os.environ)
    except LookupError as outside:
        raise ConfigError([Problem(f"pools.{pool}.discover.kubernetes", str(outside))]) from outside
    return KubernetesService(Service(where.namespace, where.service, where.port), access)
