"""How vLLM 0.33 puts an answer on the wire: chunks, whole replies, refusals word for word. Pure
bytes; no I/O.

Frames are made by joining prepared halves, because load scripts ask for many.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from ferrule.sim.completion import ChatRequest, Completion, Delta

_encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"
FINGERPRINT = "vllm-0.33.0-f3303e7a"
DRAINING = "cannot schedule new futures after shutdown"
BUSY = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a "
    "different instance."
)
DEAD = "The server had an error while processing your request."

_PLAIN_END = b',"logprobs":null,"finish_reason":null,"token_ids":null}],"kv_transfer_params":null'


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int | None

    def encode(self) -> bytes:
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {
                "cached_tokens": self.cached_tokens,
                "created_cache_tokens": 0,
            },
        }
        if self.reasoning_tokens is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return _encode(usage)


class Refusal(Exception):
    """An answer with an error status. `kind` is vLLM's `type`."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, kind: str = "BadRequestError"
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_object(status, message, kind=kind, param=param)


class Frames:
    """The frames of one streamed reply."""

    def __init__(self, model: str) -> None:
        self.id = f"chatcmpl-{secrets.token_hex(8)}"
        head = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }
        self._head = b"data: " + _encode(head)[:-1]
        self._delta_head = self._head + b',"choices":[{"index":0,"delta":'

    def role(self) -> bytes:
        end = (
            b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
            b'"prompt_token_ids":null,"prompt_text":null}\n\n'
        )
        return self._delta_head + end

    def delta(self, delta: Delta, usage: Usage | None = None) -> bytes:
        usage_json = b',"usage":' + usage.encode() if usage else b""
        return self._delta_head + encode_delta(delta) + _PLAIN_END + usage_json + b"}\n\n"

    def finish(self, answer: Completion) -> bytes:
        end = (
            f'{{}},"logprobs":null,"finish_reason":"{answer.finish_reason}","stop_reason":'.encode()
        )
        rest = b',"token_ids":null,"weight_versions":null}],"kv_transfer_params":null}\n\n'
        return self._delta_head + end + _encode(answer.stop_reason) + rest

    def usage(self, usage: Usage) -> bytes:
        return (
            self._head
            + b',"choices":[],"usage":'
            + usage.encode()
            + f',"system_fingerprint":"{FINGERPRINT}"}}\n\n'.encode()
        )


def encode_delta(delta: Delta) -> bytes:
    match delta.kind:
        case "call":
            call = {
                "id": tool_call_id(),
                "type": "function",
                "index": delta.index,
                "function": {"name": delta.text},
            }
            return b'{"tool_calls":[' + _encode(call) + b"]}"
        case "arguments":
            return (
                b'{"tool_calls":['
                + _encode({"index": delta.index, "function": {"arguments": delta.text}})
                + b"]}"
            )
        case kind:
            return b'{"' + kind.encode() + b'":' + _encode(delta.text) + b"}"


def tool_call_id() -> str:
    return f"chatcmpl-tool-{secrets.token_hex(8)}"


def whole_reply(model: str, answer: Completion, usage: Usage) -> bytes:
    """The body of a reply that is not streamed."""
    text = "".join(_texts(answer, "content"))
    calls = list(_calls(answer))
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text.strip() if calls else text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": "".join(_texts(answer, "reasoning")) or None,
    }
    if calls:
        message["tool_calls"] = calls
        message["content"] = message["content"] or None
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
        "token_ids": None,
        "routed_experts": None,
        "weight_versions": None,
    }
    return _encode(
        {
            "id": f"chatcmpl-{secrets.token_hex(8)}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": msgspec.Raw(usage.encode()),
            "prompt_logprobs": None,
            "kv_transfer_params": None,
            "metrics": None,
        }
    )


def error_object(status: int, message: str, *, kind: str, param: str | None = None) -> bytes:
    return _encode({"error": {"message": message, "type": kind, "param": param, "code": status}})


def error_event(status: int, message: str) -> bytes:
    return b"data: " + error_object(status, message, kind="InternalServerError") + b"\n\n"


def validation_refusal(where: str, what: str) -> Refusal:
    text = (
        f"1 validation error:\n  {{'type': 'invalid', 'loc': '{where}', 'msg': '{what}', "
        f"'input': '<input>'}}"
    )
    return Refusal(400, text, param=where, kind="Bad Request")


def models(model: str, max_model_len: int) -> bytes:
    now = int(time.time())
    entry = {
        "id": model,
        "object": "model",
        "created": now,
        "owned_by": "vllm",
        "root": f"/models/{model}",
        "parent": None,
    }
    return _encode(
        {"object": "list", "data": [{**entry, "max_model_len": max_model_len, "permission": []}]}
    )


def check_limits(
    request: ChatRequest, *, model: str, max_model_len: int, prompt_tokens: int
) -> int:
    """The number of tokens that may be generated; raises `Refusal` in vLLM's words."""
    if request.model not in (None, model):
        raise Refusal(
            404,
            f"The model `{request.model}` does not exist. Valid aliases: {model}.",
            param="model",
            kind="NotFoundError",
        )
    if not request.messages:
        raise Refusal(
            400,
            "Cannot apply chat template to an empty conversation. Provide at least one message.",
        )
    if request.stream_options is not None and not request.stream:
        text = "Stream options can only be defined when `stream=True`. (parameter=stream_options)"
        raise Refusal(400, text, param="stream_options")
    if bytes(request.tools) == b"[]":
        text = (
            "`tools` must not be an empty array. Either provide at least one tool or omit the "
            "field entirely. (parameter=tools)"
        )
        raise Refusal(400, text, param="tools")
    if request.temperature is not None and request.temperature < 0:
        text = (
            f"temperature must be non-negative, got {request.temperature}. "
            f"(parameter=temperature, value={request.temperature})"
        )
        raise Refusal(400, text, param="temperature")
    if request.top_p is not None and not 0 < request.top_p <= 1:
        text = (
            f"top_p must be in (0, 1], got {request.top_p}. (parameter=top_p, "
            f"value={request.top_p})"
        )
        raise Refusal(400, text, param="top_p")
    if prompt_tokens > max_model_len:
        least = max_model_len + 1
        raise Refusal(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, your "
            f"prompt contains at least {least} input tokens, "
            "which exceeds this limit even without any output tokens. Please reduce the length "
            "of the input prompt. "
            f"(parameter=input_tokens, value={least})",
            param="input_tokens",
        )
    wanted = (
        request.max_completion_tokens
        if request.max_completion_tokens is not None
        else request.max_tokens
    )
    if wanted is not None and wanted > max_model_len:
        text = (
            f"max_tokens={wanted} cannot be greater than max_model_len={max_model_len}. Please "
            f"request fewer output tokens. "
        )
        raise Refusal(400, text + f"(parameter=max_tokens, value={wanted})", param="max_tokens")
    if wanted is not None and wanted < 1:
        raise Refusal(
            400,
            f"max_tokens must be at least 1, got {wanted}. (parameter=max_tokens, value={wanted})",
            param="max_tokens",
        )
    room = max_model_len - prompt_tokens
    return room if wanted is None else min(wanted, room)


def _texts(answer: Completion, kind: str) -> Iterator[str]:
    return (delta.text for delta in answer.deltas if delta.kind == kind)


def _calls(answer: Completion) -> Iterator[dict[str, Any]]:
    for call in (delta for delta in answer.deltas if delta.kind == "call"):
        arguments = "".join(
            p.text for p in answer.deltas if p.kind == "arguments" and p.index == call.index
        )
        yield {
            "id": tool_call_id(),
            "type": "function",
            "function": {"name": call.text, "arguments": arguments or "{}"},
        }
