"""The doubles against each other: what a test relies on must hold without the proxy."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.doubles.backend import (
    Close,
    Hold,
    Pause,
    Reset,
    ScriptedBackend,
    refusal,
    stream,
    wait_until,
    whole,
)
from tests.doubles.client import Client
from tests.doubles.events import Event, assert_ends_with_error, assert_stream_invariant, read_events
from tests.doubles.fault_proxy import Fault, FaultProxy
from tests.doubles.frames import DONE, TC, Canned, D, U
from tests.doubles.loop_thread import LoopThread

CHAT = "/v1/chat/completions"


@pytest.fixture
def client(backend: ScriptedBackend) -> Client:
    return Client(f"127.0.0.1:{backend.port}", timeout_s=5)


def test_plays_in_order_and_keeps_the_last(backend: ScriptedBackend, client: Client) -> None:
    backend.play(refusal(503), stream(D({"content": "x"}), DONE))
    answers = [client.post(CHAT, {"stream": True}) for _ in range(3)]
    assert [answer.status for answer in answers] == [503, 200, 200]
    assert answers[2].content == D({"content": "x"}) + DONE
    assert [seen.json for seen in backend.requests] == [{"stream": True}] * 3


def test_tells_one_answer_both_ways(backend: ScriptedBackend, client: Client) -> None:
    backend.play(Canned("Hi there", reasoning="hm", calls=[("c1", "F", '{"a":1}')]))
    received = client.post(CHAT, {"stream": True}).content
    assert received.endswith(U(7, 3, 0) + DONE)
    assert TC(0, "c1", "F") in received
    message = client.post(CHAT, {}).json()["choices"][0]["message"]
    assert message["content"] == "Hi there"
    assert message["tool_calls"][0]["function"] == {"name": "F", "arguments": '{"a":1}'}


@pytest.mark.parametrize("end", [Reset(), Close()], ids=["reset", "close"])
def test_breaks_off(backend: ScriptedBackend, client: Client, end: Reset | Close) -> None:
    backend.play(stream(D({"content": "x"}), end))
    with client.open("POST", CHAT, {}) as answer:
        assert answer.read_some() == D({"content": "x"})
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            answer.read()


def test_sees_that_the_client_has_left(backend: ScriptedBackend, client: Client) -> None:
    backend.play(stream(D({"content": "x"}), Hold()))
    with client.open("POST", CHAT, {}) as answer:
        answer.read_some()
        assert not backend.last.closed.is_set()
        answer.reset()
    assert backend.last.closed.wait(2)
    wait_until(lambda: backend.inflight == 0, 2, "the backend to give up")


def test_a_hold_is_released(backend: ScriptedBackend, client: Client) -> None:
    hold = Hold()
    backend.play(stream(D({"content": "x"}), hold, Pause(0.01), DONE))
    with client.open("POST", CHAT, {}) as answer:
        answer.read_some()
        hold.release()
        assert answer.read() == DONE


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/version", "/tokenize"])
def test_probes_answer(backend: ScriptedBackend, client: Client, path: str) -> None:
    assert client.get(path).status == 200
    backend.routes["GET", path] = whole({}, 429)
    assert client.get(path).status == 429


def test_stops_and_comes_back_on_its_port(new_backend: Callable[..., ScriptedBackend]) -> None:
    backend = new_backend()
    client = Client(f"127.0.0.1:{backend.port}", timeout_s=5)
    backend.stop()
    with pytest.raises(ConnectionRefusedError):
        client.get("/health")
    backend.start()
    assert client.get("/health").status == 200


# The network that breaks


@pytest.fixture
def network(loop_thread: LoopThread, backend: ScriptedBackend) -> Iterator[FaultProxy]:
    network = FaultProxy(loop_thread, backend.port)
    yield network
    network.refuse()


@pytest.mark.parametrize(
    "fault", [Fault(), Fault("one_byte"), Fault("latency", 0.05)], ids=lambda fault: fault.name
)
def test_the_network_keeps_every_byte(network: FaultProxy, fault: Fault) -> None:
    network.fault = fault
    answer = Client(f"127.0.0.1:{network.port}", timeout_s=5).post(CHAT, {"stream": True})
    assert answer.content == b"".join(Canned("Hello.").frames())


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        (Fault("hang"), TimeoutError),
        (Fault("head_then_silence"), TimeoutError),
        (Fault("garbage"), http.client.BadStatusLine),
        (Fault("reset_after", 400), (http.client.IncompleteRead, ConnectionResetError)),
        (Fault("cut_after", 400), http.client.IncompleteRead),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_network_breaks(network: FaultProxy, fault: Fault, raised: Any) -> None:
    network.fault = fault
    with pytest.raises(raised):
        Client(f"127.0.0.1:{network.port}", timeout_s=0.5).post(CHAT, {"stream": True})


def test_the_network_is_busy_then_dead_then_back(network: FaultProxy) -> None:
    client = Client(f"127.0.0.1:{network.port}", timeout_s=5)
    network.fault = Fault("busy")
    assert client.get("/health").status == 503
    network.refuse()
    with pytest.raises(ConnectionRefusedError):
        client.get("/health")
    network.restore()
    assert client.get("/health").status == 200


# The invariant's checker must find what is wrong

_MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [],
    "stop_reason": None,
}
_START = (
    "message_start",
    {"message": {**_MESSAGE, "usage": {"input_tokens": 0, "output_tokens": 0}}},
)
_TEXT = ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}})
_HI = ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "Hi"}})
_STOP = ("content_block_stop", {"index": 0})
_DELTA = (
    "message_delta",
    {"delta": {"stop_reason": "end_turn"}, "usage": {"input_tokens": 1, "output_tokens": 1}},
)
_END = ("message_stop", {})
_ERROR = ("error", {"error": {"type": "api_error", "message": "boom"}})
_GOOD = [_START, _TEXT, _HI, _STOP, _DELTA, _END]


def _events(*pairs: tuple[str, dict[str, Any]]) -> list[Event]:
    return [Event(name, {"type": name, **data}) for name, data in pairs]


def test_a_good_stream_folds_to_its_message() -> None:
    message = assert_stream_invariant(_events(*_GOOD))
    assert message["content"] == [{"type": "text", "text": "Hi"}]
    assert message["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    "bad",
    [
        [],
        _GOOD[1:],
        _GOOD[:-1],
        [_START, *_GOOD],
        [_START, _TEXT, _HI, _DELTA, _END],
        [_START, _HI, _STOP, _DELTA, _END],
        [_START, _TEXT, _STOP, _DELTA, _END],
        [_START, _TEXT, _HI, _STOP, _TEXT, _HI, _STOP, _DELTA, _END],
        [*_GOOD[:-1], _DELTA, _END],
        [*_GOOD, ("ping", {})],
        [*_GOOD, _END],
        [_START, _TEXT, _HI, _STOP, _ERROR],
        [
            _START,
            _TEXT,
            _HI,
            _STOP,
            ("message_delta", {"delta": {"stop_reason": None}, "usage": {}}),
            _END,
        ],
    ],
)
def test_a_bad_stream_is_found_out(bad: list[tuple[str, dict[str, Any]]]) -> None:
    with pytest.raises(AssertionError):
        assert_stream_invariant(_events(*bad))


def test_a_stream_that_failed_is_told_from_one_that_did_not() -> None:
    assert (
        assert_ends_with_error(_events(_START, _TEXT, _HI, _ERROR), "api_error")["content"][0][
            "text"
        ]
        == "Hi"
    )
    with pytest.raises(AssertionError):
        assert_ends_with_error(_events(*_GOOD))


@pytest.mark.parametrize(
    "raw",
    [
        b'data: {"type":"ping"}\n\n',
        b'event: a\ndata: {"type":"b"}\n\n',
        b'event: a\ndata: {"type":"a"}\n',
    ],
)
def test_events_are_read_strictly(raw: bytes) -> None:
    with pytest.raises(AssertionError):
        read_events(raw)
