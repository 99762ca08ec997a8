"""The Rust half: streams responses, counts tokens, ranks backends. Nothing here blocks the loop or
holds the GIL for long.

All times are seconds; points in time are those of `time.monotonic()`. A peer that sends nonsense
never raises: it ends as a fault in an `Outcome`, or as the `end` of a `ResponseStream`.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import final

__all__ = [
    "Histogram",
    "Outcome",
    "Poller",
    "ResponseEnd",
    "ResponseOptions",
    "ResponsePolicy",
    "ResponseSpec",
    "ResponseStream",
    "StreamDeadlines",
    "Tokenizer",
    "Translator",
    "UpstreamConnection",
    "backend_error",
    "fold",
    "rank",
    "translate_reply",
]

# Responses without I/O

@final
class ResponsePolicy:
    """What is the same for all responses of a model. Made once."""

    def __new__(
        cls,
        *,
        signature_prefix: str,
        stop_reasons: Sequence[str] | None = None,
        report_stop_sequence: bool = True,
        close_block_on_error: bool = True,
        split_think: bool = False,
        context_window: int | None = None,
    ) -> ResponsePolicy:
        """`signature_prefix`: in front of the reasoning in a thinking block's signature.
        `stop_reasons`: those the dialect has, all others become `end_turn`; None: all. Raises
        ValueError for one that does not exist. `split_think`: `</think>` in content ends the
        reasoning. `context_window`: tokens; tells `model_context_window_exceeded` from
        `max_tokens`."""

@final
class ResponseOptions:
    """One response: its model's policy, and what the request fixed."""

    def __new__(
        cls,
        policy: ResponsePolicy,
        *,
        message_id: str,
        model: str,
        reasoning: str = "thinking",
        display_omitted: bool = False,
        tool_names: Sequence[tuple[str, str]] = ...,
        single_tool_call: bool = False,
        max_tokens: int | None = None,
        discard_output: bool = False,
        budget_tokens: int | None = None,
    ) -> ResponseOptions:
        """`reasoning`: `thinking` (blocks), `text` (folded into the text block) or `drop`; anything
        else raises ValueError.
        `display_omitted`: thinking blocks carry a signature and no text.
        `tool_names`: (name upstream, name the client knows) where they differ.
        `single_tool_call`: only the first call is written.
        `discard_output`: `max_tokens: 0`; no content is written and the stop reason is
        `max_tokens`. `budget_tokens`: reasoning past it ends the response as
        `ResponseEnd.BUDGET_SPENT`."""

@final
class Outcome:
    """What is known of a response at its end. Counts are tokens; `input_tokens` excludes
    `cache_read_tokens`."""

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
        """False: the backend sent none, and `output_tokens` is the number of deltas."""
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
    """A streamed chat completion into Messages events, without I/O: the state machine that a
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
    """A backend's response other than 200 → (status for the client, error type, message, whether
    the backend is shutting down)."""

# Responses with I/O

@final
class Poller:
    """Reads the sockets of all backends of one loop. The loop watches it as one descriptor:
    `loop.add_reader(poller.fileno(), poller.run)`."""

    def __new__(cls) -> Poller:
        """Raises OSError when the process has no descriptor left."""
    def fileno(self) -> int:
        """Readable when any backend has sent something; belongs to the poller, which closes it."""
    def run(self) -> None:
        """Reads whatever is readable, once each."""

@final
class UpstreamConnection:
    """The asyncio protocol of one backend connection, one request after the other. With a poller
    its socket is read there, without one (TLS) the transport delivers."""

    def __new__(cls, poller: Poller | None = None) -> UpstreamConnection: ...
    def start(
        self, stream: ResponseStream, waiter: asyncio.Future[None], parts: Iterable[bytes]
    ) -> None:
        """Sends a request, given in parts, head and all, and feeds its response to `stream`.
        `waiter` gets its result when that is over, also when the connection is lost already;
        `stream.end` tells how it ended."""
    def close(self) -> None:
        """At once; what was not sent yet is dropped."""
    @property
    def is_reusable(self) -> bool:
        """Open, no response under way and the last one's framing read to its end."""
    @property
    def is_open(self) -> bool:
        """Open, whether or not the end of the last response's framing is still to come."""
    @property
    def idle_since(self) -> float: ...
    def connection_made(self, transport: asyncio.Transport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool: ...
    def connection_lost(self, exception: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...

@final
class ResponseSpec:
    """In which form a response reaches the client."""

    @staticmethod
    def events(options: ResponseOptions) -> ResponseSpec:
        """Messages events, streamed."""
    @staticmethod
    def aggregated(options: ResponseOptions) -> ResponseSpec:
        """A whole message, out of a response that the backend streams."""
    @staticmethod
    def chat(model_json: str, hide_usage: bool) -> ResponseSpec:
        """Chat completion chunks, passed on. `model_json`: the model's name as a JSON string;
        `hide_usage`: the usage chunk is kept back."""
    @staticmethod
    def buffered() -> ResponseSpec:
        """The body as it is, collected."""

@final
class StreamDeadlines:
    """How long a streamed response may be silent, and how long any response may take."""

    def __new__(
        cls, *, ping_after_s: float, first_event_s: float, idle_s: float, total_s: float
    ) -> StreamDeadlines:
        """`first_event_s`, `idle_s` and pings are for responses that the backend streams;
        `total_s` holds from the stream's beginning, over all attempts."""

@final
class ResponseEnd:
    """How the last attempt at a response ended."""

    COMPLETE: ResponseEnd
    """It was streamed, or aggregated, to its end."""
    COLLECTED: ResponseEnd
    """The body is there, whatever its status."""
    BROKEN: ResponseEnd
    """It carried an error, broke off or was no valid response."""
    NO_RESPONSE: ResponseEnd
    """The backend closed before it sent anything."""
    BUDGET_SPENT: ResponseEnd
    """The reasoning reached its budget: `begin_continuation` is next."""
    SILENT: ResponseEnd
    """The backend was silent for too long."""
    OVERTIME: ResponseEnd
    """All attempts together took too long."""
    FAILED: ResponseEnd
    """`fail` was called."""
    ABORTED: ResponseEnd
    """`abort` was called."""

    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __int__(self) -> int: ...

@final
class ResponseStream:
    """One response on its way from a backend to a client. It outlives the backend's connection: a
    retry or a continuation goes on with it."""

    def __new__(
        cls,
        spec: ResponseSpec,
        deadlines: StreamDeadlines,
        *,
        transport: asyncio.Transport | None = None,
        descriptor: int | None = None,
        is_chunked: bool = True,
        per_token: Histogram | None = None,
    ) -> ResponseStream:
        """`transport`, `descriptor`: the client's, where the response is streamed; `is_chunked`:
        in chunked coding. `per_token` takes the times between tokens."""
    def on_first_event(self, callback: Callable[[], object]) -> None:
        """`callback` is called once, when the first event comes. A later one takes its place."""
    def set_head(self, head: bytes) -> None:
        """The head that goes before the first byte; ignored once that was sent."""
    def sweep(self, now: float) -> None:
        """Pings and deadlines; to be called once a second."""
    def fail(self, kind: str, message: str) -> bool:
        """Ends with an error of the gateway, which a client that has the head gets as an event.
        True: it did, or the response was over."""
    def abort(self) -> None:
        """Cuts the backend, when the client has gone or nobody waits any more."""
    def begin_continuation(self) -> None:
        """What comes now is a second answer, which continues where the thinking budget ended the
        first; also when that takes more than one attempt."""
    def client_paused(self) -> None:
        """The client's transport holds too much: the backend is not read until
        `client_resumed`."""
    def client_resumed(self) -> None: ...
    def client_lost(self) -> None:
        """The client's connection is lost, and its socket about to be closed: nothing is written to
        it any more."""
    def take_body(self) -> bytes:
        """The whole message of an aggregated response (taken once; read the outcome first), or the
        body that was collected."""
    @property
    def end(self) -> ResponseEnd | None:
        """None: the last attempt has not ended."""
    @property
    def is_committed(self) -> bool:
        """The client has the head, so nothing can have a status any more."""
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
        """What was wrong with a broken response."""
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
