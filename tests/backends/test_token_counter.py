"""Tokens by the gateway's own tokenizer and by the engine's; documents within their time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from time import monotonic

import msgspec
import pytest
from tests.app_state import config_of, running_pool, until
from tests.doubles.backend import Play, Reply, ScriptedBackend, whole
from tests.doubles.proxy import REQ

from ferrule.backends import token_counter as counting
from ferrule.backends.client import BackendResponse
from ferrule.backends.token_counter import THREAD_NICENESS, TokenCounter, parse_token_count
from ferrule.catalog import Catalog
from ferrule.config import Config
from ferrule.engines import PROFILES
from ferrule.messages import MessagesRequest, Policy, decode


@pytest.fixture
def counter() -> Iterator[TokenCounter]:
    made = TokenCounter()
    yield made
    made.close()


def request(text: str = "hello world") -> MessagesRequest:
    return decode(msgspec.json.encode(REQ(messages=[{"role": "user", "content": text}])))


def policy(config: Config) -> Policy:
    served = Catalog(config, {}).find("m")
    assert served is not None
    return served.policy


async def test_the_estimate_is_the_tokenizers(counter: TokenCounter) -> None:
    assert await counter.estimate("o200k_base", request()) == 2
    assert await counter.estimate("cl100k_base", request()) == 2


async def test_it_counts_off_the_loop_and_below_it(
    counter: TokenCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[tuple[int, int]] = []

    def note(name: str, body: MessagesRequest) -> int:
        identity = threading.get_native_id()
        threads.append((identity, os.getpriority(os.PRIO_PROCESS, identity)))
        return 1

    monkeypatch.setattr(counting, "_count", note)
    await counter.estimate("o200k_base", request())
    ((thread, niceness),) = threads
    assert thread != threading.get_native_id()
    assert niceness >= THREAD_NICENESS


@pytest.mark.parametrize(
    ("play", "tokens"),
    [
        (whole({"count": 12, "max_model_len": 5, "tokens": []}), 12),
        (whole({"input_tokens": 13}), 13),
        (whole({"count": 0}), 0),
        (whole({}), None),
        (whole({"count": "many"}), None),
        (whole(b"<html>"), None),
        (whole({"count": 12}, 500), None),
        (Reply((b"{",), framing="close"), None),
    ],
    ids=["vllm", "llamacpp", "zero", "none", "text", "html", "500", "cut"],
)
async def test_the_engines_count(
    counter: TokenCounter, backend: ScriptedBackend, play: Play, tokens: int | None
) -> None:
    backend.routes["POST", "/tokenize"] = play
    config = config_of(backend.url)
    async with running_pool(config) as pool:
        assert await counter.ask_engine(pool, request(), policy(config), b"key") == tokens


async def test_an_engine_without_a_route_and_a_pool_without_backends_are_not_asked(
    counter: TokenCounter, backend: ScriptedBackend
) -> None:
    config = config_of(backend.url)
    async with running_pool(config) as pool:
        silent = msgspec.structs.replace(
            policy(config), engine=msgspec.structs.replace(PROFILES["vllm"], tokenize_route=None)
        )
        assert await counter.ask_engine(pool, request(), silent, None) is None
        pool.balancer.update([], monotonic())
        assert await counter.ask_engine(pool, request(), policy(config), None) is None
        assert not [seen for seen in backend.others if seen.target == "/tokenize"]


async def test_a_full_backend_is_asked_all_the_same(
    counter: TokenCounter, backend: ScriptedBackend
) -> None:
    config = config_of(backend.url, pool={"max_inflight": 1, "slots": 1})
    async with running_pool(config) as pool:
        await until(lambda: pool.is_ready(monotonic()))
        choice = pool.balancer.select(None, frozenset(), monotonic())
        assert choice is not None
        pool.balancer.start(choice, None, monotonic())
        assert (
            await counter.ask_engine(pool, request(), policy(config), None) == backend.token_count
        )


async def test_documents_that_take_too_long_are_given_up(
    counter: TokenCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(counting, "DOCUMENT_TIMEOUT_S", 0.05)
    monkeypatch.setattr(counting.documents, "read", lambda pending: gate.wait(5))
    try:
        assert await counter.documents([]) == {}
    finally:
        gate.set()


def test_no_answer_is_no_count() -> None:
    assert parse_token_count(BackendResponse(0, error="refused")) is None
