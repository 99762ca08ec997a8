"""What a program does with the Anthropic SDK for Python: `anthropic_sdk.py SCENARIO URL` prints one
JSON object of what it saw.

Runs in a venv of its own under an old and the current SDK; uses only what both have.
"""

import json
import sys
from typing import Any

import anthropic

MODEL = "claude-sim"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [
    {"name": name, "description": name, "input_schema": SCHEMA}
    for name in ("get_weather", "get_time")
]


def text(client: anthropic.Anthropic) -> dict[str, Any]:
    messages: Any = [{"role": "user", "content": "Say something."}]
    whole = client.messages.create(model=MODEL, max_tokens=200, messages=messages)
    with client.messages.stream(model=MODEL, max_tokens=200, messages=messages) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    return {
        "text": _text(whole),
        "streamed": streamed,
        "final": _text(final),
        "stop": final.stop_reason,
        "output_tokens": [whole.usage.output_tokens, final.usage.output_tokens],
    }


def tools(client: anthropic.Anthropic) -> dict[str, Any]:
    messages: Any = [{"role": "user", "content": "get_weather and get_time, please."}]
    with client.messages.stream(
        model=MODEL, max_tokens=300, tools=TOOLS, messages=messages
    ) as stream:
        asked = stream.get_final_message()
    calls = [block for block in asked.content if block.type == "tool_use"]
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": f"{call.name}: sunny"}
        for call in calls
    ]
    messages += [
        {"role": "assistant", "content": asked.content},
        {"role": "user", "content": results},
    ]
    answer = client.messages.create(model=MODEL, max_tokens=300, tools=TOOLS, messages=messages)
    return {
        "stop": asked.stop_reason,
        "calls": [[call.name, call.input] for call in calls],
        "answer": _text(answer),
    }


def fault(client: anthropic.Anthropic) -> dict[str, Any]:
    seen: dict[str, Any] = {"before": 0}
    try:
        with client.messages.stream(
            model=MODEL, max_tokens=200, messages=_say("[[fault:error-mid]]")
        ) as stream:
            for event in stream:
                seen["before"] += event.type == "content_block_delta"
    except anthropic.APIStatusError as error:
        body: Any = error.body
        seen["error"] = body["error"]["type"]
    try:
        client.with_options(max_retries=0).messages.create(
            model=MODEL, max_tokens=200, messages=_say("[[fault:503]]")
        )
    except anthropic.APIStatusError as error:
        seen["refused"] = error.status_code
    seen["then"] = _text(
        client.messages.create(model=MODEL, max_tokens=200, messages=_say("Again."))
    )
    return seen


def count(client: anthropic.Anthropic) -> dict[str, Any]:
    messages = _say("How many tokens is this?")
    counted = client.messages.count_tokens(model=MODEL, messages=messages, tools=TOOLS).input_tokens
    usage = client.messages.create(model=MODEL, max_tokens=10, messages=messages, tools=TOOLS).usage
    return {"counted": counted, "billed": usage.input_tokens + (usage.cache_read_input_tokens or 0)}


def models(client: anthropic.Anthropic) -> dict[str, Any]:
    ids = [model.id for model in client.models.list()]
    try:
        client.models.retrieve("no-such-model")
    except anthropic.NotFoundError as error:
        return {"ids": ids, "one": client.models.retrieve(MODEL).id, "missing": error.status_code}
    return {"ids": ids}


def interrupt(client: anthropic.Anthropic) -> dict[str, Any]:
    pieces = 0
    with client.messages.stream(
        model=MODEL, max_tokens=20000, messages=_say("[[tokens:20000]]")
    ) as stream:
        for _ in stream.text_stream:
            pieces += 1
            if pieces == 5:
                break
    return {"pieces": pieces}


def _say(text: str) -> Any:
    return [{"role": "user", "content": text}]


def _text(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


if __name__ == "__main__":
    scenario, url = sys.argv[1:]
    print(
        json.dumps(
            globals()[scenario](anthropic.Anthropic(base_url=url, api_key="sk-dummy", timeout=30))
        )
    )
