"""What the simulated model says to a request: deltas of reasoning, text and tool calls, and how it
ends.

Pure and deterministic: the same request gives the same answer. A token is a word with the blanks
after it; a prompt token is four bytes of the request's messages and tools. Knows neither HTTP nor
the wire format.
"""

from __future__ import annotations

import re
import zlib
from itertools import cycle, islice
from typing import Any

import msgspec

BLOCK_TOKENS = 16
BYTES_PER_TOKEN = 4
NATURAL_LENGTH_TOKENS = 48
"""And then to the end of the sentence."""

_WORDS = re.compile(r"\S+\s*|\s+")
_LENGTH = re.compile(r"\[\[tokens:(\d+)\]\]")
_SENTENCES = (
    "Every token you read left a simulated engine a moment ago. ",
    "No weights were moved and no card grew warm for it. ",
    "The reply is made from your own words, so that it can be checked. ",
    "Ask again and the answer will be the same. ",
    "Sessions that return find their prefix in the cache. ",
)


class SimSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated server. `tokens_per_second` 0: as fast as it goes; `fault`: a name of
    `faults.FAULTS`, `NAME:N` with a number."""

    host: str = "127.0.0.1"
    port: int = 8000
    model: str = "sim"
    tokens_per_second: float = 50.0
    ttft_ms: float = 20.0
    reasoning: bool = False
    fault: str | None = None
    scripted: bool = False
    """Obey `[[fault:NAME]]` and `[[tokens:N]]` in the last user message."""
    images: bool = False
    max_model_len: int = 131_072
    cache_tokens: int = 4_000_000
    drain_s: float = 0.0
    """How long streams may run on after SIGTERM; then they end with `abort`, as vLLM's do."""


class StreamOptions(msgspec.Struct):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class Function(msgspec.Struct):
    name: str
    parameters: dict[str, Any] | None = None


class Tool(msgspec.Struct):
    function: Function


class ChatRequest(msgspec.Struct):
    """The part of a chat completion request that steers the simulated server. Unknown members are
    ignored, as vLLM does."""

    messages: list[msgspec.Raw]
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    tools: msgspec.Raw = msgspec.Raw(b"null")
    tool_choice: str | Tool | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    thinking_token_budget: int | None = None
    include_reasoning: bool = True
    continue_final_message: bool = False


class Message(msgspec.Struct):
    role: str = ""
    content: str | list[dict[str, Any]] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(
                str(part.get("text", "")) for part in self.content if part.get("type") == "text"
            )
        return self.content or ""


class Delta(msgspec.Struct, frozen=True):
    """One token of an answer. `kind`: reasoning, content, call (a call begins; `text` is the tool's
    name) or arguments."""

    kind: str
    text: str
    index: int = 0


class Completion(msgspec.Struct):
    deltas: list[Delta]
    finish_reason: str
    stop_reason: str | None = None

    @property
    def reasoning_tokens(self) -> int:
        return sum(delta.kind == "reasoning" for delta in self.deltas)


class PrefixCache:
    """Blocks of 16 tokens, found again while the prompt before them is the same; the least lately
    used are forgotten."""

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = max(1, capacity_tokens // BLOCK_TOKENS)
        self._blocks: dict[int, None] = {}

    def admit(self, prompt: bytes) -> int:
        """The number of tokens of `prompt` that were held already; from now on all of it is."""
        size = BLOCK_TOKENS * BYTES_PER_TOKEN
        hits, prefix, unbroken = 0, 0, True
        for start in range(0, len(prompt) - size, size):
            prefix = hash((prefix, prompt[start : start + size]))
            known = prefix in self._blocks
            unbroken = unbroken and known
            hits += unbroken
            if known:
                del self._blocks[prefix]
            self._blocks[prefix] = None
        for oldest in list(islice(self._blocks, max(0, len(self._blocks) - self._capacity))):
            del self._blocks[oldest]
        return hits * BLOCK_TOKENS


def prompt_of(messages: list[msgspec.Raw], tools: msgspec.Raw) -> bytes:
    """The rendered prompt: tools first, as templates have it, then the messages."""
    head = b"" if bytes(tools) in (b"null", b"[]") else bytes(tools)
    return head + b"\n".join(bytes(message) for message in messages)


def count_tokens(prompt: bytes) -> int:
    return len(prompt) // BYTES_PER_TOKEN + 1


def last_message(request: ChatRequest) -> Message:
    """What is answered: the last message that is not a system one. Agents send reminders as system
    messages after the user's own."""
    for raw in reversed(request.messages):
        try:
            message = msgspec.json.decode(raw, type=Message)
        except msgspec.ValidationError:
            continue
        if message.role not in ("system", "developer"):
            return message
    return Message()


def tools_of(request: ChatRequest) -> list[Tool]:
    if bytes(request.tools) == b"null":
        return []
    return msgspec.json.decode(request.tools, type=list[Tool])


def compose(request: ChatRequest, settings: SimSettings, max_tokens: int) -> Completion:
    """The answer to a valid request, cut at its stop strings and at `max_tokens`."""
    last = last_message(request)
    calls, forced = _choose_calls(request, last)
    deltas = _reasoning(request, settings, last)
    if request.response_format and request.response_format.get("type") in (
        "json_schema",
        "json_object",
    ):
        schema = request.response_format.get("json_schema", {}).get("schema", {"type": "object"})
        text = msgspec.json.encode(sample(schema, schema)).decode()
        calls = []
    elif calls:
        text = "" if forced else "Let me look. "
    else:
        text = _speak(last.text, settings)
    if deltas and text:
        text = (
            "\n\n" + text
        )  # the templates of reasoning models put a blank line there, and it reaches the wire
    stops = [request.stop] if isinstance(request.stop, str) else (request.stop or [])
    text, stop_reason = _cut_at_stop(text, stops)
    deltas += [Delta("content", word) for word in _WORDS.findall(text)]
    if stop_reason is None:
        deltas += _call_deltas(calls)
    if len(deltas) > max_tokens:
        return Completion(deltas[:max_tokens], "length")
    # vLLM ends a forced named call with `stop`
    return Completion(
        deltas,
        "tool_calls" if calls and stop_reason is None and forced != "named" else "stop",
        stop_reason,
    )


def sample(schema: Any, root: Any) -> Any:
    """A small value that conforms to a JSON schema (the common keywords)."""
    if not isinstance(schema, dict):
        return None
    if "$ref" in schema:
        target = root
        for key in str(schema["$ref"]).removeprefix("#/").split("/"):
            target = target.get(key, {}) if isinstance(target, dict) else {}
        return sample(target, root)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return schema[key][0] if key == "enum" else sample(schema[key][0], root)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            properties = schema.get("properties", {})
            return {
                name: sample(properties.get(name, {}), root)
                for name in schema.get("required") or properties
            }
        case "array":
            return [sample(schema.get("items", {}), root)] * max(1, schema.get("minItems", 1))
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return "sample"


def _choose_calls(request: ChatRequest, last: Message) -> tuple[list[Function], str | None]:
    tools = [tool.function for tool in tools_of(request)]
    if not tools or request.tool_choice == "none":
        return [], None
    if isinstance(request.tool_choice, Tool):
        name = request.tool_choice.function.name
        return [tool for tool in tools if tool.name == name][:1], "named"
    asked = [tool for tool in tools if last.role == "user" and tool.name in last.text]
    if request.tool_choice == "required":
        return asked or tools[:1], "required"
    if (
        not asked
        and last.role == "user"
        and re.search(r"\b(use|call)\b.*\btool", last.text, re.IGNORECASE)
    ):
        asked = tools[:1]
    return asked[:1] if request.parallel_tool_calls is False else asked, None


def _call_deltas(calls: list[Function]) -> list[Delta]:
    deltas: list[Delta] = []
    for index, call in enumerate(calls):
        if index:
            deltas.append(Delta("content", "\n"))  # left over between two calls by the XML parsers
        deltas.append(Delta("call", call.name, index))
        schema = call.parameters or {"type": "object"}
        arguments = msgspec.json.encode(sample(schema, schema)).decode()
        deltas += [
            Delta("arguments", arguments[at : at + 8], index) for at in range(0, len(arguments), 8)
        ]
    return deltas


def _reasoning(request: ChatRequest, settings: SimSettings, last: Message) -> list[Delta]:
    off = (request.chat_template_kwargs or {}).get(
        "enable_thinking", request.reasoning_effort != "none"
    ) is False
    if not settings.reasoning or off or request.continue_final_message:
        return []
    length = {"low": 8, "medium": 16, "high": 32}.get(request.reasoning_effort or "", 16)
    thought = (
        f"The user wrote {len(last.text)} characters, so I answer in a few words. I weigh it "
        f"again. "
    )
    words = list(islice(cycle(_WORDS.findall(thought)), length))
    if request.thinking_token_budget is not None and request.thinking_token_budget >= 0:
        words = words[: request.thinking_token_budget]
    return [Delta("reasoning", word) for word in words]


def _speak(prompt: str, settings: SimSettings) -> str:
    length = _LENGTH.search(prompt) if settings.scripted else None
    quoted = " ".join(prompt.split())[:120]
    start = zlib.crc32(prompt.encode("utf-8", "replace")) % len(_SENTENCES)
    words = _WORDS.findall(f"I am {settings.model}, a simulated model. You said: “{quoted}”. ")
    wanted = int(length[1]) if length else max(NATURAL_LENGTH_TOKENS, len(words))
    filler = cycle(_WORDS.findall("".join(_SENTENCES[start:] + _SENTENCES[:start])))
    words = words[:wanted] + list(islice(filler, max(0, wanted - len(words))))
    while length is None and not words[-1].endswith(". "):
        words.append(next(filler))
    return "".join(words).rstrip(" ")


def _cut_at_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    found = [(text.index(stop), stop) for stop in stops if stop and stop in text]
    if not found:
        return text, None
    at, stop = min(found)
    return text[:at], stop
