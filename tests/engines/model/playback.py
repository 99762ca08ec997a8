"""A logits processor for vLLM that plays a written answer.

The last [[script:NAME]] in the prompt names it, [[delay:MS]] slows each token. Where the thinking
was ended by somebody else (a budget of the engine, a prompt that closes it), the script goes on
behind its own `</think>`.
"""

import json
import os
import re
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer
from vllm.v1.sample.logits_processor.interface import (
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
)

_SCRIPT = re.compile(r"\[\[script:([a-z0-9_]+)\]\]")
_DELAY = re.compile(r"\[\[delay:([0-9]+)\]\]")
_TURN = "<|im_start|>assistant\n"
_THINK_END = "</think>"
# A processor before this one that forces a token gives it such a logit.
_FORCED = 1e8


class _Play:
    """One request: what is still to be said, given what was said so far."""

    def __init__(self, plan: list[int], think_end: int, said: list[int], delay_s: float) -> None:
        self._plan = plan
        self._think_end = think_end
        self._said = said
        self.delay_s = delay_s

    def next(self) -> int:
        place = len(self._said)
        if self._think_end in self._plan and self._think_end in self._said:
            place += self._plan.index(self._think_end) - self._said.index(self._think_end)
        return self._plan[place] if place < len(self._plan) else self._plan[-1]


class Playback(LogitsProcessor):
    def __init__(self, vllm_config, device, is_pin_memory):
        self._tokenizer = Tokenizer.from_file(
            str(Path(vllm_config.model_config.model) / "tokenizer.json")
        )
        self._end = self._tokenizer.token_to_id("<|im_end|>")
        self._think_end = self._tokenizer.token_to_id(_THINK_END)
        self._scripts = json.loads(Path(os.environ["SCRIPTS"]).read_text())
        self._plays = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._plays.pop(index, None)
        for index, _, prompt, said in batch_update.added:
            self._plays[index] = self._play(prompt or [], said)
        for first, second, direction in batch_update.moved:
            moved, other = self._plays.pop(first, None), self._plays.pop(second, None)
            self._plays[second] = moved
            if direction == MoveDirectionality.SWAP:
                self._plays[first] = other

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for index, play in self._plays.items():
            if play is None or index >= logits.shape[0] or logits[index].max() >= _FORCED:
                continue
            time.sleep(play.delay_s)
            logits[index].fill_(float("-inf"))
            logits[index, play.next()] = 0.0
        return logits

    def _play(self, prompt: list[int], said: list[int]) -> _Play | None:
        text = self._tokenizer.decode(list(prompt), skip_special_tokens=False)
        names, delays = _SCRIPT.findall(text), _DELAY.findall(text)
        if not names:
            return None
        script = self._scripts[names[-1]]
        if _THINK_END in text.rpartition(_TURN)[2]:
            script = script.partition(_THINK_END)[2].lstrip("\n")
        plan = [*self._tokenizer.encode(script, add_special_tokens=False).ids, self._end]
        return _Play(plan, self._think_end, said, int(delays[-1]) / 1000 if delays else 0.0)
