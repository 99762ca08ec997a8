"""Questions to one backend off the hot path: is it well, what is it, which models has it, how many
tokens is this.

Nothing here raises for what a backend answers, or for its silence; what follows from an answer is
decided elsewhere.
"""

from __future__ import annotations

from time import time

import aiohttp
import msgspec

from ferrule import config
from ferrule.backends.connections import BackendConnections
from ferrule.catalog import DiscoveredModels, ListedModel
from ferrule.engines import detect
from ferrule.http.retry_after import parse_retry_after
from ferrule.routing.health import ProbeStatus

ANSWER_LIMIT_BYTES = 4 << 20


class BackendResponse(msgspec.Struct, frozen=True):
    """`status` 0: none came, and `trouble` says why (it may name the address: for the operator
    only)."""

    status: int
    body: bytes = b""
    retry_after: str | None = None
    error: str = ""

    @property
    def body_if_ok(self) -> bytes | None:
        return self.body if self.status == 200 else None


class ProbeResult(msgspec.Struct, frozen=True):
    """What a probe found. `retry_after_s`: for how long a busy backend asks to be left alone;
    `reason`: why a probe failed."""

    status: ProbeStatus
    retry_after_s: float = 0.0
    reason: str | None = None


class BackendInfo(msgspec.Struct, frozen=True):
    """What a backend says of itself: the bodies of `/v1/models`, `/version` and `/props`, where it
    has them."""

    models: bytes
    version: bytes | None = None
    props: bytes | None = None

    @property
    def discovered(self) -> DiscoveredModels:
        return DiscoveredModels(
            detect(self.models, self.version, self.props), _parse_models(self.models), True
        )


class BackendClient:
    """Asks one backend; `timeout_s` holds for each question."""

    def __init__(self, session: aiohttp.ClientSession, connections: BackendConnections) -> None:
        self._session = session
        self._connections = connections

    async def health(self, path: str, timeout_s: float) -> ProbeResult:
        answer = await self.get(path, timeout_s)
        if answer.status == 429:
            return ProbeResult(ProbeStatus.BUSY, parse_retry_after(answer.retry_after, time()))
        if 0 < answer.status < 400:
            return ProbeResult(ProbeStatus.OK)
        return ProbeResult(
            ProbeStatus.FAILED,
            reason=f"GET {path}: {f'HTTP {answer.status}' if answer.status else answer.error}",
        )

    async def description(
        self, timeout_s: float, *, names_engine: bool = True
    ) -> BackendInfo | None:
        """None: it did not list its models. `names_engine`: also ask what tells one engine from
        another."""
        models = (await self.get("/v1/models", timeout_s)).body_if_ok
        if models is None or not names_engine:
            return None if models is None else BackendInfo(models)
        version = (await self.get("/version", timeout_s)).body_if_ok
        props = (await self.get("/props", timeout_s)).body_if_ok if version is None else None
        return BackendInfo(models, version, props)

    async def get(self, path: str, timeout_s: float) -> BackendResponse:
        return await self._ask("GET", path, None, timeout_s)

    async def post(self, path: str, body: bytes, timeout_s: float) -> BackendResponse:
        return await self._ask("POST", path, body, timeout_s)

    async def _ask(
        self, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> BackendResponse:
        asked = self._session.request(
            method,
            self._connections.url(path),
            data=body,
            headers=self._connections.control_headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        )
        try:
            async with asked as response:
                return BackendResponse(
                    response.status, await _read(response), response.headers.get("retry-after")
                )
        except TimeoutError:
            return BackendResponse(0, error=f"no answer within {timeout_s:g} s")
        except (aiohttp.ClientError, OSError) as trouble:
            return BackendResponse(0, error=_describe_error(trouble))


def _describe_error(trouble: Exception) -> str:
    match trouble:
        case aiohttp.ClientConnectorDNSError():
            return "the name does not resolve"
        case OSError(errno=int()):
            return config.reason_of(trouble)
    return str(trouble) or type(trouble).__name__


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """As much as anybody wants of it; what is longer is cut, and then no JSON any more."""
    read = bytearray()
    while len(read) < ANSWER_LIMIT_BYTES and (chunk := await response.content.readany()):
        read += chunk
    return bytes(read[:ANSWER_LIMIT_BYTES])


def authorization(settings: config.PoolConfig, url: str) -> str | None:
    """The header for one backend of a pool: what its own URL says, else the pool's key."""
    own = next(
        (backend.url.authorization for backend in settings.backends if backend.url.url == url), None
    )
    if own is not None:
        return own.reveal()
    return f"Bearer {settings.api_key.reveal()}" if settings.api_key else None


class _ModelEntry(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    created: int | None = None
    meta: dict[str, object] | None = None


class _ModelList(msgspec.Struct):
    data: list[_ModelEntry] = []


def _parse_models(body: bytes) -> tuple[ListedModel, ...]:
    try:
        entries = msgspec.json.decode(body, type=_ModelList).data
    except msgspec.MsgspecError:
        return ()
    return tuple(ListedModel(entry.id, _window(entry), entry.created or 0) for entry in entries)


def _window(entry: _ModelEntry) -> int | None:
    if entry.max_model_len:
        return entry.max_model_len
    found = (entry.meta or {}).get("n_ctx")  # llama.cpp, per slot
    return found if isinstance(found, int) and found > 0 else None
