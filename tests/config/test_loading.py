"""Files, flags, and both: precedence, what relative paths are relative to, and how problems are
printed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from ferrule import config
from ferrule.config import Address, BackendUrl, Config, ConfigError, Flags, Secret

EXAMPLE = Path(__file__).parents[2] / "ferrule.example.yaml"

CONTRACT = """
listen: 0.0.0.0:8080
admin: 0.0.0.0:9090
workers: 2
dialect: token-factory
body_limit_mb: 32
ping_after_s: 10
drain_grace_s: 600
media_hosts: []
auth:
  keys_file: keys.yaml
  allow_anonymous: false
pools:
  rocm:
    backends: [http://10.0.0.11:8000, {url: http://10.0.0.12:8000, weight: 2}]
    api_key: ${VLLM_API_KEY}
    engine: auto
    slots: 64
    max_inflight: 128
    queue: {size: 256, timeout_s: 30}
    health: {path: /health, interval_s: 5, timeout_s: 2, fall: 2, rise: 2}
    timeouts: {connect_s: 2, first_event_s: 600, idle_s: 120, total_s: 3600}
    retries: 2
  found:
    discover: {dns: "vllm.default.svc.cluster.local:8000", interval_s: 5}
  kube:
    discover: {kubernetes: {namespace: default, service: vllm, port: 8000}}
models:
  - id: DeepSeek-V4-Flash
    pool: rocm
    upstream: deepseek-ai/DeepSeek-V4-Flash
    aliases: ["claude-haiku-*"]
    context_window: 131072
    effort: [low, medium, high]
    thinking_budget: refuse
    images: false
    tokenizer: own/tokenizer.json
    dialect: {reasoning: text}
  - {id: plain, pool: kube}
limits:
  store: redis://host:6379/0
  on_store_failure: deny
"""


def write_config(folder: Path, text: str = CONTRACT) -> Path:
    path = folder / "ferrule.yaml"
    path.write_text(text)
    (folder / "keys.yaml").write_text("keys: []")
    (folder / "own").mkdir(exist_ok=True)
    (folder / "own" / "tokenizer.json").write_text("{}")
    return path


def test_a_file_with_every_setting(tmp_path: Path) -> None:
    loaded = config.load(write_config(tmp_path), environment={"VLLM_API_KEY": "canary"})
    rocm, model = loaded.pools["rocm"], loaded.models[0]
    assert loaded.listen == Address("0.0.0.0", 8080)
    assert loaded.auth.keys_file == str(tmp_path / "keys.yaml")
    assert [(backend.url.url, backend.weight) for backend in rocm.backends] == [
        ("http://10.0.0.11:8000", 1),
        ("http://10.0.0.12:8000", 2),
    ]
    assert rocm.api_key == Secret("canary")
    assert rocm == config.PoolConfig(backends=rocm.backends, api_key=rocm.api_key)
    assert loaded.pools["found"].discover == config.DiscoverConfig(
        dns=Address("vllm.default.svc.cluster.local", 8000)
    )
    assert loaded.pools["kube"].discover == config.DiscoverConfig(
        kubernetes=config.KubernetesConfig(service="vllm", port=8000)
    )
    assert model == config.ModelConfig(
        id="DeepSeek-V4-Flash",
        pool="rocm",
        upstream="deepseek-ai/DeepSeek-V4-Flash",
        aliases=("claude-haiku-*",),
        context_window=131072,
        effort=("low", "medium", "high"),
        thinking_budget="refuse",
        tokenizer=str(tmp_path / "own" / "tokenizer.json"),
        dialect={"reasoning": "text"},
    )
    assert loaded.models[1].upstream == "plain"
    assert loaded.limits.on_store_failure == "deny"
    assert "canary" not in repr(loaded)


def test_the_example_states_the_defaults() -> None:
    loaded = config.load(EXAMPLE, environment={})
    pool = loaded.pools["rocm"]
    assert loaded == Config(pools=loaded.pools, models=loaded.models)
    assert pool == config.PoolConfig(backends=pool.backends)
    assert [(model.id, model.effort) for model in loaded.models] == [
        ("DeepSeek-V4-Flash", ("low", "medium", "high")),
        ("Qwen3.8-Flash-Next", ("low", "medium")),
        ("MiniCPM-V-4.7-1B", None),
        ("MiniCPM-V-4.7-35B-A3B", None),
        ("Gemma-4-31B-IT", None),
    ]


def test_the_example_names_every_setting() -> None:
    text = EXAMPLE.read_text()
    kinds = [
        config.Config,
        config.AuthConfig,
        config.DiscoverConfig,
        config.EdgeConfig,
        config.HealthConfig,
        config.KubernetesConfig,
        config.LimitsConfig,
    ]
    kinds += [config.ModelConfig, config.PoolConfig, config.QueueConfig, config.TimeoutsConfig]
    missing = [
        field.name
        for kind in kinds
        for field in msgspec.structs.fields(kind)
        if f"{field.name}:" not in text
    ]
    assert missing == []


def test_a_variable_inside_braces_is_quoted() -> None:
    text = "pools: {{p: {{backends: ['http://a'], api_key: {0}}}}}"
    loaded = config.loads(text.format('"${KEY}"'), environment={"KEY": "k"})
    assert loaded.pools["p"].api_key == Secret("k")
    with pytest.raises(ConfigError):
        config.loads(text.format("${KEY}"), environment={"KEY": "k"})


def test_a_reload_can_tell_what_changed(tmp_path: Path) -> None:
    environment = {"VLLM_API_KEY": "k"}
    first, second = (config.load(write_config(tmp_path), environment=environment) for _ in range(2))
    assert first == second
    changed = config.load(
        write_config(tmp_path, CONTRACT.replace("retries: 2", "retries: 1")),
        environment=environment,
    )
    assert changed != first
    assert [name for name in changed.pools if changed.pools[name] != first.pools[name]] == ["rocm"]
    assert config.load(write_config(tmp_path), environment={"VLLM_API_KEY": "other"}) != first


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    flags = Flags(listen="127.0.0.1:1", admin="127.0.0.1:2", workers=3, dialect="pooled")
    loaded = config.load(write_config(tmp_path), flags, {"VLLM_API_KEY": "k"})
    assert (loaded.listen.port, loaded.admin.port, loaded.workers, loaded.dialect) == (
        1,
        2,
        3,
        "pooled",
    )
    assert loaded.limits.on_store_failure == "deny"


def test_flags_alone() -> None:
    loaded = config.from_flags(
        Flags(backends=("http://127.0.0.1:8000/", "http://127.0.0.1:8001"), listen="127.0.0.1:0")
    )
    assert loaded.models == ()
    assert [backend.url for backend in loaded.pools["default"].backends] == [
        BackendUrl("http://127.0.0.1:8000"),
        BackendUrl("http://127.0.0.1:8001"),
    ]
    assert loaded == Config(listen=Address("127.0.0.1", 0), pools=loaded.pools)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (Flags(), "--backend: expected at least one backend URL, or --config FILE"),
        (
            Flags(backends=("nonsense",)),
            "--backend: `nonsense`: expected http://HOST[:PORT][/PREFIX] or https://…",
        ),
        (
            Flags(backends=("http://h", "http://h:80")),
            "--backend: `http://h` is already listed as pools.default.backends.0",
        ),
        (
            Flags(backends=("http://h",), listen="8080"),
            "--listen: expected HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080",
        ),
        (Flags(backends=("http://h",), workers=0), "--workers: expected a whole number >= 1"),
        (
            Flags(backends=("http://h",), dialect="x"),
            "--dialect: expected one of token-factory, pooled, tokenify, anthropic",
        ),
        (
            Flags(backends=("http://h",), listen="0.0.0.0:1"),
            "--listen: 0.0.0.0:1 is open to others; set auth.keys_file, listen on 127.0.0.1, or "
            "set auth.allow_anonymous: true",
        ),
    ],
)
def test_problems_of_flags_name_the_flag(flags: Flags, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config.from_flags(flags)
    assert str(raised.value) == problem


def test_backends_come_from_a_flag_or_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected either --backend or --config"):
        config.load(write_config(tmp_path), Flags(backends=("http://h",)))


def test_all_problems_at_once_each_with_its_file(tmp_path: Path) -> None:
    path = write_config(
        tmp_path,
        "workers: 0\npools: {rocm: {backends: [http://h], health: {intervall_s: 3}}}\nmodels: 3\n",
    )
    with pytest.raises(ConfigError) as raised:
        config.load(path)
    assert str(raised.value).splitlines() == [
        f"{path}: workers: expected a whole number >= 1",
        f"{path}: pools.rocm.health.intervall_s: unknown setting; did you mean interval_s?",
        f"{path}: models: expected a list, got a whole number",
    ]


def test_missing_files_are_named(tmp_path: Path) -> None:
    text = (
        "auth: {keys_file: none.yaml}\npools: {a: {backends: [http://h]}}\nmodels: [{id: m, "
        "tokenizer: x/tokenizer.json}]"
    )
    with pytest.raises(ConfigError) as raised:
        config.load(write_config(tmp_path, text))
    assert [str(problem) for problem in raised.value.problems] == [
        f"models.0.tokenizer: no such file: {tmp_path / 'x/tokenizer.json'}",
        f"auth.keys_file: no such file: {tmp_path / 'none.yaml'}",
    ]


def test_p05_no_secret_in_any_problem(tmp_path: Path) -> None:
    text = """
pools:
  a:
    backends: ["http://u:canary@h", "http://u:canary@h/", "http://u:canary@h:x"]
    api_key: [canary]
limits: {store: "http://:canary@h", on_store_failure: canari}
"""
    with pytest.raises(ConfigError) as raised:
        config.load(write_config(tmp_path, text))
    assert len(raised.value.problems) == 3
    assert "canary" not in str(raised.value)
    assert hashlib.sha256(b"canary").hexdigest() not in str(raised.value)
