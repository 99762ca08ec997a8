"""Enough of everything to give every panel something to show: sessions, streams, faults, refusals,
counts. For half a minute at most."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from tests.doubles.client import Client

KEY, LIMITED_KEY = "test-key-of-the-load", "test-key-with-a-limit"

Ask = Callable[[Client, int], Any]


def headers(key: str = KEY, **more: str) -> dict[str, str]:
    return {"x-api-key": key, "anthropic-version": "2023-06-01", **more}


def body(text: str, **more: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "max_tokens": 64,
        "stream": True,
        "messages": [{"role": "user", "content": text}],
        **more,
    }


def _messages(text: Callable[[int], str], **more: Any) -> Ask:
    return lambda client, turn: client.post("/v1/messages", body(text(turn), **more), headers())


def _leave_early(client: Client, turn: int) -> None:
    with client.open(
        "POST", "/v1/messages", body(f"leaving {turn} [[tokens:400]]"), headers()
    ) as answer:
        answer.read_until(b"content_block_delta")
        answer.reset()


KINDS: tuple[Ask, ...] = (
    # Sessions that come back, so that there is a cache to hit and a home to be at.
    _messages(lambda turn: f"session {turn % 3}: " + "the same opening again and again. " * 30),
    _messages(lambda turn: f"session {turn % 50}: hello [[tokens:40]]"),
    # One hot session over its home's slots.
    *[_messages(lambda _turn: "the hot session [[tokens:60]]") for _ in range(4)],
    # No opening, no session: keyless.
    lambda client, _turn: client.post(
        "/v1/messages", body("", messages=[{"role": "user", "content": [IMAGE]}]), headers()
    ),
    # A parameter that the dialect drops, a whole reply, the other surface, a count, a list.
    _messages(lambda turn: f"dropped {turn}", stream=False, top_p=0.5),
    lambda client, turn: client.post(
        "/v1/chat/completions", {**body(f"chat {turn}"), "max_tokens": 8}, headers()
    ),
    lambda client, turn: client.post(
        "/v1/messages/count_tokens",
        {"model": "m", "messages": body(f"count {turn}")["messages"]},
        headers(),
    ),
    lambda client, _turn: client.get("/v1/models", headers()),
    # What goes wrong: at the backend before anything was told, in the middle of a stream, by the
    # client's leaving.
    _messages(lambda turn: f"refused {turn} [[fault:503]]"),
    _messages(lambda turn: f"broken {turn} [[fault:cut-mid-chunk]]"),
    _leave_early,
    # Keys: none that is known, and one over its limit.
    lambda client, _turn: client.get("/v1/models", headers("nobody")),
    lambda client, turn: client.post("/v1/messages", body(f"limited {turn}"), headers(LIMITED_KEY)),
)

IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
}


@contextmanager
def load(address: str) -> Iterator[None]:
    """One thread for each kind of request, each as fast as answers come, until the block is
    left."""
    over = threading.Event()
    problems: list[BaseException] = []

    def run(ask: Ask) -> None:
        client = Client(address)
        for turn in count():
            if over.is_set():
                return
            try:
                answer = ask(client, turn)
                assert answer is None or answer.status != 500, answer.text
            except OSError:
                time.sleep(0.05)  # refused for the moment; the point is what the metrics say of it
            except BaseException as problem:
                problems.append(problem)
                return

    threads = [threading.Thread(target=run, args=(ask,)) for ask in KINDS]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
        assert not problems, problems
