"""Control requests to one backend, off the hot path: health, version, models, token counts.

Nothing here raises for what a backend answers or for its silence; the caller decides what follows.
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
    """`status` 0: no response, and `error` says why (it may name the address, so it is for the
    operator only)."""

    status: int
    body: bytes = b""
    retry_after: str | None = None
    error: str = ""

    @property
    def body_if_ok(self) -> bytes | None:
        return self.body if self.status == 200 else None


class ProbeResult(msgspec.Struct, frozen=True):
    """`retry_after_s`: how long a busy backend asks not to be called; `reason`: why the probe
    failed."""

    status: ProbeStatus
    retry_after_s: float = 0.0
    reason: str | None = None


class BackendInfo(msgspec.Struct, frozen=True):
    """The bodies of a backend's `/v1/models`, `/version` and `/props`, where it has them."""

    models: bytes
    version: bytes | None = None
    props: bytes | None = None

    @property
    def discovered(self) -> DiscoveredModels:
        return DiscoveredModels(
            detect(self.models, self.version, self.props), _parse_models(self.models), True
        )


class BackendClient:
    """Sends control requests to one backend; `timeout_s` holds for each of them."""

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
        """None: it did not list its models. `names_engine`: also ask for what identifies the
        engine."""
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
        if self._session.closed:  # a request that began before a reload outlives its pool
            return BackendResponse(0, error="the pool was removed")
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
            return config.describe_os_error(trouble)
    return str(trouble) or type(trouble).__name__


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The body up to `ANSWER_LIMIT_BYTES`; a longer one is cut, and so is no valid JSON."""
    read = bytearray()
    while len(read) < ANSWER_LIMIT_BYTES and (chunk := await response.content.readany()):
        read += chunk
    return bytes(read[:ANSWER_LIMIT_BYTES])


def authorization(settings: config.PoolConfig, url: str) -> str | None:
    """The authorization header for one backend: its URL's credentials, else the pool's key."""
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
