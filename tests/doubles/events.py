"""Messages streams as a strict reader sees them, and the invariant that every stream keeps."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

DELTAS = {
    "text": {"text_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "tool_use": {"input_json_delta"},
}
EMPTY_BLOCKS: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}


@dataclass(frozen=True)
class Event:
    name: str
    data: dict[str, Any]


def read_events(raw: bytes) -> list[Event]:
    """Every event is `event: NAME`, one `data:` line of JSON whose type is NAME, and a blank line.
    Anything else is a failure."""
    assert raw == b"" or raw.endswith(b"\n\n"), f"the stream ends within an event: {raw[-200:]!r}"
    events = []
    for block in raw.decode("utf-8").removesuffix("\n\n").split("\n\n") if raw else []:
        lines = block.split("\n")
        assert len(lines) == 2, f"not one event and one data line: {block!r}"
        assert lines[0].startswith("event: "), block
        assert lines[1].startswith("data: "), block
        event = Event(lines[0].removeprefix("event: "), json.loads(lines[1].removeprefix("data: ")))
        assert event.data["type"] == event.name, block
        events.append(event)
    return events


def assert_stream_invariant(events: list[Event]) -> dict[str, Any]:
    """Checks a complete stream and returns the message it folds to."""
    story = [event for event in events if event.name != "ping"]
    assert story, "no events"
    assert not [event for event in story if event.name == "error"], (
        f"an error event: {story[-1].data}"
    )
    assert story[-1].name == "message_stop", f"the last event is {story[-1].name}"
    assert events[-1].name == "message_stop", "a ping after message_stop"
    assert [event.name for event in story].count("message_stop") == 1
    assert story[-2].name == "message_delta", f"{story[-2].name} before message_stop"
    assert [event.name for event in story].count("message_delta") == 1
    message, open_block = _fold(story[:-2])
    assert open_block is None, f"block {open_block} is open at the end"
    delta = story[-2].data
    assert delta["delta"]["stop_reason"], delta
    assert_usage(delta["usage"])
    message["stop_reason"] = delta["delta"]["stop_reason"]
    message["stop_sequence"] = delta["delta"].get("stop_sequence")
    message["usage"] = {**message["usage"], **delta["usage"]}
    return message


def assert_ends_with_error(events: list[Event], kind: str | None = None) -> dict[str, Any]:
    """Checks a stream that failed: a valid beginning, one error event, nothing after. Returns what
    had been told."""
    assert events, "no events"
    assert events[-1].name == "error", f"the last event is {events[-1].name}"
    error = events[-1].data["error"]
    assert isinstance(error["message"], str)
    assert error["message"]
    assert kind is None or error["type"] == kind, error
    story = [event for event in events[:-1] if event.name != "ping"]
    assert {"error", "message_delta", "message_stop"}.isdisjoint(event.name for event in story)
    return _fold(story)[0] if story else {"content": []}


def assert_usage(usage: dict[str, Any]) -> None:
    for name in ("input_tokens", "output_tokens"):
        assert name in usage, usage
    for name, value in usage.items():
        if name.endswith("_tokens"):
            assert type(value) is int, usage
            assert value >= 0, usage


def _fold(story: list[Event]) -> tuple[dict[str, Any], int | None]:
    start = story[0]
    assert start.name == "message_start", f"the first event is {start.name}"
    message: dict[str, Any] = dict(start.data["message"])
    assert message["content"] == []
    assert message["stop_reason"] is None
    assert message["id"].startswith("msg_")
    assert_usage(message["usage"])
    blocks: list[dict[str, Any]] = []
    open_block: int | None = None
    arguments = ""
    for event in story[1:]:
        data = event.data
        match event.name:
            case "content_block_start":
                assert open_block is None, (
                    f"block {data['index']} starts while {open_block} is open"
                )
                assert data["index"] == len(blocks), (
                    f"index {data['index']} after {len(blocks)} blocks"
                )
                open_block, arguments = data["index"], ""
                blocks.append(_begun(data["content_block"]))
            case "content_block_delta":
                assert data["index"] == open_block, (
                    f"a delta for {data['index']} while {open_block} is open"
                )
                arguments += _apply(blocks[-1], data["delta"])
            case "content_block_stop":
                assert data["index"] == open_block, (
                    f"stop of {data['index']} while {open_block} is open"
                )
                _end(blocks[-1], arguments)
                open_block = None
            case name:
                raise AssertionError(f"{name} among the blocks")
    message["content"] = blocks
    return message, open_block


def _begun(block: dict[str, Any]) -> dict[str, Any]:
    kind = block["type"]
    assert kind in DELTAS, block
    if kind == "tool_use":
        assert block["input"] == {}, block
        assert block["id"], block
        assert block["name"], block
        assert set(block) == {"type", "id", "name", "input"}, block
    else:
        assert {key: value for key, value in block.items() if key != "citations"} == EMPTY_BLOCKS[
            kind
        ], block
    return dict(block)


def _apply(block: dict[str, Any], delta: dict[str, Any]) -> str:
    assert delta["type"] in DELTAS[block["type"]], f"{delta['type']} in a {block['type']} block"
    match delta["type"]:
        case "text_delta":
            assert delta["text"], "an empty text_delta"
            block["text"] += delta["text"]
        case "thinking_delta":
            assert not block["signature"], "thinking after its signature"
            block["thinking"] += delta["thinking"]
        case "signature_delta":
            assert not block["signature"], "two signatures"
            block["signature"] = delta["signature"]
        case "input_json_delta":
            return str(delta["partial_json"])
    return ""


def _end(block: dict[str, Any], arguments: str) -> None:
    if block["type"] == "text":
        assert block["text"], "an empty text block"
    if block["type"] == "thinking":
        assert block["signature"], "a thinking block without signature"
    if block["type"] == "tool_use":
        block["partial_json"] = arguments
        try:
            block["input"] = json.loads(arguments) if arguments else {}
        except ValueError:
            block["input"] = None


def story_of(message: dict[str, Any]) -> list[tuple[str, Any]]:
    """The blocks in short: ('text', 'Hi'), ('thinking', 'hm'), ('tool_use', name, input)."""
    short: list[Any] = []
    for block in message["content"]:
        match block["type"]:
            case "tool_use":
                short.append(("tool_use", block["name"], block["input"]))
            case kind:
                short.append((kind, block[kind]))
    return short
