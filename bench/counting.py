"""Measures the speed of counting tokens by ferrule, tiktoken and tokenizers: one text, one thread.

The peers run in a venv of their own as `counting.py --peer`, since ferrule does not depend on them.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ROUNDS = 3
_ROUND_S = 0.6


def measure_speed(count: Callable[[], int], size_bytes: int) -> tuple[list[float], int]:
    """(MB per second in each round, the number of tokens)."""
    tokens, speeds = count(), []
    for _ in range(_ROUNDS):
        runs, start = 0, time.perf_counter()
        while time.perf_counter() - start < _ROUND_S:
            count()
            runs += 1
        speeds.append(size_bytes * runs / (time.perf_counter() - start) / 1e6)
    return speeds, tokens


def train_tokenizer(text: str, path: Path) -> None:
    """Trains a byte-level BPE of 32,000 tokens on `text` and writes it as a tokenizer.json. Stands
    for any model's file."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [text],
        trainers.BpeTrainer(vocab_size=32000, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer.save(str(path))


def measure_peers(text: str, tokenizer_json: Path) -> list[dict[str, Any]]:
    """Runs in the peers' venv."""
    size, rows = len(text.encode()), []

    def add(counter: str, tokenizer: str, count: Callable[[], int]) -> None:
        speeds, tokens = measure_speed(count, size)
        rows.append(
            {"counter": counter, "tokenizer": tokenizer, "speeds": speeds, "tokens": tokens}
        )

    from tokenizers import Tokenizer

    train_tokenizer(text, tokenizer_json)
    bpe = Tokenizer.from_file(str(tokenizer_json))
    add("tokenizers", "tokenizer.json", lambda: len(bpe.encode(text, add_special_tokens=False)))
    if os.environ.get("TIKTOKEN_CACHE_DIR"):
        import tiktoken

        encoding = tiktoken.get_encoding("cl100k_base")
        add("tiktoken", "cl100k_base", lambda: len(encoding.encode_ordinary(text)))
    return rows


def measure_own(text: str, tokenizer_json: Path) -> list[dict[str, Any]]:
    from ferrule import _core

    rows = []
    for name, label in (
        ("cl100k_base", "cl100k_base"),
        ("o200k_base", "o200k_base"),
        (str(tokenizer_json), "tokenizer.json"),
    ):
        if label == "tokenizer.json" and not tokenizer_json.exists():
            continue
        tokenizer = _core.Tokenizer(name)
        speeds, tokens = measure_speed(
            lambda tokenizer=tokenizer: tokenizer.count([text]), len(text.encode())
        )  # type: ignore[misc]
        rows.append({"counter": "ferrule", "tokenizer": label, "speeds": speeds, "tokens": tokens})
    return rows


def measure_all(text: str, cache: Path, directory: Path) -> list[dict[str, Any]]:
    """Rows of all counters, measured one after the other. Counters that are not installed are
    absent."""
    text_file, tokenizer_json = directory / "text", directory / "tokenizer.json"
    text_file.write_text(text)
    rows: list[dict[str, Any]] = []
    python = cache / "peers/tokenizers/bin/python"
    if python.exists():
        # LiteLLM ships the merges of cl100k_base under the name that tiktoken's cache looks for,
        # which saves a download.
        merges = next(
            iter(
                (cache / "peers/litellm").glob(
                    "lib/*/site-packages/litellm/litellm_core_utils/tokenizers"
                )
            ),
            None,
        )
        env = {**os.environ, "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        if merges:
            env["TIKTOKEN_CACHE_DIR"] = str(merges)
        command = [str(python), __file__, "--peer", str(text_file), str(tokenizer_json)]
        rows += json.loads(
            subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
        )
    return measure_own(text, tokenizer_json) + rows


if __name__ == "__main__" and sys.argv[1:2] == ["--peer"]:
    print(json.dumps(measure_peers(Path(sys.argv[2]).read_text(), Path(sys.argv[3]))))
