"""Checks the keys file and the store of limits. Knows no backends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ferrule.admission.keys import KeyRing, Tenant
from ferrule.catalog import Catalog
from ferrule.config import Config, ConfigError, Problem, matches, redact

STORE_TIMEOUT_S = 2.0


def read_keys(config: Config) -> tuple[list[Tenant] | None, list[Problem]]:
    """The tenants in the order of the keys file, and its problems. None for the tenants: no file,
    or not a usable one."""
    file = config.auth.keys_file
    if file is None:
        return None, []
    try:
        return KeyRing.load(file).tenants, []
    except ConfigError as error:
        return None, [
            Problem(f"{file}: {problem.path}" if problem.path else file, problem.message)
            for problem in error.problems
        ]


def find_unused_keys(
    config: Config, tenants: Sequence[Tenant], catalog: Catalog
) -> Iterator[Problem]:
    """Keys that match no model; none while no model is known."""
    file = config.auth.keys_file
    if not tenants:
        yield Problem(f"{file}: keys", "is empty, so every request is refused")
    known = {served.id for served in catalog.all()} | {
        name for model in config.models for name in (model.id, *model.aliases)
    }
    for index, tenant in enumerate(tenants):
        if known and not any(
            # both ways: a key may name one of the models that an alias pattern stands for
            matches(pattern, name) or matches(name, pattern)
            for pattern in tenant.models
            for name in known
        ):
            yield Problem(
                f"{file}: keys.{index}.models",
                f"`{tenant.name}` may use no served model: {', '.join(tenant.models) or 'none'}",
            )


async def check_store(config: Config) -> list[Problem]:
    """The problem with the Redis that keeps the limits; empty if it answers or none is
    configured."""
    url = config.limits.store.reveal()
    if url == "memory":
        return []
    import redis.asyncio as redis
    from redis.exceptions import RedisError

    client = redis.Redis.from_url(
        url, socket_timeout=STORE_TIMEOUT_S, socket_connect_timeout=STORE_TIMEOUT_S
    )
    try:
        await client.ping()
    except (RedisError, OSError) as error:
        return [
            Problem(
                "limits.store",
                f"{redact(url)} is not reachable: {str(error) or type(error).__name__}",
            )
        ]
    finally:
        await client.aclose()
    return []
