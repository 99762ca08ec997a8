"""The Rust half: streams replies, counts tokens, ranks backends. Nothing here blocks the loop or holds the GIL for long."""

from collections.abc import Sequence
from typing import Any, final

def rank(key: bytes, backends: Sequence[tuple[str, float]]) -> list[int]:
    """The indices of `backends` (name, weight) in the order in which the session `key` prefers them (weighted rendezvous hashing)."""

@final
class Tokenizer:
    """A tokenizer of the gateway's own: `o200k_base`, `cl100k_base`, or the path of a `tokenizer.json`."""

    def __new__(cls, name: str) -> Tokenizer:
        """Raises ValueError when the name is unknown or the file cannot be read."""
    def count(self, texts: Sequence[str]) -> int:
        """Tokens in all texts together. Releases the GIL; call it off the loop for long texts."""

@final
class ReplyOptions:
    """How one reply is to be told to its client: the response-side knobs and what the request fixed."""

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
        tool_names: Sequence[tuple[str, str]] = (),
        single_tool_call: bool = False,
        split_think: bool = False,
        max_tokens: int | None = None,
        context_window: int | None = None,
        discard_output: bool = False,
    ) -> ReplyOptions:
        """`reasoning`: `thinking` (blocks), `text` (folded into the text block) or `drop`.
        `stop_reasons`: those the dialect knows, all others become `end_turn`; None: all.
        `tool_names`: (name upstream, name the client knows) where they differ.
        `single_tool_call`: only the first call is told. `split_think`: `</think>` in content ends the reasoning.
        `max_tokens`, `context_window`: tell `model_context_window_exceeded` from `max_tokens`.
        `discard_output`: `max_tokens: 0`; no content is told and the stop reason is `max_tokens`."""

@final
class Outcome:
    """What a reply came to. Counts are tokens; `input_tokens` excludes `cache_read_tokens`."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    stop_reason: str | None
    has_usage: bool
    """False: the backend sent none, and `output_tokens` is the number of pieces that were told."""
    fault_kind: str | None
    """None, or an error type of the Messages API (`api_error`, `overloaded_error`, ...)."""
    fault_message: str | None
    fault_status: int | None
    """The HTTP status the failure has when nothing was sent yet."""

@final
class Translator:
    """A streamed chat completion into Messages events, without I/O: the same machine that the Relay runs."""

    def __new__(cls, options: ReplyOptions) -> Translator: ...
    def feed(self, data: bytes) -> bytes:
        """Bytes of the backend's body, cut anywhere → bytes for the client. Never raises for what a peer sent."""
    def finish(self) -> bytes:
        """The body has ended."""
    @property
    def outcome(self) -> Outcome: ...

def fold(options: ReplyOptions, body: bytes) -> tuple[bytes, Outcome]:
    """A streamed chat completion, whole → the Messages body that `stream: false` gives (empty after a fault)."""

def translate_reply(options: ReplyOptions, body: bytes) -> tuple[bytes, Outcome]:
    """A whole chat completion (`chat.completion`) → a whole message (empty after a fault)."""

def __getattr__(name: str) -> Any: ...
