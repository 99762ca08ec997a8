"""The proxies to compare: their versions, and how each is started in front of the mock.

A proxy that is not installed is listed with the reason. Knows nothing of measurements.
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
"""Sent to all. Only LiteLLM needs one; it does not start without."""


class Placement(msgspec.Struct, frozen=True):
    """A proxy's ports (clients, admin or metrics, the mock behind it), a directory for its files,
    and its number of workers."""

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
    """`translates`: between Messages and chat completions; the others pass bytes through. `slow`:
    gets fewer tokens, because a run would take minutes otherwise."""

    name: str
    path: str
    translates: bool
    launch: Callable[[Placement], Launch]
    version: Callable[[], str]
    """Raises FileNotFoundError with the reason if the proxy is not installed."""
    slow: bool = False


# --- versions -----------------------------------------------------------------------------------


def _read_package_version(venv: str, package: str) -> Callable[[], str]:
    def version() -> str:
        python = CACHE / "peers" / venv / "bin" / "python"
        if not (CACHE / "peers" / venv / ".done").exists():
            raise FileNotFoundError("bench/peers.sh installs it")
        code = f"import importlib.metadata as m; print(m.version({package!r}))"
        return subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()

    return version


def _find_nginx() -> str:
    binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if binary is None:
        raise FileNotFoundError("nginx is not installed")
    return binary


def _read_nginx_version() -> str:
    return (
        subprocess.run([_find_nginx(), "-v"], capture_output=True, text=True, check=True)
        .stderr.strip()
        .rpartition("/")[2]
    )


def _read_ferrule_version() -> str:
    import importlib.metadata

    return importlib.metadata.version("ferrule")


# --- launches -----------------------------------------------------------------------------------


def _launch_ferrule(placement: Placement) -> Launch:
    """Limits are out of reach, so that the cost of a request is measured and not a full queue."""
    config = placement.directory / f"ferrule-{placement.port}.yaml"
    pool = {
        "backends": [f"http://127.0.0.1:{placement.backend_port}"],
        "slots": 100_000,
        "max_inflight": 100_000,
    }
    settings = {
        "listen": f"127.0.0.1:{placement.port}",
        "admin": f"127.0.0.1:{placement.admin_port}",
        "workers": placement.workers,
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
    return Launch(argv, f"http://127.0.0.1:{placement.admin_port}/readyz")


def _launch_nginx(placement: Placement) -> Launch:
    """Pass-through with buffering off, which is what a token stream needs."""
    scratch = placement.directory / f"nginx-{placement.port}"
    scratch.mkdir(exist_ok=True)
    paths = "".join(
        f"{kind}_temp_path {scratch}/{kind}; "
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = scratch / "nginx.conf"
    config.write_text(
        f"worker_processes {placement.workers}; daemon off; pid {scratch}/pid; error_log "
        f"{scratch}/error.log;\n"
        "events { worker_connections 8192; }\n"
        f"http {{ access_log off; {paths} keepalive_requests 1000000; client_max_body_size 64m; "
        f"client_body_buffer_size 2m;\n"
        f"upstream mock {{ server 127.0.0.1:{placement.backend_port}; keepalive 1024; "
        f"keepalive_requests 1000000; }}\n"
        f"server {{ listen 127.0.0.1:{placement.port}; location / {{ proxy_pass http://mock; "
        f"proxy_http_version 1.1;\n"
        'proxy_set_header Connection ""; proxy_buffering off; } } }\n'
    )
    argv = [_find_nginx(), "-c", str(config), "-e", f"{scratch}/error.log"]
    return Launch(argv, f"http://127.0.0.1:{placement.port}/health")


def _launch_litellm(placement: Placement) -> Launch:
    config = placement.directory / "litellm.json"
    params = {
        "model": "hosted_vllm/m",
        "api_base": f"http://127.0.0.1:{placement.backend_port}/v1",
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
        str(placement.port),
    ]
    env = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_MASTER_KEY": KEY,
    }
    return Launch(
        [*argv, "--num_workers", "1", "--telemetry", "False"],
        f"http://127.0.0.1:{placement.port}/health/liveliness",
        env,
    )


def _build_router_flags(placement: Placement) -> list[str]:
    flags = {
        "host": "127.0.0.1",
        "port": placement.port,
        "worker-urls": f"http://127.0.0.1:{placement.backend_port}",
        "policy": "round_robin",
        "prometheus-port": placement.admin_port,
        "log-level": "error",
        "max-concurrent-requests": 100_000,
    }
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def _launch_sglang_router(placement: Placement) -> Launch:
    python = str(CACHE / "peers/sglang/bin/python")
    return Launch(
        [python, "-m", "sglang_router.launch_router", *_build_router_flags(placement)],
        f"http://127.0.0.1:{placement.port}/health",
    )


def _launch_vllm_router(placement: Placement) -> Launch:
    return Launch(
        [str(CACHE / "peers/vllm/bin/vllm-router"), *_build_router_flags(placement)],
        f"http://127.0.0.1:{placement.port}/health",
    )


FERRULE = Peer("ferrule", MESSAGES, True, _launch_ferrule, _read_ferrule_version)
PEERS = (
    FERRULE,
    Peer("nginx", CHAT, False, _launch_nginx, _read_nginx_version),
    Peer(
        "sglang-router",
        CHAT,
        False,
        _launch_sglang_router,
        _read_package_version("sglang", "sglang-router"),
    ),
    Peer(
        "vllm-router",
        CHAT,
        False,
        _launch_vllm_router,
        _read_package_version("vllm", "vllm-router"),
    ),
    Peer(
        "litellm",
        MESSAGES,
        True,
        _launch_litellm,
        _read_package_version("litellm", "litellm"),
        slow=True,
    ),
)
