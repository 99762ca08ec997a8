"""What all requests of one simulated server share: the prefix cache, counters, the drain; and the
admission of one request.

Knows no sockets.
"""

from __future__ import annotations

import msgspec

from ferrule.sim import completion as model
from ferrule.sim import faults, wire
from ferrule.sim.completion import ChatRequest, SimSettings
from ferrule.sim.faults import Fault

_decode_chat = msgspec.json.Decoder(ChatRequest).decode


class Generation(msgspec.Struct):
    """One request on its way: what will be said, and what it costs."""

    request: ChatRequest
    completion: model.Completion
    usage: wire.Usage
    fault: Fault | None


class Engine:
    """What all requests of one simulated server share."""

    def __init__(self, settings: SimSettings) -> None:
        self.settings = settings
        self.fault = faults.parse(settings.fault)
        self.cache = model.PrefixCache(settings.cache_tokens)
        self.draining = False
        self.aborting = False
        self.running = 0
        self.finished = 0
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0

    def admit(self, body: bytes) -> Generation:
        """Raises `wire.Refusal`."""
        if self.draining:
            raise wire.Refusal(500, wire.DRAINING, kind="InternalServerError")
        try:
            request = _decode_chat(body)
        except msgspec.ValidationError as error:
            raise wire.validation_refusal("body", str(error).replace("'", "")) from error
        except msgspec.DecodeError as error:
            raise wire.validation_refusal("body.0", "JSON decode error") from error
        prompt = model.prompt_of(request.messages, request.tools)
        prompt_tokens = model.count_tokens(prompt)
        settings = self.settings
        max_tokens = wire.check_limits(
            request,
            model=settings.model,
            max_model_len=settings.max_model_len,
            prompt_tokens=prompt_tokens,
        )
        self._check_content(request, prompt)
        completion = model.compose(request, settings, max_tokens)
        if not request.include_reasoning:
            completion.deltas = [delta for delta in completion.deltas if delta.kind != "reasoning"]
        cached = self.cache.admit(prompt)
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached
        reasoning_tokens = completion.reasoning_tokens if settings.reasoning else None
        usage = wire.Usage(prompt_tokens, cached, len(completion.deltas), reasoning_tokens)
        asked = faults.asked_in(model.last_message(request).text) if settings.scripted else None
        return Generation(request, completion, usage, asked or self.fault)

    def _check_content(self, request: ChatRequest, prompt: bytes) -> None:
        if not self.settings.images and b'"type":"image_url"' in prompt:
            raise wire.Refusal(400, f"{self.settings.model} is not a multimodal model")
        if request.thinking_token_budget is not None and not self.settings.reasoning:
            text = (
                "thinking_token_budget is set but reasoning_config is not configured. Please set "
                "--reasoning-config."
            )
            raise wire.Refusal(400, text, param="thinking_token_budget")
        choice = request.tool_choice
        if isinstance(choice, model.Tool) and choice.function.name not in [
            tool.function.name for tool in model.tools_of(request)
        ]:
            text = (
                "The tool specified in `tool_choice` does not match any of the specified `tools` "
                "(parameter=tool_choice)"
            )
            raise wire.Refusal(400, text, param="tool_choice")

    def metrics(self) -> str:
        label = f'{{engine="0",model_name="{self.settings.model}"}}'
        values = {
            "num_requests_running": self.running,
            "num_requests_waiting": 0,
            "kv_cache_usage_perc": 0,
            "prefix_cache_queries_total": self.prompt_tokens,
            "prefix_cache_hits_total": self.cached_tokens,
            "prompt_tokens_total": self.prompt_tokens,
            "generation_tokens_total": self.generated_tokens,
            "request_success_total": self.finished,
        }
        return "".join(f"vllm:{name}{label} {float(value)}\n" for name, value in values.items())
