"""A session of an agent as the load generator plays it: a system prompt, tools, and a history that
grows turn by turn.

Text is made from a seed, so two runs with one seed send the same bytes. Knows nothing of HTTP, time
or measurement.
"""

import random
import uuid
from typing import Any

import msgspec

# Common English words are about one token each in any current tokenizer; the rest of a token is the
# occasional comma.
_TEXT = """the file of server request and to in model cache token stream a is that for it with as on be at by this from or an are not
error test value line function class return import call state time list key path result user session message tool output"""
_WORDS = tuple(_TEXT.split())


class Shape(msgspec.Struct, frozen=True):
    """How large a conversation is. Sizes are tokens, roughly."""

    model: str
    route: str = "messages"
    system_tokens: int = 1000
    prompt_tokens: int = 200
    """A user message or a tool result: what each turn adds on the client's side."""
    output_tokens: tuple[int, int] = (64, 64)
    """`max_tokens` of a turn, drawn evenly between the two."""
    tools: int = 0
    seed: int = 0


class Conversation:
    """One session. `body()` is the next request; `answered()` appends what came back."""

    def __init__(self, shape: Shape, number: int) -> None:
        self.turn = 0
        self._shape = shape
        self._random = random.Random(f"{shape.seed}/{number}")
        self.session_id = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        self._system = self._text(shape.system_tokens)
        self._history: list[dict[str, Any]] = []
        self._pending_calls: list[str] = []

    @property
    def headers(self) -> dict[str, str]:
        return {"x-claude-code-session-id": self.session_id}

    def body(self) -> bytes:
        """The next turn's request. Repeated calls without `answered` between them would add a
        second user message."""
        self.turn += 1
        self._history.append({"role": "user", "content": self._user_content()})
        low, high = self._shape.output_tokens
        limit = self._random.randint(low, high)
        return msgspec.json.encode(
            self._chat_body(limit) if self._shape.route == "chat" else self._messages_body(limit)
        )

    def answered(self, content: list[dict[str, Any]]) -> None:
        """`content`: the blocks of the reply, as the Messages API sends them back."""
        self._pending_calls = [block["id"] for block in content if block.get("type") == "tool_use"]
        if self._shape.route == "chat":
            text = "".join(block.get("text", "") for block in content)
            self._history.append({"role": "assistant", "content": text})
        else:
            self._history.append(
                {"role": "assistant", "content": content or [{"type": "text", "text": "(nothing)"}]}
            )

    def failed(self) -> None:
        """Takes the last user message back, so that the next turn is a valid one."""
        self._history.pop()

    def _user_content(self) -> Any:
        text = self._text(self._shape.prompt_tokens)
        if not self._pending_calls:
            return text
        return [
            {"type": "tool_result", "tool_use_id": call, "content": text}
            for call in self._pending_calls
        ]

    def _messages_body(self, limit: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._shape.model,
            "max_tokens": limit,
            "stream": True,
            "system": [
                {"type": "text", "text": self._system, "cache_control": {"type": "ephemeral"}}
            ],
            "metadata": {"user_id": msgspec.json.encode({"session_id": self.session_id}).decode()},
            "messages": self._history,
        }
        if self._shape.tools:
            body["tools"] = [_tool(number) for number in range(self._shape.tools)]
        return body

    def _chat_body(self, limit: int) -> dict[str, Any]:
        return {
            "model": self._shape.model,
            "max_tokens": limit,
            "stream": True,
            "stream_options": {"include_usage": True},
            "user": self.session_id,
            "messages": [{"role": "system", "content": self._system}, *self._history],
        }

    def _text(self, tokens: int) -> str:
        return " ".join(self._random.choices(_WORDS, k=max(tokens, 1)))


def _tool(number: int) -> dict[str, Any]:
    properties = {
        name: {"type": "string", "description": f"The {name} to work on."}
        for name in ("path", "pattern", "content")
    }
    schema = {"type": "object", "properties": properties, "required": ["path"]}
    return {
        "name": f"tool_{number}",
        "description": f"Tool number {number} of an agent.",
        "input_schema": schema,
    }
