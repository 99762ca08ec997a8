"""The session a request belongs to, so that its turns find the same backend's prefix cache. Never
the user or the API key alone.

Order: Claude Code's header; the session in `metadata.user_id` (JSON form, `…_session_<uuid>` form,
else the whole string); the opening of the conversation. The tenant is mixed in, so nobody can steer
another tenant's sessions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from ferrule.messages.json_text import EMPTY, NOTHING, join, quote
from ferrule.messages.schema import Block, MessagesRequest
from ferrule.messages.system import system_text

HEADER = "x-claude-code-session-id"
_MARK = "_session_"
_KEY_BYTES = 16


class _Metadata(msgspec.Struct):
    user_id: str | None = None


_metadata_in = msgspec.json.Decoder(_Metadata | None).decode


class _UserId(msgspec.Struct):
    session_id: str | None = None


def session_key(headers: Mapping[str, str], request: MessagesRequest, tenant: str) -> bytes | None:
    """16 bytes, the same on every replica; None: no session, the request may go
    anywhere. Header names are lowercase."""
    session = named_session(headers.get(HEADER), request.metadata)
    return (
        digest(tenant, "session", session.encode("utf-8", "surrogateescape"))
        if session
        else _opening_key(request, tenant)
    )


def named_session(header: str | None, metadata: msgspec.Raw) -> str | None:
    """The session as the client names it. What cannot be read counts as absent."""
    if header and header.strip():
        return header.strip()
    if metadata is NOTHING:
        return None
    try:
        found = _metadata_in(metadata)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return session_in(found.user_id) if found is not None and found.user_id else None


def session_in(user_id: str) -> str:
    """The session inside a user id, in either of Claude Code's forms; any other string is taken
    whole."""
    if user_id.startswith("{"):
        try:
            return msgspec.json.decode(user_id, type=_UserId).session_id or user_id
        except (msgspec.MsgspecError, RecursionError):
            return user_id
    return user_id.rpartition(_MARK)[2] or user_id


def digest(tenant: str, kind: str, *parts: bytes) -> bytes:
    """One key from several texts; lengths are mixed in, so that no two lists of parts run
    together."""
    framed = b"".join([_of_kind(tenant, kind), *map(_framed, parts)])
    return hashlib.blake2b(framed, digest_size=_KEY_BYTES).digest()


@lru_cache(maxsize=256)
def _of_kind(tenant: str, kind: str) -> bytes:
    return _framed(tenant.encode()) + _framed(kind.encode())


def _framed(part: bytes) -> bytes:
    return b"%d:%b" % (len(part), part)


def _opening_key(request: MessagesRequest, tenant: str) -> bytes | None:
    """System text and first user message: they stay the same while the conversation grows."""
    system = system_text(request.system, "system")
    user = next(
        (_text_of(message.content) for message in request.messages if message.role == "user"), b""
    )
    return opening_key(tenant, system or b"", user)


def opening_key(tenant: str, system: bytes, user: bytes) -> bytes | None:
    """Of two literals, empty where there is no text: the same on both surfaces."""
    return digest(tenant, "opening", system, user) if system or user else None


def _text_of(content: str | list[Block] | None) -> bytes:
    if isinstance(content, list):
        texts = [
            literal
            for literal in (bytes(block.text) for block in content)
            if literal not in (b"", b"null", EMPTY)
        ]
        return join(texts) if texts else b""
    return quote(content) if content else b""
