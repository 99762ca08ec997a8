"""Rules between settings: each broken once, with the path it reports."""

from __future__ import annotations

import pytest

from ferrule.config import ConfigError, loads

POOL = "pools: {rocm: {backends: [http://h:1]}}\n"
TWO = "pools: {a: {backends: [http://h:1]}, b: {backends: [http://h:2]}}\n"


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        loads(text, environment={})
    return [str(problem) for problem in raised.value.problems]


@pytest.mark.parametrize(
    ("backends", "problem"),
    [
        (
            "[http://h:8000, http://x, http://h:8000]",
            "pools.rocm.backends.2: `http://h:8000` is already listed as pools.rocm.backends.0",
        ),
        (
            "[http://h, 'HTTP://H:80/']",
            "pools.rocm.backends.1: `http://h` is already listed as pools.rocm.backends.0",
        ),
        (
            "[http://h/p, {url: http://u:canary@h/p/}]",
            "pools.rocm.backends.1: `http://h/p` is already listed as pools.rocm.backends.0",
        ),
    ],
)
def test_l09_a_pool_that_lists_a_backend_twice(backends: str, problem: str) -> None:
    assert problems(f"pools: {{rocm: {{backends: {backends}}}}}") == [problem]


def test_the_same_backend_may_be_in_two_pools() -> None:
    assert len(loads("pools: {a: {backends: [http://h]}, b: {backends: [http://h]}}").pools) == 2


@pytest.mark.parametrize("listen", ["127.0.0.1:80", "localhost:80", "'[::1]:80'"])
def test_an_open_proxy_may_listen_on_loopback(listen: str) -> None:
    assert loads(f"{POOL}listen: {listen}").listen.is_loopback


@pytest.mark.parametrize("listen", ["0.0.0.0:80", "10.0.0.1:80", "'[::]:80'", "example.com:80"])
def test_an_open_proxy_may_not_listen_further(listen: str) -> None:
    (problem,) = problems(f"{POOL}listen: {listen}")
    assert problem.startswith("listen: ")
    assert problem.endswith(
        "set auth.keys_file, listen on 127.0.0.1, or set auth.allow_anonymous: true"
    )
    assert not loads(f"{POOL}listen: {listen}\nauth: {{allow_anonymous: true}}").listen.is_loopback


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["pools: expected at least one pool with backends"]),
        (
            "pools: {a b: {backends: [http://h]}}",
            ["pools.a b: expected a name of letters, digits, dots, dashes and underscores"],
        ),
        ("pools: {a: {}}", ["pools.a: expected backends or discover"]),
        ("pools: {a: {backends: []}}", ["pools.a: expected backends or discover"]),
        (
            "pools: {a: {backends: [http://h], discover: {dns: 'h:1'}}}",
            ["pools.a.discover: expected either backends or discover, not both"],
        ),
        (
            "pools: {a: {discover: {}}}",
            ["pools.a.discover: expected exactly one of dns and kubernetes"],
        ),
        (
            "pools: {a: {discover: {dns: 'h:1', kubernetes: {service: s, port: 1}}}}",
            ["pools.a.discover: expected exactly one of dns and kubernetes"],
        ),
        (
            "pools: {a: {discover: {kubernetes: {service: s, port: 0}}}}",
            ["pools.a.discover.kubernetes.port: expected a whole number >= 1"],
        ),
        (
            "pools: {a: {discover: {dns: 'h:0'}}}",
            ["pools.a.discover.dns: expected HOST:PORT with the backends' port"],
        ),
        (
            "pools: {a: {backends: [http://u:canary@h], api_key: canary}}",
            [
                "pools.a.backends.0: expected either a user in the URL or the pool's api_key, "
                "not both"
            ],
        ),
        (
            "pools: {a: {backends: [http://h], health: {path: health}}}",
            ["pools.a.health.path: expected a path such as /health"],
        ),
        (f"{POOL}admin: 127.0.0.1:8080", ["admin: expected another address than listen"]),
        (
            f"{POOL}models: [{{id: m, pool: rcm}}]",
            ["models.0.pool: no pool `rcm`; expected one of rocm"],
        ),
        (
            f"{TWO}models: [{{id: m}}]",
            ["models.0.pool: is required, since there is more than one pool: a, b"],
        ),
        (
            f"{POOL}models: [{{id: m-*}}]",
            ["models.0.id: expected a name without `*`; patterns go into aliases"],
        ),
        (
            f"{POOL}models: [{{id: m}}, {{id: m}}]",
            ["models.1.id: `m` is already taken by models.0.id"],
        ),
        (
            f"{POOL}models: [{{id: m, aliases: ['x-*']}}, {{id: n, aliases: [m, 'x-*']}}]",
            [
                "models.1.aliases.0: `m` is already taken by models.0.id",
                "models.1.aliases.1: `x-*` is already taken by models.0.aliases.0",
            ],
        ),
        (
            f"{POOL}models: [{{id: m, tokenizer: gpt2}}]",
            [
                "models.0.tokenizer: expected o200k_base, cl100k_base or the path of a "
                "tokenizer.json"
            ],
        ),
        (
            f"{POOL}models: [{{id: m, can_continue: false, thinking_budget: edge}}]",
            ["models.0.thinking_budget: expected refuse or engine, since can_continue is false"],
        ),
        (
            f"{POOL}models: [{{id: m, dialect: {{reasoning: txt}}}}]",
            ["models.0.dialect.reasoning: expected one of thinking, text"],
        ),
        (
            f"{POOL}models: [{{id: m, dialect: {{reasonning: text}}}}]",
            ["models.0.dialect.reasonning: unknown setting; did you mean reasoning?"],
        ),
        (
            f"{POOL}models: [{{id: m, dialect: {{name: pooled}}}}]",
            [
                "models.0.dialect.name: expected single settings; `dialect` at the top level sets "
                "the dialect they override"
            ],
        ),
        (
            f"{POOL}limits: {{store: disk}}",
            ["limits.store: expected memory or redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]"],
        ),
        (
            f"{POOL}limits: {{store: 'redis://:canary@h:x'}}",
            ["limits.store: expected memory or redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]"],
        ),
        (
            f"{POOL}limits: {{store: 'redis://h/canary'}}",
            ["limits.store: expected memory or redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]"],
        ),
    ],
)
def test_rules(text: str, expected: list[str]) -> None:
    assert problems(text) == expected
    assert "canary" not in "".join(expected)


@pytest.mark.parametrize(
    "store", ["memory", "redis://h", "redis://h:6379/0", "rediss://user:p%40ss@h/3"]
)
def test_stores(store: str) -> None:
    assert loads(f"{POOL}limits: {{store: '{store}'}}").limits.store.reveal() == store


@pytest.mark.parametrize("port", [8000, "http"])
def test_a_port_by_number_or_by_name(port: int | str) -> None:
    config = loads(f"pools: {{a: {{discover: {{kubernetes: {{service: s, port: {port}}}}}}}}}")
    discover = config.pools["a"].discover
    assert discover is not None
    assert discover.kubernetes is not None
    assert discover.kubernetes.port == port


def test_effort_null_absent_and_listed() -> None:
    config = loads(
        f"{POOL}models: [{{id: a}}, {{id: b, effort: null}}, {{id: c, effort: [low, high]}}]"
    )
    assert [model.effort for model in config.models] == [None, None, ("low", "high")]


def test_dialect_settings_of_one_model() -> None:
    config = loads(
        f"{POOL}dialect: pooled\nmodels: [{{id: a, dialect: {{reasoning: text, accepted: "
        f"[model], max_tokens_cap: null}}}}]"
    )
    assert config.models[0].dialect == {
        "reasoning": "text",
        "accepted": ["model"],
        "max_tokens_cap": None,
    }
