"""Backend frames in short notation, and one canned answer told both ways (streamed and whole).

`D` is a chunk with a delta, `TC` a chunk with one tool call piece, `U` a usage chunk, `DONE` the
end. `ABSENT` leaves a member out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

ABSENT: Any = object()
DONE = b"data: [DONE]\n\n"
ROLE_DELTA = {"role": "assistant", "content": ""}


def frame(value: dict[str, Any]) -> bytes:
    return (
        b"data: "
        + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(
            "utf-8", "surrogatepass"
        )
        + b"\n\n"
    )


def chunk(
    delta: dict[str, Any],
    finish: str | None = None,
    *,
    usage: dict[str, Any] | None = None,
    **choice: Any,
) -> bytes:
    value = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    value["choices"] = [{"index": 0, "delta": delta, "finish_reason": finish, **choice}]
    if usage is not None:
        value["usage"] = usage
    return frame(value)


def D(delta: dict[str, Any], finish: str | None = None, **choice: Any) -> bytes:
    return chunk(delta, finish, **choice)


def call(
    index: Any, id_: Any = ABSENT, name: Any = ABSENT, arguments: Any = ABSENT
) -> dict[str, Any]:
    """One element of `delta.tool_calls`."""
    function = {
        key: value
        for key, value in (("name", name), ("arguments", arguments))
        if value is not ABSENT
    }
    element = {
        "index": index,
        "id": id_,
        "type": "function" if id_ not in (ABSENT, None) else ABSENT,
        "function": function,
    }
    return {key: value for key, value in element.items() if value is not ABSENT}


def TC(index: Any, id_: Any = ABSENT, name: Any = ABSENT, arguments: Any = ABSENT) -> bytes:
    return chunk({"tool_calls": [call(index, id_, name, arguments)]})


def usage(prompt: int, completion: int, cached: Any = ABSENT) -> dict[str, Any]:
    value: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if cached is not ABSENT:
        value["prompt_tokens_details"] = {"cached_tokens": cached}
    return value


def U(prompt: int, completion: int, cached: Any = ABSENT) -> bytes:
    return frame(
        {
            "id": "c1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [],
            "usage": usage(prompt, completion, cached),
        }
    )


def error_frame(message: str = "boom", code: int = 500) -> bytes:
    return frame(
        {"error": {"message": message, "type": "InternalServerError", "param": None, "code": code}}
    )


@dataclass
class Canned:
    """One answer of a backend, told as chunks or as a whole, whichever the proxy asks for."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    """(id, name, arguments)"""
    finish: str | None = None
    stop_reason: Any = None
    prompt_tokens: int = 7
    completion_tokens: int = 3
    cached_tokens: int = 0
    reasoning_field: str = "reasoning"

    @property
    def finish_reason(self) -> str:
        return self.finish or ("tool_calls" if self.calls else "stop")

    def frames(self) -> list[bytes]:
        frames = [D(ROLE_DELTA)]
        frames += [D({self.reasoning_field: word}) for word in pieces(self.reasoning)]
        frames += [D({"content": word}) for word in pieces(self.text)]
        for index, (id_, name, arguments) in enumerate(self.calls):
            frames.append(TC(index, id_, name))
            frames += [TC(index, arguments=piece) for piece in pieces(arguments)]
        frames.append(chunk({}, self.finish_reason, stop_reason=self.stop_reason))
        return [*frames, U(self.prompt_tokens, self.completion_tokens, self.cached_tokens), DONE]

    def whole(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.text or None}
        if self.reasoning:
            message[self.reasoning_field] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
                for id_, name, arguments in self.calls
            ]
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
        }
        return {
            "id": "c1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": usage(self.prompt_tokens, self.completion_tokens, self.cached_tokens),
        }


def pieces(text: str, size: int = 5) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]
