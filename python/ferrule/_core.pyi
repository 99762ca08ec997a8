"""The Rust half: streams responses, counts tokens, ranks backends. Nothing here blocks the loop or
holds the GIL for long. A loop's poller, connections and streams belong to its thread; `Tokenizer`
and `Histogram` may be used from any.

Times are seconds; points in time are those of `time.monotonic()`. Bad input from a peer never
raises: it becomes a fault in an `Outcome`, or the `end` of a `ResponseStream`.
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
    """The settings shared by all responses of a model. Made once per model; immutable. There are no
    defaults here: the dialects have them."""

    def __new__(
        cls,
        *,
        signature_prefix: str,
        stop_reasons: Sequence[str] | None,
        report_stop_sequence: bool,
        close_block_on_error: bool,
        split_think: bool,
        context_window: int | None,
    ) -> ResponsePolicy:
        """`signature_prefix`: precedes the encoded reasoning in a thinking block's signature.
        `stop_reasons`: those the dialect has; others become `end_turn` (`max_tokens` in place of
        `model_context_window_exceeded`). None: all. Raises ValueError for an unknown one.
        `report_stop_sequence`: whether `stop_sequence` is filled in.
        `close_block_on_error`: whether the open block gets its stop before an `error` event.
        `split_think`: content up to `</think>` is reasoning.
        `context_window`: tokens; distinguishes `model_context_window_exceeded` from `max_tokens`.
        None: unknown."""

@final
class ResponseOptions:
    """The settings of one response: its model's policy, and those of the request. Immutable."""

    def __new__(
        cls,
        policy: ResponsePolicy,
        *,
        message_id: str,
        model: str,
        reasoning: str,
        display_omitted: bool = False,
        tool_names: Sequence[tuple[str, str]] = ...,
        single_tool_call: bool = False,
        max_tokens: int | None = None,
        discard_output: bool = False,
        budget_tokens: int | None = None,
    ) -> ResponseOptions:
        """`reasoning`: `thinking` (blocks), `text` (joined with the answer in one text block) or
        `drop`; anything else raises ValueError.
        `display_omitted`: thinking blocks carry a signature and no text.
        `tool_names`: (name upstream, name the client knows) where they differ.
        `single_tool_call`: only the first call is written.
        `max_tokens`: the client's limit.
        `discard_output`: for `max_tokens: 0`; no content is written and the stop reason is
        `max_tokens`.
        `budget_tokens`: reasoning past it ends the attempt as `ResponseEnd.BUDGET_SPENT`."""

@final
class Outcome:
    """The result of a response. Counts are tokens; `input_tokens` excludes `cache_read_tokens`."""

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
        """For the client: without addresses, paths and stack traces of the backend."""
    @property
    def fault_status(self) -> int | None:
        """The HTTP status of the failure if nothing was sent yet."""

@final
class Translator:
    """A streamed chat completion into Messages events, without I/O: the state machine that a
    ResponseStream runs."""

    def __new__(cls, options: ResponseOptions) -> Translator: ...
    def feed(self, data: bytes) -> bytes:
        """Bytes of the backend's body, cut anywhere → bytes for the client. Never raises for bad
        input."""
    def finish(self) -> bytes:
        """The body has ended."""
    @property
    def outcome(self) -> Outcome: ...

def fold(options: ResponseOptions, body: bytes) -> tuple[bytes, Outcome]:
    """The whole body of a streamed chat completion → the Messages body for `stream: false` (empty
    after a fault)."""

def translate_reply(options: ResponseOptions, body: bytes) -> tuple[bytes, Outcome]:
    """A `chat.completion` body → the Messages body (empty after a fault)."""

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
        """Readable when any backend has sent something. The poller owns and closes it."""
    def run(self) -> None:
        """Reads up to 256 readable sockets, once each, 64 KiB at most. Raises the first error
        of a transport or a callback, after the others were served."""

@final
class UpstreamConnection:
    """The asyncio protocol of one backend connection; one request at a time. With a poller its
    socket is read there, without one (TLS) the transport delivers the data."""

    def __new__(cls, poller: Poller | None = None) -> UpstreamConnection: ...
    def start(
        self, stream: ResponseStream, waiter: asyncio.Future[None], parts: Iterable[bytes]
    ) -> None:
        """Sends a request (`parts`: head and body) and feeds its response to `stream`. `waiter`
        gets the result None at the end of the attempt, at once if the connection is lost already;
        `stream.end` is how it ended."""
    def close(self) -> None:
        """Closes at once; unsent data is dropped."""
    @property
    def is_reusable(self) -> bool:
        """Open, without a response in progress, the last one's framing read to its end."""
    @property
    def is_open(self) -> bool:
        """Open, even if the end of the last response's framing is still to come."""
    @property
    def idle_since(self) -> float:
        """The end of the last response, or the time of connecting."""
    def connection_made(self, transport: asyncio.Transport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool: ...
    def connection_lost(self, exception: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...

@final
class ResponseSpec:
    """The form in which a response reaches the client. Immutable; each attempt begins anew."""

    @staticmethod
    def events(options: ResponseOptions) -> ResponseSpec:
        """Messages events, streamed."""
    @staticmethod
    def aggregated(options: ResponseOptions) -> ResponseSpec:
        """One whole message, from a response that the backend streams."""
    @staticmethod
    def chat(model_json: str, hide_usage: bool) -> ResponseSpec:
        """Chat completion chunks, passed on. `model_json`: the client's name for the model, as a
        JSON string; `hide_usage`: the usage chunk is withheld."""
    @staticmethod
    def buffered() -> ResponseSpec:
        """The unchanged body, collected; at most 64 MiB."""

@final
class StreamDeadlines:
    """How long a streamed response may be silent, and how long any response may take. Made once
    per pool; immutable. The configuration has the defaults."""

    def __new__(
        cls, *, ping_after_s: float, first_event_s: float, idle_s: float, total_s: float
    ) -> StreamDeadlines:
        """`ping_after_s`: the client gets a ping after that long without a byte.
        `first_event_s`, `idle_s`: limits of an attempt that the backend streams, until the first
        event and between two.
        `total_s`: limit of all attempts, from the creation of the stream."""

@final
class ResponseEnd:
    """How the last attempt at a response ended."""

    COMPLETE: ResponseEnd
    """Streamed or aggregated to its end."""
    COLLECTED: ResponseEnd
    """A body was collected: of a buffered response, or of an error status."""
    BROKEN: ResponseEnd
    """It carried an error, ended early or was not a valid response: see `fault`."""
    NO_RESPONSE: ResponseEnd
    """The backend closed before it sent anything."""
    BUDGET_SPENT: ResponseEnd
    """The reasoning reached its budget: `begin_continuation` is next."""
    SILENT: ResponseEnd
    """`first_event_s` or `idle_s` expired."""
    OVERTIME: ResponseEnd
    """`total_s` expired."""
    FAILED: ResponseEnd
    """`fail` was called."""
    ABORTED: ResponseEnd
    """`abort` was called."""

    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __int__(self) -> int: ...

@final
class ResponseStream:
    """One response in progress, from a backend to a client. It outlives a backend's connection: a
    retry or a continuation uses it again."""

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
        """`transport`, `descriptor`: the client's, if the response is streamed; without a
        descriptor (TLS) everything is written by the transport. `is_chunked`: in chunked coding.
        `per_token` gets the times between tokens."""
    def on_first_event(self, callback: Callable[[], object]) -> None:
        """`callback` is called once, at the first event. A later one replaces it."""
    def set_head(self, head: bytes) -> None:
        """The HTTP head, sent with the first bytes of the body; ignored after that."""
    def sweep(self, now: float) -> None:
        """Sends a ping if due and enforces the deadlines. Call it once a second."""
    def fail(self, kind: str, message: str) -> bool:
        """Ends with an error of the gateway. True: the client got it as an event, or the response
        was over already. False: the client has no head yet, so send it a status. `kind`: an error
        type of the Messages API; an unknown one becomes `api_error`."""
    def abort(self) -> None:
        """Closes the backend's connection, because the client has disconnected or the request was
        cancelled. The waiter is dropped without a result."""
    def begin_continuation(self) -> None:
        """What follows is a second response, which continues where the thinking budget ended the
        first; it may take several attempts."""
    def client_paused(self) -> None:
        """The client's transport has too much buffered: reading of the backend pauses until
        `client_resumed`."""
    def client_resumed(self) -> None: ...
    def client_lost(self) -> None:
        """The client's connection is lost, and its socket about to be closed: nothing more is
        written to it."""
    def take_body(self) -> bytes:
        """The whole message of an aggregated response (taken once; read the outcome first), or the
        body that was collected."""
    @property
    def end(self) -> ResponseEnd | None:
        """None: the last attempt has not ended."""
    @property
    def is_committed(self) -> bool:
        """The client has the head: a status can no longer be sent."""
    @property
    def has_started(self) -> bool:
        """The first event has come: no retry after that."""
    @property
    def status(self) -> int:
        """The backend's HTTP status; 0 before its head is complete."""
    @property
    def retry_after(self) -> str | None:
        """The backend's `Retry-After` header."""
    @property
    def fault(self) -> str:
        """What was wrong with a broken response."""
    @property
    def outcome(self) -> Outcome: ...
    @property
    def reasoning_text(self) -> str:
        """All reasoning of the message so far, decoded."""
    @property
    def sent_at(self) -> float:
        """When the last attempt began; 0 before the first."""
    @property
    def first_event_at(self) -> float:
        """When the first event came; 0 before."""

# Numbers

@final
class Histogram:
    """Counts per bucket, filled from Rust and Python. `edges`: upper bounds in seconds, ascending;
    an observation on an edge belongs to the bucket below."""

    def __new__(cls, edges: Sequence[float]) -> Histogram: ...
    def observe(self, seconds: float) -> None: ...
    def snapshot(self) -> tuple[list[int], float]:
        """Counts per bucket, not cumulative, the last one beyond the last edge; and the sum in
        seconds."""

@final
class Tokenizer:
    """A tokenizer of the gateway: `o200k_base`, `cl100k_base`, or the path of a
    `tokenizer.json`."""

    def __new__(cls, name: str) -> Tokenizer:
        """Raises ValueError when the name is unknown or the file cannot be read."""
    def count(self, texts: Sequence[str]) -> int:
        """The sum of the tokens of all texts. Releases the GIL; call it off the loop for long
        texts."""

def rank(key: bytes, backends: Sequence[tuple[str, float]]) -> list[int]:
    """The indices of `backends` (name, weight) in the order in which the session `key` prefers them
    (weighted rendezvous hashing)."""
