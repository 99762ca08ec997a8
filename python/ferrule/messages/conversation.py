"""Converts the turns of a conversation into chat messages, in whatever order clients send them.

Every tool call is answered directly after its assistant message, whatever the client's order: a
result belongs to the nearest earlier unanswered call with its id, a call without result gets a
short one, and a result without call becomes user text. Each message depends on itself and on
earlier ones alone, so the messages of one request are a prefix of the next one's.
"""

from __future__ import annotations

import msgspec

from ferrule.errors import InvalidRequest
from ferrule.messages.chat_schema import CalledFunction, ChatMessage, ImagePart, ToolCall
from ferrule.messages.content import Item, Reader, items_of, result_items, text_in, to_content
from ferrule.messages.json_text import EMPTY, LINE, first_char, join, quote, string_in
from ferrule.messages.opaque_values import engine_id, reasoning_of
from ferrule.messages.schema import Block, Message
from ferrule.messages.system import reminder, system_text
from ferrule.messages.tool_names import ToolNames

INTERRUPTED = b'"[no result: the call was interrupted]"'
ERROR = b'"[tool error]"'
_IMAGE_FOLLOWS = b'"[image: see the next message]"'
_EMPTY = msgspec.Raw(EMPTY)


class _AssistantTurn(msgspec.Struct, gc=False):
    """One assistant message and the answers to its calls."""

    text: bytes | None
    thought: bytes | None
    calls: list[ToolCall]
    results: list[ChatMessage]
    unanswered: list[ToolCall]

    def flat(self, reasoning_field: str) -> list[ChatMessage]:
        message = ChatMessage("assistant", _EMPTY if self.text is None else msgspec.Raw(self.text))
        if self.thought is not None:
            setattr(message, reasoning_field, msgspec.Raw(self.thought))
        if self.calls:
            message.tool_calls = self.calls
        missing = [
            ChatMessage("tool", msgspec.Raw(INTERRUPTED), tool_call_id=call.id)
            for call in self.unanswered
        ]
        return [message, *self.results, *missing]


class Conversation:
    """Built message by message; `messages()` at the end."""

    def __init__(self, reader: Reader, names: ToolNames, leading_system: bytes | None) -> None:
        self._reader = reader
        self._names = names
        self._turns: list[ChatMessage | _AssistantTurn] = []
        self._open_calls: dict[str, list[_AssistantTurn]] = {}
        self._speaker = "system"
        if leading_system is not None:
            self._turns.append(ChatMessage("system", msgspec.Raw(leading_system)))

    def add(self, index: int, message: Message) -> None:
        """Raises InvalidRequest for a block that cannot be converted or that the policy
        refuses."""
        if message.role == "system":
            self._add_system(index, message)
        elif not message.content:
            return
        elif message.role == "user":
            self._add_user(index, message.content)
        else:
            self._add_assistant(f"messages.{index}.content.", message.content)
        self._speaker = message.role

    def messages(self) -> list[ChatMessage]:
        flat: list[ChatMessage] = []
        reasoning_field = self._reader.policy.engine.reasoning_history_field
        has_turn = False
        for turn in self._turns:
            if isinstance(turn, _AssistantTurn):
                flat += turn.flat(reasoning_field)
                has_turn = True
            else:
                flat.append(turn)
                has_turn = has_turn or turn.role != "system"
        if not has_turn:
            flat.append(
                ChatMessage("user", _EMPTY)
            )  # engines refuse a conversation without any turn
        return flat

    @property
    def ends_with_prefill(self) -> bool:
        """Whether the client has begun the answer itself."""
        last = self._turns[-1] if self._turns else None
        return isinstance(last, _AssistantTurn) and last.text is not None and not last.calls

    # Roles

    def _add_system(self, index: int, message: Message) -> None:
        text = system_text(message.content, f"messages.{index}.content")
        if text is None:
            return
        if self._reader.policy.system_first and self._turns:
            self._turns.append(ChatMessage("user", msgspec.Raw(reminder(text))))
        else:
            self._turns.append(ChatMessage("system", msgspec.Raw(text)))

    def _add_user(self, index: int, content: str | list[Block]) -> None:
        if isinstance(content, str):
            self._turns.append(ChatMessage("user", msgspec.Raw(quote(content))))
            return
        from_results: list[Item] = []
        items: list[Item] = []
        for place, block in enumerate(content):
            at = f"messages.{index}.content.{place}"
            if block.type in ("tool_result", "mcp_tool_result"):
                if not self._has_plain_answer(block):
                    images, orphan = self._add_result(block, at)
                    from_results += images
                    items += orphan
            elif block.type in ("thinking", "tool_use"):
                self._reader.diagnostics.drop(block.type)
            else:
                items += items_of(block, self._reader, at)
        if from_results or items:
            self._turns.append(ChatMessage("user", to_content(from_results + items)))

    def _add_assistant(self, path: str, content: str | list[Block]) -> None:
        if isinstance(content, str):
            self._extend([quote(content)], [], [])
            return
        texts: list[bytes] = []
        thoughts: list[bytes] = []
        calls: list[ToolCall] = []
        results: list[tuple[Block, str]] = []
        for place, block in enumerate(content):
            at = f"{path}{place}"
            if block.type == "text":
                texts += text_in(block, at)
            elif block.type in ("tool_use", "mcp_tool_use"):
                calls.append(self._call(block, at))
            elif block.type == "thinking":
                thoughts += _read_thinking(block, at)
            elif block.type in ("tool_result", "mcp_tool_result"):
                results.append((block, at))
            else:
                texts += [
                    b'"[image]"' if isinstance(item, ImagePart) else item
                    for item in items_of(block, self._reader, at)
                ]
        if texts or thoughts or calls:
            self._extend(texts, thoughts, calls)
        if results:
            self._add_own_results(results)

    # Parts of a turn

    def _extend(self, texts: list[bytes], thoughts: list[bytes], calls: list[ToolCall]) -> None:
        """Adds to the open assistant turn, or begins one: two in a row are one message to every
        template."""
        turn = self._turns[-1] if self._turns else None
        if not isinstance(turn, _AssistantTurn) or self._speaker != "assistant" or turn.results:
            turn = _AssistantTurn(None, None, [], [], [])
            self._turns.append(turn)
        if texts:
            turn.text = join(texts if turn.text is None else [turn.text, *texts])
        if thoughts:
            turn.thought = join(thoughts if turn.thought is None else [turn.thought, *thoughts])
        for call in calls:
            turn.calls.append(call)
            turn.unanswered.append(call)
            self._open_calls.setdefault(call.id, []).append(turn)

    def _call(self, block: Block, path: str) -> ToolCall:
        if not block.name:
            raise InvalidRequest(f"{path}.name", "must be a non-empty string")
        name = (
            f"mcp__{block.server_name}__{block.name}"
            if block.type == "mcp_tool_use"
            else block.name
        )
        return ToolCall(
            engine_id(block.id or ""),
            CalledFunction(self._names.upstream(name), _arguments(block, path)),
        )

    def _has_plain_answer(self, block: Block) -> bool:
        """Handles the usual result, a string for a waiting call; False for any other. The fast path
        for the bulk of a long history."""
        if block.is_error or first_char(block.content) != '"':
            return False
        call_id = engine_id(block.tool_use_id or "")
        waiting = self._open_calls.get(call_id)
        if not waiting:
            return False
        _attach_result(waiting.pop(), call_id, block.content)
        return True

    def _add_result(self, block: Block, path: str) -> tuple[list[Item], list[Item]]:
        """(images for the user message that follows, the whole result as user items when no call
        waits for it)"""
        call_id = engine_id(block.tool_use_id or "")
        items = result_items(block.content, self._reader, f"{path}.content")
        if block.is_error:
            items.insert(0, ERROR)
        waiting = self._open_calls.get(call_id)
        if not waiting:
            return [], [quote(f"[Result of tool call {call_id}]"), *items]
        texts = [_IMAGE_FOLLOWS if isinstance(item, ImagePart) else item for item in items]
        name = _attach_result(waiting.pop(), call_id, msgspec.Raw(join(texts, LINE)))
        images: list[Item] = [item for item in items if isinstance(item, ImagePart)]
        if images:
            images.insert(0, quote(f"[Image from the result of {name}, call {call_id}]"))
        return images, []

    def _add_own_results(self, results: list[tuple[Block, str]]) -> None:
        """Results inside an assistant message: those of MCP tools that a server once called."""
        items: list[Item] = []
        for block, path in results:
            images, orphan = self._add_result(block, path)
            items += images + orphan
        if items:
            self._turns.append(ChatMessage("user", to_content(items)))


def _attach_result(turn: _AssistantTurn, call_id: str, text: msgspec.Raw) -> str:
    """Attaches a result to its call; returns the function's name."""
    turn.results.append(ChatMessage("tool", text, tool_call_id=call_id))
    place = (
        0
        if turn.unanswered[0].id == call_id
        else [call.id for call in turn.unanswered].index(call_id)
    )
    return turn.unanswered.pop(place).function.name


def _read_thinking(block: Block, path: str) -> list[bytes]:
    restored = reasoning_of(block.signature)
    literal = quote(restored) if restored else string_in(block.thinking, path, "thinking")
    return [] if literal is None else [literal]


def _arguments(block: Block, path: str) -> str:
    """The input as the client spelled it. Some clients send a JSON text of the object instead of
    the object."""
    raw = str(block.input, "utf-8")
    if raw.startswith("{"):
        return raw
    if raw in ("", "null", '""'):
        return "{}"
    if raw.startswith('"'):
        text: str = msgspec.json.decode(raw)
        if text.startswith("{"):
            return text
    raise InvalidRequest(f"{path}.input", "must be an object")
