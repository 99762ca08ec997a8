"""The configuration: one typed value from YAML, flags and the environment. Every problem is
reported with its path."""

from ferrule.config.address import Address, BackendUrl, describe_os_error
from ferrule.config.loading import from_flags, load, loads
from ferrule.config.problems import ConfigError, Problem, UsageError
from ferrule.config.secret import Secret, redact
from ferrule.config.settings import (
    AuthConfig,
    BackendConfig,
    Config,
    DiscoverConfig,
    EdgeConfig,
    Flags,
    HealthConfig,
    KubernetesConfig,
    LimitsConfig,
    ModelConfig,
    PoolConfig,
    QueueConfig,
    TimeoutsConfig,
)
from ferrule.config.wildcard import matches

__all__ = [
    "Address",
    "AuthConfig",
    "BackendConfig",
    "BackendUrl",
    "Config",
    "ConfigError",
    "DiscoverConfig",
    "EdgeConfig",
    "Flags",
    "HealthConfig",
    "KubernetesConfig",
    "LimitsConfig",
    "ModelConfig",
    "PoolConfig",
    "Problem",
    "QueueConfig",
    "Secret",
    "TimeoutsConfig",
    "UsageError",
    "describe_os_error",
    "from_flags",
    "load",
    "loads",
    "matches",
    "redact",
]
