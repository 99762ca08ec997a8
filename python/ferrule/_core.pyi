"""The Rust half: streams replies, counts tokens, ranks backends. Nothing here blocks the loop or
holds the GIL for long.

All times are seconds; points in time are those of `time.monotonic()`. A peer that sends nonsense
never raises: it ends as a fault in an `Outcome`, or as the `end` of an `ResponseStream`.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, final

__all__ = [
    "Histogram",
    "Outcome",
    "Poller",
    "ResponseOptions",
    "ResponseStream",
    "Tokenizer",
    "Translator",
    "UpstreamConnection",
    "backend_error",
    "fold",
    "rank",
    "translate_reply",
]

# Replies without I/O

@final
class ResponseOptions:
    """How one reply is to be told to its client: the response-side knobs and what the request
    fixed."""

    def __new__(
        cls,
        *,
        message_id: str,
        model: str,
        reasoning: str = "thinking",
        display_omitted: bool = False,
        signature_prefix: str = "ferrule1.",
        stop_reasons: Sequence[str] | None = None,
        report_stop_sequence: bool = True,
        close_block_on_error: bool = True,
        tool_names: Sequence[tuple[str, str]] = ...,
        single_tool_call: bool = False,
        split_think: bool = False,
        max_tokens: int | None = None,
        context_window: int | None = None,
        discard_output: bool = False,
    ) -> ResponseOptions:
        """`reasoning`: `thinking` (blocks), `text` (folded into the text block) or `drop`; anything
        else raises ValueError. `stop_reasons`: those the dialect knows, all others become
        `end_turn`; None: all. `tool_names`: (name upstream, name the client knows) where they
        differ. `single_tool_call`: only the first call is told. `split_think`: `</think>` in
        content ends the reasoning. `max_tokens`, `context_window`: tell
        `model_context_window_exceeded` from `max_tokens`. `discard_output`: `max_tokens: 0`; no
        content is told and the stop reason is `max_tokens`."""

@final
class Outcome:
    """What a reply came to. Counts are tokens; `input_tokens` excludes `cache_read_tokens`."""

    @property
    def input_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def cache_read_tokens(self) -> int: ...
    @property
    def stop_reason(self) -> str | None:
        """A stop reason of the Messages API; None while there is none."""
    @property
    def has_usage(self) -> bool:
        """False: the backend sent none, and `output_tokens` is the number of pieces that were
        told."""
    @property
    def fault_kind(self) -> str | None:
        """None, or an error type of the Messages API (`api_error`, `overloaded_error`, ...)."""
    @property
    def fault_message(self) -> str | None:
        """For the client: holds no address and nothing of the backend's inside."""
    @property
    def fault_status(self) -> int | None:
        """The HTTP status the failure has when nothing was sent yet."""

@final
class Translator:
    """A streamed chat completion into Messages events, without I/O: the same machine that an
    ResponseStream runs."""

    def __new__(cls, options: ResponseOptions) -> Translator: ...
    def feed(self, data: bytes) -> bytes:
        """Bytes of the backend's body, cut anywhere → bytes for the client. Never raises for what a
        peer sent."""
    def finish(self) -> bytes:
        """The body has ended."""
    @property
    def outcome(self) -> Outcome: ...

def fold(options: ResponseOptions, body: bytes) -> tuple[bytes, Outcome]:
    """A streamed chat completion, whole → the Messages body that `stream: false` gives (empty after
    a fault)."""

def translate_reply(options: ResponseOptions, body: bytes) -> tuple[bytes, Outcome]:
    """A whole chat completion (`chat.completion`) → a whole message (empty after a fault)."""

def backend_error(status: int, body: bytes) -> tuple[int, str, str, bool]:
    """A backend's answer other than 200 → (status for the client, error type, message, whether the
    backend is shutting down)."""

# Replies with I/O

@final
class Poller:
    """Reads the sockets of all backends of one loop. The loop watches it as one descriptor:
    `loop.add_reader(pump.fileno(), pump.run)`."""

    def __new__(cls) -> Poller:
        """Raises OSError when the process has no descriptor left."""
    def fileno(self) -> int:
        """Readable when any backend has sent something; belongs to the pump, which closes it."""
    def run(self) -> None:
        """Reads whatever is readable, once each, and lets each relay tell it."""

@final
class UpstreamConnection:
    """The asyncio protocol of one backend connection, one request after the other. With a pump its
    socket is read there, without one (TLS) the transport delivers."""

    def __new__(cls, pump: Poller | None = None) -> UpstreamConnection: ...
    def start(
        self, exchange: ResponseStream, waiter: asyncio.Future[None], pieces: Iterable[bytes]
    ) -> None:
        """Sends a request, given in pieces, head and all, and tells its reply to `exchange`.
        `waiter` gets its result when that is over, also when the connection is lost already; how it
        ended is in `exchange.end`."""
    def close(self) -> None:
        """At once; what was not sent yet is dropped."""
    @property
    def is_reusable(self) -> bool:
        """Open, no reply under way and the last one's framing read to its end."""
    @property
    def is_open(self) -> bool:
        """Open, whether or not the end of the last reply's framing is still to come."""
    @property
    def idle_since(self) -> float: ...
    def connection_made(self, transport: asyncio.Transport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool: ...
    def connection_lost(self, exception: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...

@final
class ResponseStream:
    """A reply on its way from a backend to a client. It outlives the backend connection: a retry or
    a continuation goes on with it."""

    def __new__(
        cls,
        *,
        telling: str,
        options: ResponseOptions | None = None,
        model_json: str = "",
        hide_usage: bool = False,
        transport: asyncio.Transport | None = None,
        descriptor: int | None = None,
        is_chunked: bool = True,
        budget_tokens: int | None = None,
        per_token: Histogram | None = None,
        ping_after_s: float = 10.0,
        first_event_s: float = 600.0,
        idle_s: float = 120.0,
        total_s: float = 3600.0,
    ) -> ResponseStream:
        """`telling`: `events` (Messages events, streamed) or `folded` (streamed by the backend, a
        whole message for the client), both with `options`; `chat` (chat completion chunks passed
        on) or `whole` (the body is collected). Anything else raises ValueError. `model_json`,
        `hide_usage`: for `chat`, the model's name as a JSON string, and whether the usage chunk is
        kept back. `transport`, `descriptor`: the client's, where the reply is streamed;
        `is_chunked`: in chunked coding. `budget_tokens`: reasoning past it ends the exchange as
        `budget`. `per_token` takes the times between tokens. `first_event_s`, `idle_s` and pings
        are for streams; `total_s` holds from now on, over all attempts."""
    def on_first_event(self, callback: Callable[[], object]) -> None:
        """`callback` is called once, when the first event comes. A later one takes its place."""
    def set_head(self, head: bytes) -> None:
        """The head that goes before the first byte; ignored once that was sent."""
    def sweep(self, now: float) -> None:
        """Pings and deadlines; to be called once a second."""
    def fail(self, kind: str, message: str) -> bool:
        """Ends with an error of ours, as far as the client has begun to get an answer. True: it was
        told, or the reply was over."""
    def abort(self) -> None:
        """Cuts the backend, when the client has gone or nobody waits any more."""
    def begin_continuation(self) -> None:
        """Whatever comes now is of a second answer, which goes on where the thinking budget ended
        the first; also when that takes more than one attempt."""
    def client_paused(self) -> None:
        """The client's transport holds back too much: the backend is not read until that is
        gone."""
    def client_resumed(self) -> None: ...
    def client_lost(self) -> None:
        """The client's connection is lost, and its socket about to be closed: nothing is written to
        it any more."""
    def take_body(self) -> bytes:
        """The whole message of a `folded` reply (told once; read the outcome first), or the body
        that was collected."""
    @property
    def end(
        self,
    ) -> (
        Literal[
            "complete", "collected", "broken", "untouched", "budget", "timeout", "failed", "aborted"
        ]
        | None
    ):
        """How the last attempt ended; None: it has not. collected: the body is there, whatever its
        status. untouched: the backend closed before it said anything. budget: `begin_continuation`
        is next. failed: by `fail`. aborted: by `abort`."""
    @property
    def is_committed(self) -> bool:
        """The client has got the head, so nothing can have a status any more."""
    @property
    def has_started(self) -> bool:
        """The first event has come: no retry from here on."""
    @property
    def status(self) -> int:
        """The backend's; 0 before its head has come."""
    @property
    def retry_after(self) -> str | None:
        """The backend's header of that name."""
    @property
    def fault(self) -> str:
        """What was wrong with a `broken` reply."""
    @property
    def outcome(self) -> Outcome: ...
    @property
    def reasoning_text(self) -> str:
        """The reasoning so far, where there is a budget."""
    @property
    def sent_at(self) -> float:
        """When the last attempt went out; 0 before."""
    @property
    def first_event_at(self) -> float:
        """0 before it has come."""

# Numbers

@final
class Histogram:
    """Counts per bucket, filled by Rust and Python alike. `edges`: upper bounds in seconds,
    ascending."""

    def __new__(cls, edges: Sequence[float]) -> Histogram: ...
    def observe(self, seconds: float) -> None: ...
    def snapshot(self) -> tuple[list[int], float]:
        """Counts per bucket, not cumulative, the last one beyond the last edge; and the sum in
        seconds."""

@final
class Tokenizer:
    """A tokenizer of the gateway's own: `o200k_base`, `cl100k_base`, or the path of a
    `tokenizer.json`."""

    def __new__(cls, name: str) -> Tokenizer:
        """Raises ValueError when the name is unknown or the file cannot be read."""
    def count(self, texts: Sequence[str]) -> int:
        """Tokens in all texts together. Releases the GIL; call it off the loop for long texts."""

def rank(key: bytes, backends: Sequence[tuple[str, float]]) -> list[int]:
    """The indices of `backends` (name, weight) in the order in which the session `key` prefers them
    (weighted rendezvous hashing)."""
