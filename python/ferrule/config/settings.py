"""Every setting with its type, its default, and its unit in its name: the configuration file on one
page.

Frozen and comparable, so that a reload can tell what changed. `rules` checks what settings mean
together.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ferrule.config.address import Address, BackendUrl
from ferrule.config.secret import Secret

Text = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1, le=10_000_000)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
DialectName = Literal["token-factory", "pooled", "tokenify", "anthropic"]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class AuthConfig(_Section, frozen=True):
    keys_file: Text | None = None
    """Absolute after loading. None: no keys are required; then only loopback may be listened on
    unless `allow_anonymous` is set."""
    allow_anonymous: bool = False


class BackendConfig(_Section, frozen=True):
    """In the file either a URL or {url, weight}."""

    url: BackendUrl
    weight: Annotated[float, Meta(gt=0, le=1000)] = 1.0


class KubernetesConfig(_Section, frozen=True):
    service: Text
    port: Annotated[int, Meta(ge=1, le=65535)] | Text
    """The number the pods listen on, or the name of a port of the service."""
    namespace: Text = "default"


class DiscoverConfig(_Section, frozen=True):
    """Exactly one of `dns` and `kubernetes`. `interval_s`: between DNS lookups."""

    dns: Address | None = None
    interval_s: Seconds = 5.0
    kubernetes: KubernetesConfig | None = None


class QueueConfig(_Section, frozen=True):
    size: Annotated[int, Meta(ge=0, le=100_000)] = 256
    timeout_s: Seconds = 30.0


class HealthConfig(_Section, frozen=True):
    path: Text = "/health"
    interval_s: Seconds = 5.0
    timeout_s: Seconds = 2.0
    fall: Count = 2
    rise: Count = 2


class TimeoutsConfig(_Section, frozen=True):
    """`first_event_s` and `idle_s` apply to streams only, `total_s` to every response."""

    connect_s: Seconds = 2.0
    first_event_s: Seconds = 600.0
    idle_s: Seconds = 120.0
    total_s: Seconds = 3600.0


class PoolConfig(_Section, frozen=True):
    """Either `backends` or `discover`."""

    backends: tuple[BackendConfig, ...] = ()
    discover: DiscoverConfig | None = None
    api_key: Secret | None = None
    engine: Literal["vllm", "sglang", "llamacpp", "auto"] = "auto"
    slots: Count = 64
    max_inflight: Count = 128
    queue: QueueConfig = QueueConfig()
    health: HealthConfig = HealthConfig()
    timeouts: TimeoutsConfig = TimeoutsConfig()
    retries: Annotated[int, Meta(ge=0, le=10)] = 2
    split_think: bool = False
    """For engines that leave `<think>…</think>` in the text: moves it into the reasoning."""
    system_first: bool = False
    """For chat templates that accept a system message only at the start: turns later ones into user
    text."""


class ModelConfig(_Section, frozen=True):
    id: Text
    pool: str = ""
    """Defaults to the only pool; never empty after loading."""
    upstream: str = ""
    """The model's name at the backends. Defaults to the id; never empty after loading."""
    aliases: tuple[Text, ...] = ()
    context_window: Count | None = None
    """Tokens. None: as the backends report it."""
    effort: Annotated[tuple[Text, ...], Meta(min_length=1)] | None = None
    """The levels that the model knows. None: unknown, so any level is forwarded unchecked."""
    thinking_budget: Literal["refuse", "engine", "edge"] | None = None
    """None: as the dialect says."""
    can_continue: bool = True
    """Whether the chat template can continue a partial assistant message, as enforcing a thinking
    budget at the edge requires."""
    images: bool = False
    tokenizer: Text = "o200k_base"
    """o200k_base, cl100k_base, or (after loading) the absolute path of a tokenizer.json."""
    dialect: dict[str, object] = msgspec.field(default_factory=dict)
    """Overrides of single settings of the dialect."""


class LimitsConfig(_Section, frozen=True):
    store: Secret = Secret("memory")
    """`memory` or a redis URL, which may hold a password."""
    on_store_failure: Literal["allow", "deny"] = "allow"


class EdgeConfig(_Section, frozen=True):
    """Bounds and deadlines for clients, per worker."""

    max_connections: Count = 10_000
    max_streams: Count = 4_000
    max_memory_mb: Count | None = None
    """A worker with more resident memory answers new requests with 529. None: no bound."""
    header_s: Seconds = 15.0
    body_stall_s: Seconds = 30.0
    idle_s: Seconds = 90.0
    write_stall_s: Seconds = 60.0


class Config(_Section, frozen=True):
    listen: Address = Address("127.0.0.1", 8080)
    admin: Address = Address("127.0.0.1", 9090)
    workers: Annotated[int, Meta(ge=1, le=256)] = 1
    dialect: DialectName = "token-factory"
    body_limit_mb: Annotated[int, Meta(ge=1, le=1024)] = 32
    ping_after_s: Seconds = 10.0
    drain_grace_s: Annotated[float, Meta(ge=0, le=86_400)] = 600.0
    media_hosts: tuple[Text, ...] = ()
    auth: AuthConfig = AuthConfig()
    pools: dict[str, PoolConfig] = msgspec.field(default_factory=dict)
    models: tuple[ModelConfig, ...] = ()
    """Empty: every model the backends list, with the default policy."""
    limits: LimitsConfig = LimitsConfig()
    edge: EdgeConfig = EdgeConfig()


class Flags(_Section, frozen=True):
    """The command line's flags; None: not given. They override the file, except `backends`, which
    stand in its place."""

    backends: tuple[str, ...] = ()
    listen: str | None = None
    admin: str | None = None
    workers: int | None = None
    dialect: str | None = None


NO_FLAGS = Flags()
