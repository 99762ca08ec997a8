"""An agent's session for the load generator: a system prompt, tools, and a growing history.

Text is generated from a seed: two runs with the same seed send the same bytes. Knows nothing of
HTTP, time or measurement.
"""

import random
import uuid
from typing import Any

import msgspec

# Common English words are about one token each in current tokenizers.
_TEXT = """the file of server request and to in model cache token stream a is that for it with as on be at by this from or an are not
error test value line function class return import call state time list key path result user session message tool output"""
_WORDS = tuple(_TEXT.split())


class ConversationSettings(msgspec.Struct, frozen=True):
    """The model and size of a conversation. Sizes are in tokens, approximately."""

    model: str
    route: str = "messages"
    system_tokens: int = 1000
    prompt_tokens: int = 200
    """Of the user message or tool result that each turn adds."""
    output_tokens: tuple[int, int] = (64, 64)
    """The bounds of a turn's `max_tokens`, drawn uniformly."""
    tools: int = 0
    seed: int = 0


class Conversation:
    """One session. `build_body` makes the next request; then `record_reply` or `drop_turn`."""

    def __init__(self, settings: ConversationSettings, number: int) -> None:
        self.turn = 0
        self._settings = settings
        self._random = random.Random(f"{settings.seed}/{number}")
        self.session_id = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        self._system = self._make_text(settings.system_tokens)
        self._history: list[dict[str, Any]] = []
        self._pending_calls: list[str] = []

    @property
    def headers(self) -> dict[str, str]:
        return {"x-claude-code-session-id": self.session_id}

    def build_body(self) -> bytes:
        """The next turn's request. Appends its user message to the history."""
        self.turn += 1
        self._history.append({"role": "user", "content": self._build_user_content()})
        low, high = self._settings.output_tokens
        limit = self._random.randint(low, high)
        return msgspec.json.encode(
            self._build_chat_body(limit)
            if self._settings.route == "chat"
            else self._build_messages_body(limit)
        )

    def record_reply(self, content: list[dict[str, Any]]) -> None:
        """Appends the reply to the history. `content`: its blocks, as in the Messages API."""
        self._pending_calls = [block["id"] for block in content if block.get("type") == "tool_use"]
        if self._settings.route == "chat":
            text = "".join(block.get("text", "") for block in content)
            self._history.append({"role": "assistant", "content": text})
        else:
            self._history.append(
                {"role": "assistant", "content": content or [{"type": "text", "text": "(nothing)"}]}
            )

    def drop_turn(self) -> None:
        """Removes the user message of a failed turn, so that the next request is valid."""
        self._history.pop()

    def _build_user_content(self) -> Any:
        text = self._make_text(self._settings.prompt_tokens)
        if not self._pending_calls:
            return text
        return [
            {"type": "tool_result", "tool_use_id": call, "content": text}
            for call in self._pending_calls
        ]

    def _build_messages_body(self, limit: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._settings.model,
            "max_tokens": limit,
            "stream": True,
            "system": [
                {"type": "text", "text": self._system, "cache_control": {"type": "ephemeral"}}
            ],
            "metadata": {"user_id": msgspec.json.encode({"session_id": self.session_id}).decode()},
            "messages": self._history,
        }
        if self._settings.tools:
            body["tools"] = [_build_tool(number) for number in range(self._settings.tools)]
        return body

    def _build_chat_body(self, limit: int) -> dict[str, Any]:
        return {
            "model": self._settings.model,
            "max_tokens": limit,
            "stream": True,
            "stream_options": {"include_usage": True},
            "user": self.session_id,
            "messages": [{"role": "system", "content": self._system}, *self._history],
        }

    def _make_text(self, tokens: int) -> str:
        return " ".join(self._random.choices(_WORDS, k=max(tokens, 1)))


def _build_tool(number: int) -> dict[str, Any]:
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
