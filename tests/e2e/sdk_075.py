"""The Python SDK of 2025 (0.75) against a running proxy: `python sdk_075.py URL`, status 0 when all
went well.

Stands alone, because it runs in an environment of its own. The backend is the simulated vLLM,
scripted and reasoning.
"""

import sys

import anthropic

TOOL = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
HI = [{"role": "user", "content": "hi"}]


def check(client: anthropic.Anthropic) -> None:
    ask = {"model": "m", "max_tokens": 300}
    message = client.messages.create(messages=HI, **ask)
    assert [block.type for block in message.content] == ["thinking", "text"], message
    assert message.stop_reason == "end_turn", message
    with client.messages.stream(messages=HI, **ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[-1].text == text, final
    assert final.content[0].signature, final
    with client.messages.stream(
        messages=[{"role": "user", "content": "call get_weather"}], tools=[TOOL], **ask
    ) as stream:
        called = stream.get_final_message()
    assert called.stop_reason == "tool_use", called
    assert called.content[-1].input == {"city": "sample"}, called
    assert client.messages.count_tokens(model="m", messages=HI).input_tokens > 0
    assert [model.id for model in client.models.list(limit=1)] == ["m"]
    assert client.models.retrieve("m").id == "m"
    check_errors(client, ask)


def check_errors(client: anthropic.Anthropic, ask: dict) -> None:
    try:
        client.messages.create(messages=HI, model="nope", max_tokens=10)
    except anthropic.NotFoundError as error:
        assert error.request_id, error
    else:
        raise AssertionError("an unknown model was served")
    try:
        with client.messages.stream(
            messages=[{"role": "user", "content": "[[fault:error-mid]]"}], **ask
        ) as stream:
            stream.get_final_message()
    except anthropic.APIStatusError as error:
        assert error.body["error"]["type"] == "api_error", error.body
    else:
        raise AssertionError("a broken stream passed for a whole one")


if __name__ == "__main__":
    print(f"anthropic {anthropic.__version__}")
    with anthropic.Anthropic(
        base_url=sys.argv[1], api_key="k", max_retries=0, timeout=20
    ) as the_client:
        check(the_client)
