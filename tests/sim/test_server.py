"""The simulated vLLM on the wire: its chunks, its refusals word for word, its faults by name, its
end."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from ferrule.sim import FAULTS, SimSettings, listen
from ferrule.sim.faults import parse
from ferrule.sim.server import ENGINE, main

Sim = Callable[..., Awaitable[aiohttp.ClientSession]]


@pytest.fixture
async def start() -> AsyncIterator[Sim]:
    """Starts a server with these settings; returns a client for it."""
    opened: list[Any] = []

    async def begin(**settings: Any) -> aiohttp.ClientSession:
        runner, url = await listen(
            SimSettings(**{"port": 0, "tokens_per_second": 0, "ttft_ms": 0, **settings})
        )
        client = aiohttp.ClientSession(url)
        opened.append((runner, client))
        return client

    yield begin
    for runner, client in opened:
        await client.close()
        await runner.cleanup()


def body(content: str = "hi", **members: Any) -> dict[str, Any]:
    value = {
        "model": "sim",
        "stream": True,
        "messages": [{"role": "user", "content": content}],
        **members,
    }
    return {key: member for key, member in value.items() if member is not None}


async def ask(
    client: aiohttp.ClientSession, content: str = "hi", **members: Any
) -> tuple[int, bytes]:
    async with client.post("/v1/chat/completions", json=body(content, **members)) as answer:
        return answer.status, await answer.read()


def frames(raw: bytes) -> list[Any]:
    lines = raw.decode().removesuffix("\n\n").split("\n\n")
    return [
        json.loads(line.removeprefix("data: ")) if line != "data: [DONE]" else "DONE"
        for line in lines
    ]


async def test_a_stream(start: Sim) -> None:
    client = await start(reasoning=True)
    _, raw = await ask(client, stream_options={"include_usage": True})
    received = frames(raw)
    assert received[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert list(received[1]["choices"][0]["delta"]) == ["reasoning"]
    assert received[-1] == "DONE"
    assert received[-2]["choices"] == []
    assert received[-2]["usage"]["completion_tokens"] == len(received) - 4
    assert (received[-3]["choices"][0]["finish_reason"], received[-3]["choices"][0]["delta"]) == (
        "stop",
        {},
    )


async def test_streamed_and_whole_say_the_same(start: Sim) -> None:
    client = await start()
    _, raw = await ask(client)
    _, reply = await ask(client, stream=None)
    streamed = "".join(
        frame["choices"][0]["delta"].get("content", "") for frame in frames(raw)[:-1]
    )
    assert json.loads(reply)["choices"][0]["message"]["content"] == streamed
    assert "usage" not in frames(raw)[-2]


async def test_tokenize_counts_what_is_billed(start: Sim) -> None:
    client = await start()
    tools = [{"type": "function", "function": {"name": "F"}}]
    _, reply = await ask(client, stream=None, tools=tools)
    async with client.post(
        "/tokenize", json={"messages": body()["messages"], "tools": tools}
    ) as answer:
        assert (await answer.json())["count"] == json.loads(reply)["usage"]["prompt_tokens"]


async def test_probes(start: Sim) -> None:
    client = await start(max_model_len=1234)
    async with client.get("/v1/models") as answer:
        assert (await answer.json())["data"][0]["max_model_len"] == 1234
    async with client.get("/version") as answer:
        assert await answer.json() == {"version": "0.33.0"}
    async with client.get("/metrics") as answer:
        assert 'vllm:num_requests_running{engine="0",model_name="sim"} 0.0' in await answer.text()


REFUSALS: list[tuple[dict[str, Any], int, str]] = [
    ({"model": "nope"}, 404, "The model `nope` does not exist. Valid aliases: sim."),
    ({"tools": []}, 400, "`tools` must not be an empty array."),
    (
        {"stream": False, "stream_options": {}},
        400,
        "Stream options can only be defined when `stream=True`.",
    ),
    ({"messages": []}, 400, "Cannot apply chat template to an empty conversation."),
    ({"max_tokens": 4097}, 400, "max_tokens=4097 cannot be greater than max_model_len=4096."),
    (
        {"content": "x" * 20_000},
        400,
        "This model's maximum context length is 4096 tokens. However, your prompt contains at "
        "least 4097 input",
    ),
    ({"temperature": -1.0}, 400, "temperature must be non-negative, got -1.0."),
    ({"top_p": 5.0}, 400, "top_p must be in (0, 1], got 5.0."),
    ({"thinking_token_budget": 5}, 400, "reasoning"),
    (
        {"tool_choice": {"type": "function", "function": {"name": "x"}}},
        400,
        "does not match any of the specified `tools`",
    ),
    ({"max_tokens": "many"}, 400, "1 validation error"),
    (
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
            ]
        },
        400,
        "sim is not a multimodal model",
    ),
]


@pytest.mark.parametrize(
    ("members", "status", "words"), REFUSALS, ids=[words[:30] for *_, words in REFUSALS]
)
async def test_refusals(start: Sim, members: dict[str, Any], status: int, words: str) -> None:
    client = await start(max_model_len=4096)
    data = json.dumps(body(**members), separators=(",", ":"))
    async with client.post("/v1/chat/completions", data=data) as answer:
        error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (status, status)
    assert words in error["message"]


CLEAN_FAULTS: dict[str, tuple[int, str]] = {
    "503": (503, "currently busy"),
    "500-draining": (500, "cannot schedule new futures after shutdown"),
    "error-first": (200, '"error"'),
    "error-mid": (200, '"error"'),
    "abort": (200, '"finish_reason":"abort"'),
    "garbage": (200, "{this is not json"),
    "json-instead": (200, '"chat.completion"'),
    "empty-200": (200, ""),
    "done-only": (200, "data: [DONE]"),
    "slow-bytes": (200, "data: [DONE]"),
    "silent-then-stream:0.01": (200, "data: [DONE]"),
    "no-finish": (200, "content"),
}
BREAKING_FAULTS = ["refuse", "reset-after-k", "cut-mid-chunk"]
SILENT_FAULTS = ["hang", "keepalive-only"]


def test_every_fault_is_tried() -> None:
    assert {name.split(":")[0] for name in CLEAN_FAULTS} | {
        *BREAKING_FAULTS,
        *SILENT_FAULTS,
    } == set(FAULTS)
    with pytest.raises(ValueError, match="no fault"):
        parse("nonsense")


@pytest.mark.parametrize("name", CLEAN_FAULTS)
async def test_faults_that_end(start: Sim, name: str) -> None:
    client = await start(scripted=True)
    status, words = CLEAN_FAULTS[name]
    got, raw = await ask(client, f"[[fault:{name}]]")
    assert got == status
    assert words in raw.decode()
    if name == "no-finish":
        assert b"[DONE]" not in raw
        assert raw.count(b'"content"') == 5


@pytest.mark.parametrize("name", BREAKING_FAULTS)
async def test_faults_that_break_the_connection(start: Sim, name: str) -> None:
    client = await start(scripted=True)
    with pytest.raises(aiohttp.ClientError):
        await ask(client, f"[[fault:{name}]]")
    assert (await ask(client))[0] == 200


@pytest.mark.parametrize("name", SILENT_FAULTS)
async def test_faults_that_say_nothing(start: Sim, name: str) -> None:
    client = await start(fault=name)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await ask(client)


async def test_a_drain_refuses_the_new_and_aborts_the_old() -> None:
    runner, url = await listen(SimSettings(port=0, tokens_per_second=20, ttft_ms=0))
    async with (
        aiohttp.ClientSession(url) as client,
        client.post("/v1/chat/completions", json=body()) as answer,
    ):
        await answer.content.readuntil(b"\n\n")
        engine = runner.app[ENGINE]
        engine.draining = True
        async with client.post("/v1/chat/completions", json=body()) as late:
            assert late.status == 500
        async with client.get("/health") as health:
            assert health.status == 200
        engine.aborting = True
        assert b'"finish_reason":"abort"' in await answer.read()
    await runner.cleanup()


def test_a_wrong_fault_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--fault", "nonsense"])
    assert ended.value.code == 2
    assert "keepalive-only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--port", "65536", "expected 0 to 65535"),
        ("--port=-1", "", "expected 0 to 65535"),
        ("--port", "x", "expected 0 to 65535"),
        ("--tokens-per-second=-1", "", "expected a number from 0 on"),
        ("--tokens-per-second", "nan", "expected a number from 0 on"),
        ("--ttft-ms", "inf", "expected a number from 0 on"),
        ("--drain-s", "soon", "expected a number from 0 on"),
        ("--max-model-len", "0", "expected a whole number from 1 on"),
    ],
)
def test_numbers_out_of_range_are_wrong_usage(
    option: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([option, value] if value else [option])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_port_that_cannot_be_opened_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as theirs:
        port = theirs.getsockname()[1]
        assert main(["--port", str(port)]) == 1
    assert capsys.readouterr().err == f"ferrule sim: 127.0.0.1:{port}: address already in use\n"
    assert main(["--host", "no-such-host.invalid", "--port", "1"]) == 1
    assert capsys.readouterr().err.startswith("ferrule sim: no-such-host.invalid:1: ")
