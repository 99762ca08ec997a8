"""What the black-box tests share: say what the backend tells, get the message that the client was
told."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import yaml
from tests.doubles.backend import ScriptedBackend, stream
from tests.doubles.frames import Canned
from tests.doubles.loop_thread import LoopThread
from tests.doubles.proxy import Ferrule, config_for

Received = Callable[..., dict[str, Any]]
Sent = Callable[..., dict[str, Any]]


@pytest.fixture
def received(proxy: Ferrule, backend: ScriptedBackend) -> Received:
    """`told(frame, …)`: the backend streams these frames; returns the message, its stream checked
    against the invariant."""

    def tell(*steps: Any, **overrides: Any) -> dict[str, Any]:
        backend.play(stream(*steps))
        return proxy.stream(**overrides).message

    return tell


@pytest.fixture
def sent(proxy: Ferrule, backend: ScriptedBackend) -> Sent:
    """`sent(messages=…)`: asks, wants a 200, and returns the body that went upstream."""

    def send(**overrides: Any) -> dict[str, Any]:
        backend.play(Canned("Hello."))
        proxy.message(**overrides)
        body: dict[str, Any] = backend.last.json
        return body

    return send


# One proxy for each dialect

DIALECTS = ("token-factory", "pooled", "tokenify", "anthropic")


@pytest.fixture(scope="session")
def shared_wide_backend(loop_thread: LoopThread) -> Iterator[ScriptedBackend]:
    backend = ScriptedBackend(loop_thread, max_model_len=200_000)
    yield backend
    backend.stop()


@pytest.fixture
def wide_backend(shared_wide_backend: ScriptedBackend) -> ScriptedBackend:
    """The backend behind `dialects`; its window holds 200,000 tokens."""
    shared_wide_backend.reset()
    return shared_wide_backend


@pytest.fixture(scope="session")
def dialect_config(shared_wide_backend: ScriptedBackend) -> Callable[[str], dict[str, Any]]:
    """The config of a proxy in one dialect: models `m`, `seeing` (takes images) and `tiers`
    (verified effort tiers)."""

    def make(dialect: str) -> dict[str, Any]:
        config = config_for(shared_wide_backend.url, dialect=dialect)
        config["models"].append({"id": "seeing", "pool": "p", "upstream": "m", "images": True})
        config["models"].append(
            {"id": "tiers", "pool": "p", "upstream": "m", "effort": ["low", "medium"]}
        )
        return config

    return make


@pytest.fixture(scope="session")
def dialects(
    tmp_path_factory: pytest.TempPathFactory, dialect_config: Callable[[str], dict[str, Any]]
) -> Iterator[dict[str, Ferrule]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(Ferrule(dialect_config(name), tmp_path_factory.mktemp(name)))
            for name in DIALECTS
        }


@pytest.fixture(scope="module")
def keyed_dialects(
    tmp_path_factory: pytest.TempPathFactory, dialect_config: Callable[[str], dict[str, Any]]
) -> Iterator[dict[str, Ferrule]]:
    """With keys: `sk-good`, and `sk-slow` for one request a minute."""
    keys = tmp_path_factory.mktemp("keys") / "keys.yaml"
    digests = {name: hashlib.sha256(f"sk-{name}".encode()).hexdigest() for name in ("good", "slow")}
    entries: list[dict[str, Any]] = [
        {"name": name, "sha256": digest, "models": ["*"]} for name, digest in digests.items()
    ]
    entries[1]["requests_per_minute"] = 1
    keys.write_text(yaml.safe_dump({"keys": entries}))
    with ExitStack() as stack:
        configs = {
            name: {**dialect_config(name), "auth": {"keys_file": str(keys)}} for name in DIALECTS
        }
        yield {
            name: stack.enter_context(Ferrule(config, tmp_path_factory.mktemp(name)))
            for name, config in configs.items()
        }
