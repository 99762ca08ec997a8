"""What a program does with the OpenAI SDK on the chat route: `openai_sdk.py SCENARIO URL` prints
one JSON object of what it saw."""

import json
import sys
from typing import Any

import openai

MODEL = "claude-sim"
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("get_weather", "get_time")
]


def text(client: openai.OpenAI) -> dict[str, Any]:
    whole = client.chat.completions.create(
        model=MODEL, max_tokens=200, messages=_say("Say something.")
    )
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(
        client.chat.completions.create(
            model=MODEL, max_tokens=200, messages=_say("Say something."), **options
        )
    )
    streamed = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    stops = [
        choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason
    ]
    counts = [
        whole.usage.completion_tokens if whole.usage else 0,
        chunks[-1].usage.completion_tokens if chunks[-1].usage else 0,
    ]
    said = whole.choices[0].message.content
    return {
        "text": said,
        "streamed": streamed,
        "final": said,
        "stop": stops[0],
        "output_tokens": counts,
    }


def tools(client: openai.OpenAI) -> dict[str, Any]:
    messages = _say("get_weather and get_time, please.")
    asked = client.chat.completions.create(
        model=MODEL, max_tokens=300, messages=messages, tools=TOOLS
    ).choices[0]
    calls: list[Any] = list(asked.message.tool_calls or [])
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": f"{call.function.name}: sunny"}
        for call in calls
    ]
    messages += [asked.message.model_dump(exclude_none=True), *results]
    answer = client.chat.completions.create(
        model=MODEL, max_tokens=300, messages=messages, tools=TOOLS
    ).choices[0]
    named = [[call.function.name, json.loads(call.function.arguments)] for call in calls]
    return {"stop": asked.finish_reason, "calls": named, "answer": answer.message.content}


def fault(client: openai.OpenAI) -> dict[str, Any]:
    seen: dict[str, Any] = {"before": 0}
    try:
        for _ in client.chat.completions.create(
            model=MODEL, max_tokens=200, messages=_say("[[fault:error-mid]]"), stream=True
        ):
            seen["before"] += 1
    except openai.APIError as error:
        seen["error"] = type(error).__name__
    try:
        client.with_options(max_retries=0).chat.completions.create(
            model=MODEL, messages=_say("[[fault:503]]")
        )
    except openai.APIStatusError as error:
        seen["refused"] = error.status_code
    seen["then"] = (
        client.chat.completions.create(model=MODEL, max_tokens=200, messages=_say("Again."))
        .choices[0]
        .message.content
    )
    return seen


def models(client: openai.OpenAI) -> dict[str, Any]:
    ids = [model.id for model in client.models.list()]
    try:
        client.models.retrieve("no-such-model")
    except openai.NotFoundError as error:
        return {"ids": ids, "one": client.models.retrieve(MODEL).id, "missing": error.status_code}
    return {"ids": ids}


def interrupt(client: openai.OpenAI) -> dict[str, Any]:
    pieces = 0
    with client.chat.completions.create(
        model=MODEL, max_tokens=20000, messages=_say("[[tokens:20000]]"), stream=True
    ) as stream:
        for _ in stream:
            pieces += 1
            if pieces == 5:
                break
    return {"pieces": pieces}


def _say(text: str) -> Any:
    return [{"role": "user", "content": text}]


if __name__ == "__main__":
    scenario, url = sys.argv[1:]
    print(
        json.dumps(
            globals()[scenario](openai.OpenAI(base_url=f"{url}/v1", api_key="sk-dummy", timeout=30))
        )
    )
