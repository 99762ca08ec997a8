"""Maps a path to its route. Every route also exists under /api; the query string is ignored."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

UNKNOWN = "unknown"


class Route(NamedTuple):
    """`methods`: those allowed. `argument`: what follows the route's path, decoded."""

    name: str
    methods: tuple[str, ...] = ()
    argument: str = ""


_ROUTES = {
    "/": Route("root", ("GET", "HEAD")),
    "/v1/messages": Route("messages", ("POST",)),
    "/v1/messages/count_tokens": Route("count_tokens", ("POST",)),
    "/v1/chat/completions": Route("chat", ("POST",)),
    "/v1/models": Route("models", ("GET", "HEAD")),
}
_MODEL_PREFIX = "/v1/models/"


def route_of(raw_path: str) -> Route:
    """The route of a request target: path and query as in the request line."""
    found = _ROUTES.get(raw_path)  # the usual spelling
    if found is not None:
        return found
    path = raw_path.partition("?")[0]
    if path.startswith("/api/") or path == "/api":
        path = path[4:] or "/"
    if len(path) > 1:
        path = path.rstrip("/")
    found = _ROUTES.get(path)
    if found is not None:
        return found
    if path.startswith(_MODEL_PREFIX):  # names with a slash come raw or encoded
        return Route("model", ("GET", "HEAD"), unquote(path[len(_MODEL_PREFIX) :]))
    return Route(UNKNOWN)
