"""Reads one streamed reply, in Messages or chat form, into a sample and the content blocks for the
history.

Times every delta as it arrives. Knows nothing of sessions or schedules.
"""

import time
from collections.abc import AsyncIterable, Callable
from typing import Any

import msgspec

from samples import Sample

_decode = msgspec.json.Decoder().decode


class Reader:
    """Reads one reply. `ended`: the stream's own end marker was seen; a stream that stops without
    is an error."""

    def __init__(self, sample: Sample, clock: Callable[[], float] = time.perf_counter) -> None:
        self.sample = sample
        self.ended = False
        self._clock = clock
        self._last_s = sample.started_s
        self._blocks: list[dict[str, Any]] = []
        self._inputs: dict[int, str] = {}
        self._deltas = 0

    @property
    def content(self) -> list[dict[str, Any]]:
        for index, text in self._inputs.items():
            self._blocks[index]["input"] = _decode(text or "{}")
        return self._blocks

    async def read(self, lines: AsyncIterable[bytes]) -> None:
        async for line in lines:
            if line.startswith(b"data:"):
                self._handle_event(line[5:].strip())
        self.sample.e2e_s = self._clock() - self.sample.started_s
        self.sample.output_tokens = self.sample.output_tokens or self._deltas
        if not self.ended and self.sample.error is None:
            self.sample.error = "stream cut short"

    def _handle_event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.ended = True
            return
        event = _decode(data)
        if "choices" in event:
            self._handle_chunk(event)
        elif handler := getattr(self, f"_on_{event.get('type')}", None):
            handler(event)

    def _record_delta(self) -> None:
        now = self._clock()
        if self.sample.ttft_s is None:
            self.sample.ttft_s = now - self.sample.started_s
        else:
            self.sample.gaps_s.append(now - self._last_s)
        self._last_s = now
        self._deltas += 1

    # --- Messages -------------------------------------------------------------------------------

    def _on_message_start(self, event: dict[str, Any]) -> None:
        self._set_usage(event["message"].get("usage") or {})

    def _on_content_block_start(self, event: dict[str, Any]) -> None:
        self._blocks.append(dict(event["content_block"]))
        if event["content_block"].get("type") == "tool_use":
            self._inputs[event["index"]] = ""
            self._record_delta()

    def _on_content_block_delta(self, event: dict[str, Any]) -> None:
        delta, block = event["delta"], self._blocks[event["index"]]
        match delta["type"]:
            case "text_delta" | "thinking_delta":
                field = delta["type"].removesuffix("_delta")
                block[field] = block.get(field, "") + delta[field]
                self._record_delta()
            case "input_json_delta":
                self._inputs[event["index"]] += delta["partial_json"]
                self._record_delta()
            case "signature_delta":
                block["signature"] = delta["signature"]

    def _on_message_delta(self, event: dict[str, Any]) -> None:
        self.sample.stop_reason = event["delta"].get("stop_reason")
        self._set_usage(event.get("usage") or {})

    def _on_message_stop(self, _event: dict[str, Any]) -> None:
        self.ended = True

    def _on_error(self, event: dict[str, Any]) -> None:
        self.sample.error = (
            f"error event {event['error'].get('type')}: {str(event['error'].get('message'))[:80]}"
        )

    def _set_usage(self, usage: dict[str, Any]) -> None:
        sample = self.sample
        sample.input_tokens = usage.get("input_tokens") or sample.input_tokens
        sample.cache_read_tokens = usage.get("cache_read_input_tokens") or sample.cache_read_tokens
        sample.output_tokens = usage.get("output_tokens") or sample.output_tokens

    # --- chat -----------------------------------------------------------------------------------

    def _handle_chunk(self, chunk: dict[str, Any]) -> None:
        for choice in chunk["choices"]:
            delta = choice.get("delta") or {}
            if any(
                delta.get(name)
                for name in ("content", "reasoning", "reasoning_content", "tool_calls")
            ):
                self._record_delta()
            if delta.get("content"):
                self._blocks = self._blocks or [{"type": "text", "text": ""}]
                self._blocks[0]["text"] += delta["content"]
            self.sample.stop_reason = choice.get("finish_reason") or self.sample.stop_reason
        if usage := chunk.get("usage"):
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            self.sample.cache_read_tokens = cached
            self.sample.input_tokens = usage["prompt_tokens"] - cached
            self.sample.output_tokens = usage["completion_tokens"]
