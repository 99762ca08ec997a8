"""Real engines as processes: vLLM for the CPU with a model that plays scripts, and llama.cpp's
server. `install.sh` puts them there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.doubles.backend import wait_until
from tests.doubles.client import Client
from tests.doubles.proxy import ROOT, free_port

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("FERRULE_CACHE", ROOT / ".cache")) / "engines"
GGUF = CACHE / "gemma-3-270m-q4_k_m.gguf"
# A first start compiles and loads half a gigabyte of libraries; on two busy cores that takes its
# time.
START_TIMEOUT_S = 240.0


class Server:
    """One engine process with its log."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        port: int,
        folder: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.port, self.url = port, f"http://127.0.0.1:{port}"
        self._log_path = folder / f"{name}-{port}.log"
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                argv,
                cwd=folder,
                env={**os.environ, **(env or {})},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.client = Client(f"127.0.0.1:{port}", timeout_s=20)

    def wait_until_up(self) -> None:
        wait_until(self._is_up, START_TIMEOUT_S, f"{self.url} to come up")

    def _is_up(self) -> bool:
        assert self.process.poll() is None, (
            f"the engine ended with {self.process.returncode}:\n{self.log()[-4000:]}"
        )
        try:
            return self.client.get("/health").status == 200
        except OSError:
            return False

    def metric(self, name: str) -> float:
        """The sum over all samples of this name."""
        found = re.findall(
            rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$",
            self.client.get("/metrics").text,
            re.MULTILINE,
        )
        assert found, f"the engine has no metric {name}"
        return sum(map(float, found))

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(15)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue


class Vllm(Server):
    WINDOW_TOKENS = 65536

    def __init__(self, folder: Path) -> None:
        python = CACHE / "vllm" / "bin" / "python"
        if not (CACHE / "vllm" / ".done").exists():
            pytest.skip("vLLM is not installed: tests/engines/install.sh")
        model = folder / "model"
        subprocess.run(
            [python, HERE / "model" / "build.py", model, str(self.WINDOW_TOKENS)], check=True
        )
        port = free_port()
        flags = {
            "model": model,
            "load-format": "dummy",
            "host": "127.0.0.1",
            "port": port,
            "served-model-name": "tiny",
            "max-num-seqs": 8,
            "dtype": "bfloat16",
            "tool-call-parser": "qwen3_coder",
            "reasoning-parser": "qwen3",
            "logits-processors": "playback:Playback",
        }
        switches = [
            "--enforce-eager",
            "--enable-auto-tool-choice",
            "--enable-prompt-tokens-details",
            "--no-async-scheduling",
        ]
        env = {
            "PYTHONPATH": str(HERE / "model"),
            "SCRIPTS": str(HERE / "model" / "scripts.json"),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
        }
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        super().__init__(
            "vllm",
            [str(python), "-m", "vllm.entrypoints.openai.api_server", *words, *switches],
            port,
            folder,
            env,
        )

    @property
    def running(self) -> float:
        return self.metric("vllm:num_requests_running")

    def kill_engine(self) -> None:
        """Kills the process that computes; the one that serves stays, for a moment."""
        found = re.search(r"\(EngineCore pid=(\d+)\)", self.log())
        assert found, "the log does not name the engine process"
        os.kill(int(found[1]), signal.SIGKILL)


class LlamaServer(Server):
    """gemma-3-270m, a base model: what it says is of no interest, how it says it is. Two slots of
    2,048 tokens."""

    WINDOW_TOKENS = 2048

    def __init__(self, folder: Path) -> None:
        if not (CACHE / "llamacpp" / ".done").exists():
            pytest.skip("llama.cpp is not installed: tests/engines/install.sh")
        port = free_port()
        flags = {
            "model": GGUF,
            "host": "127.0.0.1",
            "port": port,
            "alias": "gemma",
            "ctx-size": 2 * self.WINDOW_TOKENS,
            "parallel": 2,
            "threads": 2,
            "chat-template-file": HERE / "model" / "template.jinja",
        }
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        argv = [
            str(CACHE / "llamacpp" / "bin" / "llama-server-vulkan"),
            *words,
            "--jinja",
            "--metrics",
            "--slots",
        ]
        super().__init__("llama", argv, port, folder)

    @property
    def running(self) -> float:
        return self.metric("llamacpp:requests_processing")
