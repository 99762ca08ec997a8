"""The proxies under measurement: what each is, how it is started in front of the mock, and whether
it is here.

A proxy that is not installed is listed with its reason. Knows no measurement.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("FERRULE_CACHE", ROOT / ".cache"))
MESSAGES = "/v1/messages"
CHAT = "/v1/chat/completions"
KEY = "sk-bench-4f1d6c2a9b8e47d0a5c3f2e1"
"""Only LiteLLM asks for one (it does not start without), all are sent it."""


class Place(msgspec.Struct, frozen=True):
    """Where a proxy is put: its own port, a second one for its admin or metrics, the mock's, and a
    directory for its files."""

    port: int
    admin_port: int
    backend_port: int
    directory: Path
    workers: int = 1


class Launch(msgspec.Struct, frozen=True):
    argv: list[str]
    ready_url: str
    env: dict[str, str] = {}


class Peer(msgspec.Struct, frozen=True):
    """`translates`: it turns Messages into chat completions and back; the others pass bytes
    through. `slow`: costs so much per token that it is given fewer, or a run would take minutes."""

    name: str
    path: str
    translates: bool
    launch: Callable[[Place], Launch]
    version: Callable[[], str]
    """Raises FileNotFoundError, saying what is missing, when the proxy is not here."""
    slow: bool = False


# --- versions -----------------------------------------------------------------------------------


def _package(venv: str, package: str) -> Callable[[], str]:
    def version() -> str:
        python = CACHE / "peers" / venv / "bin" / "python"
        if not (CACHE / "peers" / venv / ".done").exists():
            raise FileNotFoundError("bench/peers.sh installs it")
        code = f"import importlib.metadata as m; print(m.version({package!r}))"
        return subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()

    return version


def _nginx_binary() -> str:
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise FileNotFoundError("nginx is not on this machine")
    return found


def _nginx_version() -> str:
    return (
        subprocess.run([_nginx_binary(), "-v"], capture_output=True, text=True, check=True)
        .stderr.strip()
        .rpartition("/")[2]
    )


def _ferrule_version() -> str:
    import importlib.metadata

    return importlib.metadata.version("ferrule")


# --- launches -----------------------------------------------------------------------------------


def _ferrule(place: Place) -> Launch:
    """Limits are set out of the way: the cost of the path is measured, not what a full queue
    does."""
    config = place.directory / f"ferrule-{place.port}.yaml"
    pool = {
        "backends": [f"http://127.0.0.1:{place.backend_port}"],
        "slots": 100_000,
        "max_inflight": 100_000,
    }
    settings = {
        "listen": f"127.0.0.1:{place.port}",
        "admin": f"127.0.0.1:{place.admin_port}",
        "workers": place.workers,
        "pools": {"bench": pool},
        "models": [{"id": "m", "pool": "bench", "tokenizer": "cl100k_base"}],
    }
    config.write_text(json.dumps(settings))
    argv = [
        sys.executable,
        "-m",
        "ferrule",
        "serve",
        "--config",
        str(config),
        "--log-level",
        "warning",
    ]
    return Launch(argv, f"http://127.0.0.1:{place.admin_port}/readyz")


def _nginx(place: Place) -> Launch:
    """Pass-through with buffering off, which is what a token stream needs."""
    scratch = place.directory / f"nginx-{place.port}"
    scratch.mkdir(exist_ok=True)
    paths = "".join(
        f"{kind}_temp_path {scratch}/{kind}; "
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = scratch / "nginx.conf"
    config.write_text(
        f"worker_processes {place.workers}; daemon off; pid {scratch}/pid; error_log "
        f"{scratch}/error.log;\n"
        "events { worker_connections 8192; }\n"
        f"http {{ access_log off; {paths} keepalive_requests 1000000; client_max_body_size 64m; "
        f"client_body_buffer_size 2m;\n"
        f"upstream mock {{ server 127.0.0.1:{place.backend_port}; keepalive 1024; "
        f"keepalive_requests 1000000; }}\n"
        f"server {{ listen 127.0.0.1:{place.port}; location / {{ proxy_pass http://mock; "
        f"proxy_http_version 1.1;\n"
        'proxy_set_header Connection ""; proxy_buffering off; } } }\n'
    )
    argv = [_nginx_binary(), "-c", str(config), "-e", f"{scratch}/error.log"]
    return Launch(argv, f"http://127.0.0.1:{place.port}/health")


def _litellm(place: Place) -> Launch:
    config = place.directory / "litellm.json"
    params = {
        "model": "hosted_vllm/m",
        "api_base": f"http://127.0.0.1:{place.backend_port}/v1",
        "api_key": "none",
    }
    config.write_text(json.dumps({"model_list": [{"model_name": "m", "litellm_params": params}]}))
    argv = [
        str(CACHE / "peers/litellm/bin/litellm"),
        "--config",
        str(config),
        "--host",
        "127.0.0.1",
        "--port",
        str(place.port),
    ]
    env = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_MASTER_KEY": KEY,
    }
    return Launch(
        [*argv, "--num_workers", "1", "--telemetry", "False"],
        f"http://127.0.0.1:{place.port}/health/liveliness",
        env,
    )


def _router_flags(place: Place) -> list[str]:
    flags = {
        "host": "127.0.0.1",
        "port": place.port,
        "worker-urls": f"http://127.0.0.1:{place.backend_port}",
        "policy": "round_robin",
        "prometheus-port": place.admin_port,
        "log-level": "error",
        "max-concurrent-requests": 100_000,
    }
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def _sglang_router(place: Place) -> Launch:
    python = str(CACHE / "peers/sglang/bin/python")
    return Launch(
        [python, "-m", "sglang_router.launch_router", *_router_flags(place)],
        f"http://127.0.0.1:{place.port}/health",
    )


def _vllm_router(place: Place) -> Launch:
    return Launch(
        [str(CACHE / "peers/vllm/bin/vllm-router"), *_router_flags(place)],
        f"http://127.0.0.1:{place.port}/health",
    )


FERRULE = Peer("ferrule", MESSAGES, True, _ferrule, _ferrule_version)
PEERS = (
    FERRULE,
    Peer("nginx", CHAT, False, _nginx, _nginx_version),
    Peer("sglang-router", CHAT, False, _sglang_router, _package("sglang", "sglang-router")),
    Peer("vllm-router", CHAT, False, _vllm_router, _package("vllm", "vllm-router")),
    Peer("litellm", MESSAGES, True, _litellm, _package("litellm", "litellm"), slow=True),
)
