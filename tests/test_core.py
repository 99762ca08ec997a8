"""The extension as Python sees it: what needs no socket, and a connection between two real ones."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import pytest
from tests.doubles.response_policy import response_policy

from ferrule._core import (
    Histogram,
    Poller,
    ResponseEnd,
    ResponseOptions,
    ResponseSpec,
    ResponseStream,
    StreamDeadlines,
    Tokenizer,
    Translator,
    UpstreamConnection,
    backend_error,
    fold,
    rank,
    translate_reply,
)

POLICY = response_policy()
OPTIONS = ResponseOptions(POLICY, message_id="msg_1", model="m", reasoning="thinking")
DEADLINES = StreamDeadlines(ping_after_s=10, first_event_s=60, idle_s=120, total_s=1000)
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
FINISH = (
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'
)
DONE = b"data: [DONE]\n\n"
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\n\r\n"

# Without sockets


def test_a_stream_becomes_events() -> None:
    translator = Translator(OPTIONS)
    received = translator.feed(CHUNK + FINISH + DONE) + translator.finish()
    assert [
        line.split(b": ")[1] for line in received.split(b"\n") if line.startswith(b"event")
    ] == [
        b"message_start",
        b"content_block_start",
        b"content_block_delta",
        b"content_block_stop",
        b"message_delta",
        b"message_stop",
    ]
    outcome = translator.outcome
    assert (
        outcome.input_tokens,
        outcome.output_tokens,
        outcome.stop_reason,
        outcome.has_usage,
    ) == (7, 2, "end_turn", True)
    assert (outcome.fault_kind, outcome.fault_message, outcome.fault_status) == (None, None, None)


def test_folded_and_whole_are_the_same_message() -> None:
    folded, _ = fold(OPTIONS, CHUNK + FINISH + DONE)
    whole, outcome = translate_reply(
        OPTIONS,
        b'{"choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":7,"completion_tokens":2}}',
    )
    assert json.loads(folded) == json.loads(whole)
    assert json.loads(whole)["content"] == [{"type": "text", "text": "hi"}]
    assert outcome.output_tokens == 2


def test_nonsense_is_a_fault_and_not_an_exception() -> None:
    body, outcome = translate_reply(OPTIONS, b"<html>")
    assert body == b""
    assert (outcome.fault_kind, outcome.fault_status) == ("api_error", 502)


def test_options_that_mean_nothing() -> None:
    with pytest.raises(ValueError, match="reasoning"):
        ResponseOptions(POLICY, message_id="msg_1", model="m", reasoning="aloud")
    with pytest.raises(ValueError, match='"tired" is no stop reason'):
        response_policy(stop_reasons=["tired"])


def test_ends_are_values_of_one_type() -> None:
    assert ResponseEnd.COMPLETE == ResponseEnd.COMPLETE != ResponseEnd.BROKEN
    assert {ResponseEnd.COMPLETE: 1}[ResponseEnd.COMPLETE] == 1
    assert ResponseEnd.COMPLETE != "complete"


@pytest.mark.parametrize(
    ("status", "body", "received"),
    [
        (
            400,
            {"error": {"message": "no such thing", "type": "BadRequestError"}},
            (400, "invalid_request_error", "no such thing", False),
        ),
        (
            404,
            {"error": {"message": "no such model", "type": "NotFoundError"}},
            (404, "not_found_error", "no such model", False),
        ),
        (429, {"error": {"message": "busy"}}, (429, "rate_limit_error", "busy", False)),
        (503, {"error": {"message": "busy"}}, (529, "overloaded_error", "busy", False)),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_backend_errors(status: int, body: object, received: tuple[int, str, str, bool]) -> None:
    assert backend_error(status, json.dumps(body).encode()) == received


def test_a_histogram_counts_per_bucket() -> None:
    histogram = Histogram([0.1, 1.0])
    for seconds in (0.1, 0.5, 2.0):
        histogram.observe(seconds)
    counts, total = histogram.snapshot()
    assert counts == [1, 1, 1]
    assert total == pytest.approx(2.6)


def test_tokenizers() -> None:
    tokenizer = Tokenizer("o200k_base")
    assert tokenizer.count(["hello world"]) == 2
    assert tokenizer.count(["hello", " world"]) == 2
    assert tokenizer.count([]) == 0
    with pytest.raises(ValueError, match="no-such-name"):
        Tokenizer("no-such-name")


def test_rank_orders_and_removing_one_moves_no_other() -> None:
    backends = [("a", 1.0), ("b", 1.0), ("c", 1.0)]
    order = rank(b"session", backends)
    assert sorted(order) == [0, 1, 2]
    names = [backends[index][0] for index in order]
    left = [backend for backend in backends if backend[0] != names[0]]
    assert [left[index][0] for index in rank(b"session", left)] == names[1:]


# Between two sockets


class Wire:
    """A connection with a backend that the test plays, and a client that the test reads."""

    def __init__(self, poller: Poller | None) -> None:
        self.poller = poller

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        self.transport, self.connection = await loop.create_connection(
            lambda: UpstreamConnection(self.poller), sock=near
        )  # type: ignore[type-var]
        self.backend_reads, self.backend = await asyncio.open_connection(sock=far)
        near, far = socket.socketpair()
        self.client, _ = await loop.create_connection(asyncio.Protocol, sock=near)
        self.client_reads, self.client_end = await asyncio.open_connection(sock=far)

    def stream(
        self, spec: ResponseSpec | None = None, budget_tokens: int | None = None, **settings: object
    ) -> ResponseStream:
        options = ResponseOptions(
            POLICY,
            message_id="msg_1",
            model="m",
            reasoning="thinking",
            budget_tokens=budget_tokens,
        )
        client = {
            "transport": self.client,
            "descriptor": self.client.get_extra_info("socket").fileno(),
            **settings,
        }
        stream = ResponseStream(spec or ResponseSpec.events(options), DEADLINES, **client)  # type: ignore[arg-type]
        stream.set_head(HEAD)
        return stream

    def start(self, stream: ResponseStream) -> asyncio.Future[None]:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.connection.start(stream, waiter, (b"POST / HTTP/1.1\r\n\r\n", b"{}"))
        return waiter

    async def told_until(self, end: bytes) -> bytes:
        return await self.client_reads.readuntil(end)

    async def close(self) -> None:
        self.transport.close()
        self.client.close()
        for writer in (self.backend, self.client_end):
            writer.close()
            await writer.wait_closed()


@pytest.fixture(params=["poller", "transport"])
async def wire(request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    poller = Poller() if request.param == "poller" else None
    if poller is not None:
        asyncio.get_running_loop().add_reader(poller.fileno(), poller.run)
    opened = Wire(poller)
    await opened.open()
    yield opened
    await opened.close()
    if poller is not None:
        asyncio.get_running_loop().remove_reader(poller.fileno())


async def test_a_reply_goes_through_and_the_connection_is_kept(wire: Wire) -> None:
    for _ in range(2):
        stream = wire.stream()
        waiter = wire.start(stream)
        assert await wire.backend_reads.readuntil(b"{}") == b"POST / HTTP/1.1\r\n\r\n{}"
        body = CHUNK + FINISH + DONE
        wire.backend.write(SSE % len(body) + body)
        await waiter
        received = await wire.told_until(b"0\r\n\r\n")
        assert received.startswith(HEAD)
        assert b'"text":"hi"' in received
        assert (stream.end, stream.status, stream.is_committed, stream.has_started) == (
            ResponseEnd.COMPLETE,
            200,
            True,
            True,
        )
        assert 0 < stream.sent_at <= stream.first_event_at
        assert wire.connection.is_reusable


async def test_the_first_event_is_told_once(wire: Wire) -> None:
    heard: list[int] = []
    stream = wire.stream()
    stream.on_first_event(lambda: heard.append(1))
    waiter = wire.start(stream)
    body = CHUNK + CHUNK + FINISH + DONE
    wire.backend.write(SSE % len(body) + CHUNK)
    await wire.told_until(b"text_delta")
    wire.backend.write(body[len(CHUNK) :])
    await waiter
    assert heard == [1]


async def test_an_error_is_collected_and_nothing_told(wire: Wire) -> None:
    stream = wire.stream()
    waiter = wire.start(stream)
    wire.backend.write(b"HTTP/1.1 503 x\r\nretry-after: 3\r\ncontent-length: 2\r\n\r\n{}")
    await waiter
    assert (stream.end, stream.status, stream.retry_after, stream.is_committed) == (
        ResponseEnd.COLLECTED,
        503,
        "3",
        False,
    )
    assert stream.take_body() == b"{}"


async def test_a_backend_that_hangs_up_unasked(wire: Wire) -> None:
    stream = wire.stream()
    waiter = wire.start(stream)
    wire.backend.close()
    await waiter
    assert (stream.end, stream.is_committed) == (ResponseEnd.NO_RESPONSE, False)
    assert not wire.connection.is_open
    late = wire.stream()
    await wire.start(late)
    assert late.end == ResponseEnd.NO_RESPONSE


async def test_a_stream_that_breaks_ends_with_an_error_event(wire: Wire) -> None:
    stream = wire.stream()
    waiter = wire.start(stream)
    wire.backend.write(SSE % 9999 + CHUNK)
    await wire.told_until(b"text_delta")
    wire.backend.close()
    await waiter
    assert stream.end == ResponseEnd.BROKEN
    assert b"event: error" in await wire.told_until(b"0\r\n\r\n")


async def test_abort_cuts_the_backend_and_wakes_nobody(wire: Wire) -> None:
    stream = wire.stream()
    waiter = wire.start(stream)
    await wire.backend_reads.readuntil(b"{}")
    stream.abort()
    assert await wire.backend_reads.read() == b""
    assert stream.end == ResponseEnd.ABORTED
    assert not waiter.done()
    waiter.cancel()


async def test_deadlines_and_pings_are_the_sweeps_business(wire: Wire) -> None:
    stream = wire.stream()
    waiter = wire.start(stream)
    begin = stream.sent_at
    stream.sweep(begin + 5)
    assert not stream.is_committed
    stream.sweep(begin + 11)
    assert b"event: ping" in await wire.told_until(b"\n\n")
    stream.sweep(begin + 61)
    await waiter
    assert stream.end == ResponseEnd.SILENT
    assert b"timeout_error" in await wire.told_until(b"0\r\n\r\n")


async def test_our_own_failure_is_told_where_a_stream_has_begun(wire: Wire) -> None:
    stream = wire.stream()
    waiter = wire.start(stream)
    assert not stream.fail(
        "overloaded_error", "going down"
    )  # nothing told: an answer with a status follows
    await waiter
    assert stream.end == ResponseEnd.FAILED


async def test_a_paused_client_holds_the_backend(wire: Wire) -> None:
    stream = wire.stream()
    waiter = wire.start(stream)
    stream.client_paused()
    body = CHUNK + FINISH + DONE
    wire.backend.write(SSE % len(body) + body)
    for _ in range(20):  # turns of the loop in which it would be read
        await asyncio.sleep(0)
    assert stream.end is None
    assert stream.status == 0
    stream.client_resumed()
    await waiter
    assert stream.end == ResponseEnd.COMPLETE


@pytest.mark.parametrize(
    "rest", [b"", CHUNK + FINISH + DONE, b"data: {\n\n"], ids=["at it", "answered", "broken"]
)
async def test_the_budget_ends_it_and_a_second_answer_goes_on(wire: Wire, rest: bytes) -> None:
    stream = wire.stream(budget_tokens=2)
    waiter = wire.start(stream)
    thought = b'data: {"choices":[{"index":0,"delta":{"reasoning":"hm "}}]}\n\n' * 3 + rest
    wire.backend.write(SSE % (len(thought) if rest else 99999) + thought)
    await waiter
    assert stream.end == ResponseEnd.BUDGET_SPENT
    assert stream.reasoning_text.startswith("hm hm ")
    stream.begin_continuation()
    second = Wire(wire.poller)
    await second.open()
    waiter = second.start(stream)
    body = CHUNK + FINISH + DONE
    second.backend.write(SSE % len(body) + body)
    await waiter
    received = await wire.told_until(b"0\r\n\r\n")
    assert received.count(b"event: message_start") == 1
    assert received.index(b"thinking_delta") < received.index(b"text_delta")
    await second.close()


async def test_folded_and_collected_bodies_need_no_client(wire: Wire) -> None:
    body = CHUNK + FINISH + DONE
    for spec, expected in (
        (ResponseSpec.aggregated(OPTIONS), b'"type":"message"'),
        (ResponseSpec.buffered(), b"data: "),
    ):
        stream = ResponseStream(spec, DEADLINES)
        waiter = wire.start(stream)
        wire.backend.write(SSE % len(body) + body)
        await waiter
        assert expected in stream.take_body()


async def test_chat_chunks_pass_with_the_clients_name_and_without_usage(wire: Wire) -> None:
    stream = wire.stream(ResponseSpec.chat('"mine"', True))
    waiter = wire.start(stream)
    named = b'data: {"model":"theirs","choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
    usage = (
        b'data: {"model":"theirs","choices":[],"usage":{"prompt_tokens":7,'
        b'"completion_tokens":2}}\n\n'
    )
    body = named + usage + DONE
    wire.backend.write(SSE % len(body) + body)
    await waiter
    received = await wire.told_until(b"0\r\n\r\n")
    assert b'"model":"mine"' in received
    assert b"theirs" not in received
    assert b"usage" not in received
    assert stream.outcome.input_tokens == 7


async def test_time_between_tokens_is_observed(wire: Wire) -> None:
    histogram = Histogram([1.0])
    waiter = wire.start(wire.stream(per_token=histogram))
    body = CHUNK * 3 + FINISH + DONE
    wire.backend.write(SSE % len(body) + CHUNK)
    await wire.told_until(b"text_delta")
    wire.backend.write(body[len(CHUNK) :])
    await waiter
    assert histogram.snapshot()[0] == [2, 0]


async def test_a_lost_client_is_written_to_no_more(wire: Wire) -> None:
    stream = wire.stream()
    waiter = wire.start(stream)
    stream.client_lost()
    wire.client.close()
    body = CHUNK + FINISH + DONE
    wire.backend.write(SSE % len(body) + body)
    await waiter
    assert stream.end == ResponseEnd.COMPLETE


class Gone:
    """A client's transport of which nothing is left: uvloop's raises when it is written to."""

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        raise RuntimeError("the handle is closed")


async def test_what_comes_for_a_client_that_is_gone_raises_nowhere(wire: Wire) -> None:
    stream = wire.stream(transport=Gone(), descriptor=None)
    waiter = wire.start(stream)
    stream.client_lost()
    body = CHUNK + FINISH + DONE
    wire.backend.write(SSE % len(body) + body)
    await waiter
    assert stream.end == ResponseEnd.COMPLETE


async def test_a_write_that_fails_leaves_nobody_waiting(wire: Wire) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: complaints.append(context["exception"])
    )
    waiter = wire.start(wire.stream(transport=Gone(), descriptor=None))
    body = CHUNK + FINISH + DONE
    wire.backend.write(SSE % len(body) + body)
    await waiter
    assert [type(complaint) for complaint in complaints] == [RuntimeError]


async def test_an_answer_before_the_request_was_read_leaves_no_rest_of_it_behind(
    wire: Wire,
) -> None:
    stream = wire.stream(ResponseSpec.buffered())
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    wire.backend_reads._transport.pause_reading()  # type: ignore[attr-defined]
    wire.connection.start(stream, waiter, (b"x" * (16 << 20),))
    assert wire.transport.get_write_buffer_size() > 0
    wire.backend.write(b"HTTP/1.1 413 x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")
    await waiter
    assert stream.status == 413
    assert wire.transport.get_write_buffer_size() == 0


@pytest.mark.parametrize(
    "reply", [b"", b"HTTP/1.1 503 x\r\ncontent-length: 0\r\n\r\n"], ids=["untouched", "refused"]
)
async def test_a_continuation_goes_on_after_an_attempt_that_failed(
    wire: Wire, reply: bytes
) -> None:
    stream = wire.stream(budget_tokens=1)
    waiter = wire.start(stream)
    thought = b'data: {"choices":[{"index":0,"delta":{"reasoning":"hm "}}]}\n\n'
    wire.backend.write(SSE % 99999 + thought * 2)
    await waiter
    stream.begin_continuation()
    for answer in (reply, SSE % len(CHUNK + FINISH + DONE) + CHUNK + FINISH + DONE):
        attempt = Wire(wire.poller)
        await attempt.open()
        waiter = attempt.start(stream)
        attempt.backend.write(answer)
        attempt.backend.write_eof()
        await waiter
        await attempt.close()
    assert stream.end == ResponseEnd.COMPLETE
    received = await wire.told_until(b"0\r\n\r\n")
    assert received.count(b"event: message_start") == 1
    assert received.index(b"thinking_delta") < received.index(b"text_delta")
