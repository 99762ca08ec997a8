"""The conversation: Messages turns → chat messages, in whatever order clients send them.

Every tool call is answered directly after its assistant message, whatever the client's order: a result belongs to the nearest
earlier unanswered call with its id, a call without result gets a short one, and a result without call becomes user text.
Each message is told by itself and by what came before it alone, so the messages of one request are a prefix of the next one's.
"""

from __future__ import annotations

import msgspec

from ferrule.errors import InvalidRequest
from ferrule.messages.chat_shape import CalledFunction, ChatMessage, ImagePart, ToolCall
from ferrule.messages.content import Item, Reader, items_of, joined, result_items
from ferrule.messages.handed_out import engine_id, reasoning_of
from ferrule.messages.schema import Block, Message
from ferrule.messages.system import BLANK_LINE, reminder, system_text
from ferrule.messages.tool_names import ToolNames

INTERRUPTED = "[no result: the call was interrupted]"
ERROR = "[tool error]"


class _AssistantTurn(msgspec.Struct):
    """One assistant message and the answers to its calls."""

    message: ChatMessage
    results: list[ChatMessage]
    unanswered: list[ToolCall]

    def flat(self) -> list[ChatMessage]:
        missing = [ChatMessage("tool", INTERRUPTED, tool_call_id=call.id) for call in self.unanswered]
        return [self.message, *self.results, *missing]


class Conversation:
    """Built message by message; `messages()` at the end."""

    def __init__(self, reader: Reader, names: ToolNames, leading_system: str) -> None:
        self._reader = reader
        self._names = names
        self._turns: list[ChatMessage | _AssistantTurn] = []
        self._open_calls: dict[str, list[_AssistantTurn]] = {}
        if leading_system:
            self._turns.append(ChatMessage("system", leading_system))

    def add(self, index: int, message: Message) -> None:
        """Raises InvalidRequest for a block that cannot be told or that the policy refuses."""
        if message.role == "user":
            self._add_user(index, message)
        elif message.role == "assistant":
            self._add_assistant(index, message)
        else:
            self._add_system(message)

    def messages(self) -> list[ChatMessage]:
        flat: list[ChatMessage] = []
        for turn in self._turns:
            if isinstance(turn, _AssistantTurn):
                flat += turn.flat()
            else:
                flat.append(turn)
        if all(message.role == "system" for message in flat):
            flat.append(ChatMessage("user", ""))  # engines refuse a conversation without any turn
        return flat

    @property
    def ends_with_prefill(self) -> bool:
        """Whether the client has begun the answer itself."""
        last = self._turns[-1] if self._turns else None
        return isinstance(last, _AssistantTurn) and not last.message.tool_calls

    # Roles

    def _add_system(self, message: Message) -> None:
        content = message.content
        text = system_text(content)
        if not text:
            return
        if self._reader.policy.system_first and self._turns:
            self._turns.append(ChatMessage("user", reminder(text)))
        else:
            self._turns.append(ChatMessage("system", text))

    def _add_user(self, index: int, message: Message) -> None:
        content = message.content
        if isinstance(content, str):
            if content:
                self._turns.append(ChatMessage("user", content))
            return
        from_results: list[Item] = []
        items: list[Item] = []
        for place, block in enumerate(content or ()):
            if block.type == "text":
                if block.text:
                    items.append(block.text)
            elif block.type in ("tool_result", "mcp_tool_result"):
                media, orphan = self._add_result(block, f"messages.{index}.content.{place}")
                from_results += media
                items += orphan
            elif block.type not in ("thinking", "tool_use"):
                items += items_of(block, self._reader, f"messages.{index}.content.{place}")
            else:
                self._reader.losses.drop(block.type)
        items = from_results + items
        if items:
            self._turns.append(ChatMessage("user", joined(items)))

    def _add_assistant(self, index: int, message: Message) -> None:
        if isinstance(message.content, str):
            if message.content:
                self._extend(message.content, "", [])
            return
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        results: list[tuple[Block, str]] = []
        for place, block in enumerate(message.content or ()):
            if block.type == "text":
                if block.text:
                    texts.append(block.text)
                continue
            path = f"messages.{index}.content.{place}"
            if block.type in ("tool_use", "mcp_tool_use"):
                calls.append(self._call(block, path))
            elif block.type == "thinking":
                thoughts.append(reasoning_of(block.signature) or block.thinking or "")
            elif block.type in ("tool_result", "mcp_tool_result"):
                results.append((block, path))
            else:
                items = items_of(block, self._reader, path)
                texts += [item if isinstance(item, str) else "[image]" for item in items]
        thought = BLANK_LINE.join(thought for thought in thoughts if thought)
        if texts or thought or calls:
            self._extend(BLANK_LINE.join(texts), thought, calls)
        self._add_own_results(results)

    # Parts of a turn

    def _extend(self, text: str, thought: str, calls: list[ToolCall]) -> None:
        """A new assistant turn, or the rest of the one before: two in a row are one message to every template."""
        turn = self._turns[-1] if self._turns else None
        if not isinstance(turn, _AssistantTurn):
            turn = _AssistantTurn(ChatMessage("assistant", ""), [], [])
            self._turns.append(turn)
        message = turn.message
        message.content = _appended(message.content if isinstance(message.content, str) else "", text)
        if thought:
            field = self._reader.policy.engine.reasoning_history_field
            setattr(message, field, _appended(getattr(message, field) or "", thought))
        if calls:
            message.tool_calls = [*(message.tool_calls or ()), *calls]
            turn.unanswered += calls
            for call in calls:
                self._open_calls.setdefault(call.id, []).append(turn)

    def _call(self, block: Block, path: str) -> ToolCall:
        if not block.name:
            raise InvalidRequest(f"{path}.name", "must be a non-empty string")
        name = f"mcp__{block.server_name}__{block.name}" if block.type == "mcp_tool_use" else block.name
        return ToolCall(engine_id(block.id or ""), CalledFunction(self._names.upstream(name), _arguments(block, path)))

    def _add_result(self, block: Block, path: str) -> tuple[list[Item], list[Item]]:
        """(images for the user message that follows, the whole result as user items when no call waits for it)"""
        call_id = engine_id(block.tool_use_id or "")
        items = result_items(block.content, self._reader, path)
        if block.is_error:
            items.insert(0, ERROR)
        waiting = self._open_calls.get(call_id)
        if not waiting:
            return [], [f"[Result of tool call {call_id}]", *items]
        turn = waiting.pop()
        call = next(call for call in turn.unanswered if call.id == call_id)
        turn.unanswered.remove(call)
        texts = [item if isinstance(item, str) else "[image: see the next message]" for item in items]
        turn.results.append(ChatMessage("tool", "\n".join(texts), tool_call_id=call_id))
        images: list[Item] = [item for item in items if isinstance(item, ImagePart)]
        if images:
            images.insert(0, f"[Image from the result of {call.function.name}, call {call_id}]")
        return images, []

    def _add_own_results(self, results: list[tuple[Block, str]]) -> None:
        """Results inside an assistant message: those of MCP tools that a server once called."""
        items: list[Item] = []
        for block, path in results:
            images, orphan = self._add_result(block, path)
            items += images + orphan
        if items:
            self._turns.append(ChatMessage("user", joined(items)))


def _appended(text: str, more: str) -> str:
    return BLANK_LINE.join(part for part in (text, more) if part)


def _arguments(block: Block, path: str) -> str:
    """The input as the client spelled it. Some clients send a JSON text of the object instead of the object."""
    raw = bytes(block.input).decode()
    if raw.startswith("{"):
        return raw
    if raw in ("", "null", '""'):
        return "{}"
    if raw.startswith('"'):
        text: str = msgspec.json.decode(raw)
        if text.startswith("{"):
            return text
    raise InvalidRequest(f"{path}.input", "must be an object")
