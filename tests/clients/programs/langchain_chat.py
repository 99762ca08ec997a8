"""What a program does with LangChain's Anthropic chat model: `langchain_chat.py SCENARIO URL`
prints one JSON object of what it saw."""

import json
import sys
from typing import Any

import anthropic
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool


@tool
def get_weather(city: str) -> str:
    """The weather."""
    return "get_weather: sunny"


@tool
def get_time(city: str) -> str:
    """The time."""
    return "get_time: sunny"


TOOLS = {"get_weather": get_weather, "get_time": get_time}


def text(model: ChatAnthropic) -> dict[str, Any]:
    whole = model.invoke("Say something.")
    parts = list(model.stream("Say something."))
    streamed = parts[0]
    for part in parts[1:]:
        streamed = streamed + part
    counts = [whole.usage_metadata["output_tokens"], streamed.usage_metadata["output_tokens"]]  # type: ignore[index]
    stop = whole.response_metadata["stop_reason"]
    return {
        "text": whole.text,
        "streamed": streamed.text,
        "final": whole.text,
        "stop": stop,
        "output_tokens": counts,
    }


def tools(model: ChatAnthropic) -> dict[str, Any]:
    bound = model.bind_tools(list(TOOLS.values()))
    messages: list[Any] = [HumanMessage("get_weather and get_time, please.")]
    asked = bound.invoke(messages)
    messages.append(asked)
    messages += [
        ToolMessage(TOOLS[call["name"]].invoke(call["args"]), tool_call_id=call["id"])
        for call in asked.tool_calls
    ]
    calls = [[call["name"], call["args"]] for call in asked.tool_calls]
    return {
        "stop": asked.response_metadata["stop_reason"],
        "calls": calls,
        "answer": bound.invoke(messages).text,
    }


def fault(model: ChatAnthropic) -> dict[str, Any]:
    seen: dict[str, Any] = {"before": 0}
    try:
        for _ in model.stream("[[fault:error-mid]]"):
            seen["before"] += 1
    except anthropic.APIStatusError as error:
        body: Any = error.body
        seen["error"] = body["error"]["type"]
    try:
        model.invoke("[[fault:503]]")
    except anthropic.APIStatusError as error:
        seen["refused"] = error.status_code
    seen["then"] = model.invoke("Again.").text
    return seen


def count(model: ChatAnthropic) -> dict[str, Any]:
    messages: list[Any] = [HumanMessage("How many tokens is this?")]
    counted = model.get_num_tokens_from_messages(messages)
    billed = model.invoke(messages).usage_metadata
    return {"counted": counted, "billed": billed["input_tokens"] if billed else 0}


def interrupt(model: ChatAnthropic) -> dict[str, Any]:
    pieces = 0
    stream = model.stream("[[tokens:20000]]", max_tokens=20000)
    for _ in stream:
        pieces += 1
        if pieces == 5:
            break
    stream.close()  # type: ignore[attr-defined]
    return {"pieces": pieces}


if __name__ == "__main__":
    scenario, url = sys.argv[1:]
    chat: Any = ChatAnthropic(
        model="claude-sim",
        base_url=url,
        api_key="sk-dummy",
        max_tokens=300,
        max_retries=0,
        timeout=30,
    )  # type: ignore[call-arg, arg-type]
    print(json.dumps(globals()[scenario](chat)))
