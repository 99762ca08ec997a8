"""The official Python SDK, current, with strict response validation, against the proxy in front of
the simulated vLLM."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from tests.doubles.loop_thread import LoopThread
from tests.doubles.proxy import ROOT, Ferrule, config_for

from ferrule import sim

TOOL: Any = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
HI: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def simulated(loop_thread: LoopThread, new_proxy: Callable[..., Ferrule]) -> Iterator[Ferrule]:
    settings = sim.SimSettings(
        port=0,
        model="m",
        reasoning=True,
        scripted=True,
        tokens_per_second=0,
        ttft_ms=0,
        max_model_len=4096,
    )
    runner, url = loop_thread.run(sim.listen(settings))
    yield new_proxy(config_for(url, pool={"retries": 0}))
    loop_thread.run(runner.cleanup())


@pytest.fixture(scope="module")
def client(simulated: Ferrule) -> Iterator[anthropic.Anthropic]:
    url = f"http://{simulated.listen}"
    with anthropic.Anthropic(
        base_url=url, api_key="k", max_retries=0, timeout=20, _strict_response_validation=True
    ) as client:
        yield client


def test_create(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="m", max_tokens=300, messages=HI, system="Be brief.")
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.model == "m"
    assert message.stop_reason == "end_turn"
    assert message.usage.input_tokens > 0
    assert message._request_id


def test_stream_helper(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model="m", max_tokens=300, messages=HI) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text
    assert final.content[-1].type == "text"
    assert final.content[-1].text == text
    assert final.usage.output_tokens > 0
    replied = client.messages.create(model="m", max_tokens=300, messages=HI).content
    assert [block.model_dump(exclude_none=True) for block in final.content] == [
        block.model_dump(exclude_none=True) for block in replied
    ]


def test_raw_stream(client: anthropic.Anthropic) -> None:
    with client.messages.create(model="m", max_tokens=300, messages=HI, stream=True) as events:
        names = [event.type for event in events]
    assert names[0] == "message_start"
    assert names[-2:] == ["message_delta", "message_stop"]


def test_tools(client: anthropic.Anthropic) -> None:
    ask: Any = [{"role": "user", "content": "call get_weather"}]
    with client.messages.stream(model="m", max_tokens=300, messages=ask, tools=[TOOL]) as stream:
        message = stream.get_final_message()
    call = message.content[-1]
    assert call.type == "tool_use"
    assert call.input == {"city": "sample"}
    assert message.stop_reason == "tool_use"
    history: Any = [
        *ask,
        {"role": "assistant", "content": message.content},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "12 degrees"}],
        },
    ]
    assert (
        client.messages.create(
            model="m", max_tokens=300, messages=history, tools=[TOOL]
        ).stop_reason
        == "end_turn"
    )
    forced = client.messages.create(
        model="m",
        max_tokens=300,
        messages=HI,
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "get_weather"},
    )
    assert forced.stop_reason == "tool_use"


def test_thinking(client: anthropic.Anthropic) -> None:
    for thinking, expected in (({"type": "adaptive"}, True), ({"type": "disabled"}, False)):
        chosen: Any = thinking
        message = client.messages.create(model="m", max_tokens=300, messages=HI, thinking=chosen)
        assert (message.content[0].type == "thinking") is expected
    budget: Any = {"type": "enabled", "budget_tokens": 3}
    message = client.messages.create(model="m", max_tokens=300, messages=HI, thinking=budget)
    assert len(message.content[0].thinking.split()) == 3


def test_structured_output(client: anthropic.Anthropic) -> None:
    form: Any = {"format": {"type": "json_schema", "schema": TOOL["input_schema"]}}
    message = client.messages.create(model="m", max_tokens=300, messages=HI, output_config=form)
    assert message.content[-1].text.strip() == '{"city":"sample"}'


def test_stop_sequence_and_length(client: anthropic.Anthropic) -> None:
    stopped = client.messages.create(
        model="m", max_tokens=300, messages=HI, stop_sequences=["simulated"]
    )
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "simulated")
    assert client.messages.create(model="m", max_tokens=5, messages=HI).stop_reason == "max_tokens"


def test_a_session_that_returns_reads_from_the_cache(client: anthropic.Anthropic) -> None:
    long: Any = [{"role": "user", "content": "once upon a time " * 100}]
    client.messages.create(model="m", max_tokens=50, messages=long)
    again = client.messages.create(model="m", max_tokens=50, messages=long)
    assert (again.usage.cache_read_input_tokens or 0) > 300


def test_count_tokens_equals_the_usage(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model="m", messages=HI, system="S", tools=[TOOL])
    usage = client.messages.create(
        model="m", max_tokens=50, messages=HI, system="S", tools=[TOOL]
    ).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_models(client: anthropic.Anthropic) -> None:
    assert [model.id for model in client.models.list(limit=1)] == ["m"]
    assert client.models.retrieve("m").display_name


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"model": "nope"}, anthropic.NotFoundError),
        ({"messages": [{"role": "user", "content": "[[fault:503]]"}]}, anthropic.APIStatusError),
        ({"messages": [{"role": "user", "content": "x " * 20_000}]}, anthropic.BadRequestError),
        ({"messages": [{"role": "robot", "content": "x"}]}, anthropic.BadRequestError),
        (
            {"messages": [{"role": "user", "content": "[[fault:error-first]]"}]},
            anthropic.InternalServerError,
        ),
    ],
    ids=["unknown-model", "busy", "too-long", "bad-role", "broken"],
)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_errors(
    client: anthropic.Anthropic,
    options: dict[str, Any],
    error: type[anthropic.APIStatusError],
    streamed: bool,
) -> None:
    with pytest.raises(error) as caught:
        client.messages.create(
            **{"model": "m", "max_tokens": 50, "messages": HI, "stream": streamed, **options}
        )
    assert caught.value.request_id
    body: Any = caught.value.body
    assert body["request_id"] == caught.value.request_id


def test_an_error_in_mid_stream(client: anthropic.Anthropic) -> None:
    ask: Any = [{"role": "user", "content": "[[fault:error-mid]]"}]
    with (
        pytest.raises(anthropic.APIStatusError) as caught,
        client.messages.stream(model="m", max_tokens=50, messages=ask) as stream,
    ):
        stream.get_final_message()
    body: Any = caught.value.body
    assert body["error"]["type"] == "api_error"


async def test_async_client(simulated: Ferrule) -> None:
    url = f"http://{simulated.listen}"
    async with (
        anthropic.AsyncAnthropic(
            base_url=url, api_key="k", max_retries=0, _strict_response_validation=True
        ) as client,
        client.messages.stream(model="m", max_tokens=300, messages=HI) as stream,
    ):
        message = await stream.get_final_message()
    assert message.content[-1].type == "text"


def test_openai_sdk(simulated: Ferrule) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(
        base_url=f"http://{simulated.listen}/v1", api_key="k", max_retries=0
    ) as client:
        answer = client.chat.completions.create(model="m", messages=HI, max_tokens=300)
        assert answer.choices[0].message.content
        parts = list(
            client.chat.completions.create(model="m", messages=HI, max_tokens=300, stream=True)
        )
        assert parts[-1].choices[0].finish_reason == "stop", "the usage chunk was not asked for"
        assert [model.id for model in client.models.list()] == ["m"]


OLD_PYTHON = ROOT / ".cache" / "sdk-0.75" / "bin" / "python"


@pytest.mark.skipif(
    not OLD_PYTHON.exists(), reason="the old SDK's environment has not been made (make sdk-old)"
)
def test_the_sdk_of_2025(simulated: Ferrule) -> None:
    script = Path(__file__).with_name("sdk_075.py")
    done = subprocess.run(
        [OLD_PYTHON, script, f"http://{simulated.listen}"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_old_sdks_script_runs_with_the_new_one_too(simulated: Ferrule) -> None:
    assert importlib.util.find_spec("anthropic")
    script = Path(__file__).with_name("sdk_075.py")
    done = subprocess.run(
        [sys.executable, script, f"http://{simulated.listen}"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
