"""Builds the request bodies that benchmarks send, as Messages and as chat completions with the same
content.

The mock replaces `@ID@` with the number of the stream. The text is fixed, so runs are comparable.
"""

import json
from typing import Any

_QUESTION = "Explain how a KV cache works in two sentences, please. stream=<@ID@>"
_SENTENCE = (
    "The server keeps the keys and values of every token it has read, so that the next one costs "
    "one step. "
)
_TOOL_TEXT = (
    "Reads a file from the local file system. The path must be absolute. Reads up to 2000 lines "
    "from the beginning. " * 6
)
SHORT_TOKENS = 4096


def build_short(path: str) -> str:
    """A one-line question."""
    return _encode(path, {"messages": [{"role": "user", "content": _QUESTION}]})


def build_agent(path: str, size_kb: int) -> str:
    """A request from the middle of an agent's work: a long system prompt, tools, and a history of
    calls and results. At least `size_kb` long."""
    system = _SENTENCE * 300
    turns: list[dict[str, Any]] = []
    chat = path.endswith("chat/completions")
    body: dict[str, Any] = {"tools": [_build_tool(number, chat) for number in range(18)]}
    if not chat:
        body["system"] = [{"type": "text", "text": system}]
    fixed = len(json.dumps(body)) + (len(system) if chat else 0)
    while fixed + len(json.dumps(turns)) < size_kb * 1000:
        turns += _build_tool_round(len(turns), chat)
    head = [{"role": "system", "content": system}] if chat else []
    body["messages"] = [*head, *turns, {"role": "user", "content": _QUESTION}]
    return _encode(path, body)


def _build_tool_round(number: int, chat: bool) -> list[dict[str, Any]]:
    call, arguments = f"call_{number}", {"path": f"/src/module_{number}.py", "limit": 200}
    result = f"{number}: " + _SENTENCE * 20
    if chat:
        function = {"name": "tool_0", "arguments": json.dumps(arguments)}
        assistant = {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": call, "type": "function", "function": function}],
        }
        return [
            {"role": "user", "content": "Go on."},
            assistant,
            {"role": "tool", "tool_call_id": call, "content": result},
        ]
    use = {"type": "tool_use", "id": call, "name": "tool_0", "input": arguments}
    return [
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, use]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call, "content": result}],
        },
        {"role": "assistant", "content": "I have read it."},
    ]


def _build_tool(number: int, chat: bool) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Where."},
            "limit": {"type": "integer", "description": "How many lines."},
        },
        "required": ["path"],
    }
    name = f"tool_{number}"
    if chat:
        return {
            "type": "function",
            "function": {"name": name, "description": _TOOL_TEXT, "parameters": schema},
        }
    return {"name": name, "description": _TOOL_TEXT, "input_schema": schema}


def _encode(path: str, body: dict[str, Any]) -> str:
    head: dict[str, Any] = {"model": "m", "max_tokens": SHORT_TOKENS, "stream": True}
    if path.endswith("chat/completions"):
        head["stream_options"] = {"include_usage": True}
    else:
        head["metadata"] = {"user_id": "session-@ID@"}
    return json.dumps({**head, **body})
