"""The configuration: one typed value, read from YAML, flags and the environment; every problem named with its path."""

from ferrule.config.address import Address, BackendUrl, reason_of
from ferrule.config.loading import from_flags, load, loads
from ferrule.config.problems import ConfigError, Problem, UsageError
from ferrule.config.secret import Secret, redacted
from ferrule.config.settings import (
    Auth,
    Backend,
    Config,
    Discover,
    Edge,
    Flags,
    Health,
    KubernetesService,
    Limits,
    Model,
    Pool,
    Queue,
    Timeouts,
    find_model,
)
from ferrule.config.wildcard import matches

__all__ = [
    "Address",
    "Auth",
    "Backend",
    "BackendUrl",
    "Config",
    "ConfigError",
    "Discover",
    "Edge",
    "Flags",
    "Health",
    "KubernetesService",
    "Limits",
    "Model",
    "Pool",
    "Problem",
    "Queue",
    "Secret",
    "Timeouts",
    "UsageError",
    "find_model",
    "from_flags",
    "load",
    "loads",
    "matches",
    "reason_of",
    "redacted",
]
