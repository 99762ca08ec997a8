"""Load of the unkind sort: floods, firehoses, thousands of aborts, long prompts to count; and
everybody else goes on undisturbed."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator

import aiohttp
import pytest
from tests.doubles.backend import ScriptedBackend, stream
from tests.doubles.events import assert_stream_invariant, read_events, story_of
from tests.doubles.frames import DONE, Canned, D
from tests.doubles.loop_thread import LoopThread
from tests.doubles.proxy import REQ, Ferrule, config_for

from ferrule import sim

NORMAL_STREAMS = 50
TOKENS = 40
RATE = 20.0
ABORTS = 2000


@pytest.fixture(scope="module")
def steady_url(loop_thread: LoopThread) -> Iterator[str]:
    """A simulated vLLM that makes twenty tokens a second."""
    settings = sim.SimSettings(port=0, model="m", scripted=True, tokens_per_second=RATE, ttft_ms=0)
    runner, url = loop_thread.run(sim.listen(settings))
    yield url
    loop_thread.run(runner.cleanup())


@pytest.fixture(scope="module")
def steady(steady_url: str, new_proxy: Callable[..., Ferrule]) -> Ferrule:
    return new_proxy(config_for(steady_url, pool={"slots": 10_000, "max_inflight": 10_000}))


async def gaps_of_stream(client: aiohttp.ClientSession, n: int) -> list[float]:
    """Seconds between the reads of one stream of 40 tokens."""
    body = REQ(
        stream=True,
        max_tokens=TOKENS,
        messages=[{"role": "user", "content": f"[[tokens:{TOKENS}]] {n}"}],
    )
    moments = []
    async with client.post("/v1/messages", json=body) as answer:
        assert answer.status == 200
        async for data, _ in answer.content.iter_chunks():
            moments += [time.monotonic()] * (b"text_delta" in data)
            last = data
    assert b"message_stop" in last
    return [later - earlier for earlier, later in itertools.pairwise(moments)]


async def lateness(proxy: Ferrule) -> list[float]:
    """How much later than the beat the tokens of fifty streams came, in order of size."""
    async with aiohttp.ClientSession(
        f"http://{proxy.listen}", connector=aiohttp.TCPConnector(limit=0)
    ) as client:
        streams = await asyncio.gather(*(gaps_of_stream(client, n) for n in range(NORMAL_STREAMS)))
    return sorted(max(0.0, gap - 1 / RATE) for gaps in streams for gap in gaps)


async def beside(proxy: Ferrule, disturb: Callable[[], object]) -> tuple[float, float]:
    """The 99th percentile of the lateness without and with a disturbance."""
    alone = await lateness(proxy)
    work = asyncio.create_task(asyncio.to_thread(disturb))
    disturbed = await lateness(proxy)
    await work
    return alone[int(len(alone) * 0.99)], disturbed[int(len(disturbed) * 0.99)]


async def test_counting_a_long_prompt_beside_streams(steady: Ferrule) -> None:
    words = "the quick brown fox jumps over the lazy dog " * 9000

    def count() -> None:
        for _ in range(4):
            answer = steady.ask(
                "/v1/messages/count_tokens", messages=[{"role": "user", "content": words}]
            )
            assert answer.status == 200

    alone, disturbed = await beside(steady, count)
    assert disturbed - alone < 0.05, (alone, disturbed)


async def test_a_firehose_beside_streams(
    steady_url: str, backend: ScriptedBackend, new_proxy: Callable[..., Ferrule]
) -> None:
    hose = [D({"content": "water " * 50})] * 20_000
    backend.play(stream(*hose, D({}, "stop"), DONE))
    config = config_for(steady_url)
    config["pools"]["hose"] = {"backends": [backend.url], "engine": "vllm"}
    config["models"].append({"id": "hose", "pool": "hose", "upstream": "m"})
    proxy = new_proxy(config)

    def drink() -> None:
        assert proxy.stream(model="hose").raw.endswith(b'"message_stop"}\n\n')

    alone, disturbed = await beside(proxy, drink)
    assert disturbed - alone < 0.1, (alone, disturbed)


async def test_aborts_leave_nothing_behind(steady: Ferrule) -> None:
    await abort_many(steady, 200)
    steady.wait_for_metric("streams_active", 0)
    memory = steady.memory_kb()
    await abort_many(steady, ABORTS)
    steady.wait_for_metric("streams_active", 0)
    steady.wait_for_metric("backend_inflight", 0)
    assert steady.memory_kb() - memory < 12_000
    assert steady.metric("backend_healthy") == 1
    assert steady.metric("stream_end_total", reason="client_gone") >= ABORTS
    assert steady.ask(messages=[{"role": "user", "content": "[[tokens:2]]"}]).status == 200


async def abort_many(proxy: Ferrule, count: int) -> None:
    host, port = proxy.listen.split(":")
    body = b'{"model":"m","max_tokens":40,"stream":true,"messages":[{"role":"user","content":"x"}]}'
    request = (
        b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    )
    room = asyncio.Semaphore(50)

    async def one() -> None:
        async with room:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request)
            head = await reader.read(12)
            assert head == b"HTTP/1.1 200"
            writer.transport.abort()

    await asyncio.gather(*(one() for _ in range(count)))


def test_q01_memory_is_flat_over_many_requests(proxy: Ferrule, backend: ScriptedBackend) -> None:
    backend.play(Canned("x " * 50))
    for _ in range(200):
        proxy.ask(stream=True)
    before = proxy.memory_kb()
    for _ in range(600):
        proxy.ask(stream=True)
    assert proxy.memory_kb() - before < 6_000


def test_a_slow_reader_is_served_to_the_end(proxy: Ferrule, backend: ScriptedBackend) -> None:
    part = "y" * 1000
    backend.play(stream(*([D({"content": part})] * 3000), D({}, "stop"), DONE))
    before = proxy.memory_kb()
    with proxy.open_stream() as answer:
        backend.wait_for_requests(1)
        time.sleep(1.0)  # the reader's own pace, while the backend pushes
        assert proxy.memory_kb() - before < 20_000
        events = read_events(answer.read())
    assert story_of(assert_stream_invariant(events)) == [("text", part * 3000)]
