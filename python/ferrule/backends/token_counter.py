"""Counts tokens and reads PDFs off the event loop, on a few low-priority threads. Rust counts with
the GIL released.

The engine's own count is fetched here too, because it falls back to the estimate.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from time import monotonic

import msgspec

from ferrule._core import Tokenizer
from ferrule.backends.client import BackendResponse
from ferrule.backends.pool import BackendPool
from ferrule.messages import MessagesRequest, Policy, documents
from ferrule.messages.count import text_of, tokenize_body
from ferrule.routing.backend import Backend

log = logging.getLogger(__name__)

THREADS = 2
THREAD_NICENESS = 10
"""Lower priority than the event loop: on a busy machine a count may wait, streams may not."""
ENGINE_TIMEOUT_S = 5.0
DOCUMENT_TIMEOUT_S = 20.0

ENGINE_ROUTES = {
    "vllm": "/tokenize",
    "sglang": "/tokenize",
    "llamacpp": "/v1/chat/completions/input_tokens",
}


class _CountResponse(msgspec.Struct):
    """`count` from vLLM and SGLang, `input_tokens` from llama.cpp."""

    count: int | None = None
    input_tokens: int | None = None


@lru_cache(maxsize=16)
def tokenizer(name: str) -> Tokenizer:
    return Tokenizer(name)


class TokenCounter:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "ferrule-count", _lower_priority)

    async def estimate(self, tokenizer_name: str, request: MessagesRequest) -> int:
        """Tokens of system, tools and messages by the gateway's own tokenizer."""
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, _count, tokenizer_name, request
        )

    async def ask_engine(
        self, pool: BackendPool, request: MessagesRequest, policy: Policy, key: bytes | None
    ) -> int | None:
        """The engine's own count in tokens; None if it gives none. Neither waits in the queue nor
        takes a slot."""
        route = ENGINE_ROUTES.get(policy.engine.tokenize_route or "")
        backend = _backend_for(pool, key)
        if route is None or backend is None:
            return None
        answer = await pool.client(backend).post(
            route, tokenize_body(request, policy), ENGINE_TIMEOUT_S
        )
        tokens = parse_token_count(answer)
        if tokens is None:
            log.info(
                "backend %s did not count tokens (status %d); estimating",
                backend.name,
                answer.status,
            )
        return tokens

    async def documents(self, pending: Sequence[documents.Pending]) -> Mapping[str, str]:
        """Texts of PDFs by their path; empty if reading them takes longer than
        `DOCUMENT_TIMEOUT_S`."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(DOCUMENT_TIMEOUT_S):
                return await loop.run_in_executor(self._threads, documents.read, pending)
        except TimeoutError:
            log.warning(
                "reading %d documents took over %.0f s and was given up",
                len(pending),
                DOCUMENT_TIMEOUT_S,
            )
            return {}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def parse_token_count(answer: BackendResponse) -> int | None:
    """The number of tokens in the response of an engine's counting route."""
    try:
        said = msgspec.json.decode(answer.body_if_ok or b"", type=_CountResponse)
    except msgspec.MsgspecError:
        return None
    return said.count if said.count is not None else said.input_tokens


def _lower_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), THREAD_NICENESS)


def _count(name: str, request: MessagesRequest) -> int:
    return tokenizer(name).count(text_of(request))


def _backend_for(pool: BackendPool, key: bytes | None) -> Backend | None:
    """The session's backend, even if it is full."""
    choice = pool.balancer.select(key, frozenset(), monotonic())
    if choice is not None:
        return choice.backend
    return next((backend for backend in pool.balancer.backends if backend.is_usable), None)
