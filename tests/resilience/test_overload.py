"""More than a worker can bear: marks that refuse early and keep what runs, bodies of any size and
coding, keys on every route."""

from __future__ import annotations

import asyncio
import gzip
import json
import signal
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.backend import ScriptedBackend
from tests.doubles.proxy import REQ, Ferrule, assert_error, config_for
from tests.e2e.test_cases_limits import key_entry, write_keys
from tests.resilience.crowd import bad, crowd, until
from tests.resilience.engines import Sim

WIDE = {"slots": 1000, "max_inflight": 1000}
MARK = 20
MB = 1 << 20


async def test_streams_beyond_the_mark_are_refused_at_once(
    steady_sim: Sim, new_proxy: Callable[..., Ferrule]
) -> None:
    proxy = new_proxy(config_for(steady_sim.url, pool=WIDE, edge={"max_streams": MARK}))
    async with crowd(proxy) as clients:
        turns = await asyncio.gather(*(clients.stream(str(n), 30) for n in range(3 * MARK)))
        refused = [turn for turn in turns if turn.status != 200]
        assert {turn.status for turn in refused} == {529}
        assert all(
            int(turn.headers["retry-after"]) >= 1 and b"overloaded_error" in turn.raw
            for turn in refused
        )
        assert max(turn.took_s for turn in refused) < 1
        assert len(turns) - len(refused) == MARK, (
            "no more than the mark, also when all come at once"
        )
        assert bad(turn for turn in turns if turn.status == 200) == []
        assert (await clients.stream("after", 2)).is_good


async def test_memory_beyond_the_mark(steady_sim: Sim, tmp_path: Path) -> None:
    """The mark comes by a reload: what runs then runs on, what is new is refused, and all is well
    when the mark is gone."""
    config = config_for(steady_sim.url, pool=WIDE)
    with Ferrule(config, tmp_path) as proxy:
        async with crowd(proxy) as clients:
            live = [asyncio.create_task(clients.stream(str(n), 80)) for n in range(20)]
            await until(
                lambda: len(clients.turns) == 20 and all(turn.moments for turn in clients.turns),
                5,
                "streams to run",
            )
            proxy.write_config({**config, "edge": {"max_memory_mb": 1}})
            proxy.signal(signal.SIGHUP)
            await until(lambda: proxy.ask(**SHORT).status == 529, 3, "the mark")
            refused = await asyncio.to_thread(proxy.ask, "/v1/messages/count_tokens")
            assert_error(refused, 529, "overloaded_error")
            assert int(refused.headers["retry-after"]) >= 1
            proxy.write_config(config)
            proxy.signal(signal.SIGHUP)
            await until(lambda: proxy.ask(**SHORT).status == 200, 3, "the mark's end")
            await asyncio.gather(*live)
            assert bad(clients.turns) == []


SHORT: dict[str, Any] = {"messages": [{"role": "user", "content": "[[tokens:1]]"}]}


# Bodies


@pytest.fixture(scope="module")
def narrow(new_proxy: Callable[..., Ferrule], shared_backend: ScriptedBackend) -> Ferrule:
    """Takes bodies of one megabyte."""
    return new_proxy(config_for(shared_backend.url, body_limit_mb=1))


def sized(size: int) -> bytes:
    start, end = b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"', b'"}]}'
    return start + b"x" * (size - len(start) - len(end)) + end


def raw_deflate(data: bytes) -> bytes:
    squeezer = zlib.compressobj(wbits=-15)
    return squeezer.compress(data) + squeezer.flush()


CODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "plain": ("identity", bytes),
    "gzip": ("gzip", gzip.compress),
    "zlib": ("deflate", zlib.compress),
    "deflate": ("deflate", raw_deflate),
    "upper-case": ("GZIP", gzip.compress),
}


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("name", CODINGS)
def test_the_limit_is_exact_after_inflation(
    narrow: Ferrule, backend: ScriptedBackend, name: str, chunked: bool
) -> None:
    coding, squeeze = CODINGS[name]
    for size, status in ((MB, 200), (MB + 1, 413)):
        data = squeeze(sized(size))
        head = (
            b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-encoding: "
            b"%b\r\n" % coding.encode()
        )
        if chunked:
            sent = head + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (
                len(data),
                data,
            )
        else:
            sent = head + b"content-length: %d\r\n\r\n%b" % (len(data), data)
        answer = narrow.client.raw(sent)
        assert int(answer.split(b" ")[1]) == status, answer[:300]
    assert len(backend.requests) == 1


@pytest.mark.parametrize(
    ("coding", "data", "status"),
    [
        ("gzip", gzip.compress(sized(1000))[:-5], 400),
        ("gzip", gzip.compress(sized(1000)) + b"tail", 400),
        ("gzip", sized(1000), 400),
        ("gzip", b"", 400),
        ("deflate", gzip.compress(sized(1000)), 400),
        ("gzip, gzip", gzip.compress(gzip.compress(sized(1000))), 415),
        ("br", b"x", 415),
        ("zstd", b"x", 415),
    ],
    ids=["cut", "tail", "plain", "empty", "other", "twice", "br", "zstd"],
)
def test_a_coding_that_is_wrong(narrow: Ferrule, coding: str, data: bytes, status: int) -> None:
    assert_error(
        narrow.client.post("/v1/messages", data, {"content-encoding": coding}),
        status,
        "invalid_request_error",
    )


@pytest.mark.parametrize("squeeze", [gzip.compress, zlib.compress])
def test_bombs_cost_nothing(narrow: Ferrule, squeeze: Callable[[bytes], bytes]) -> None:
    """Twenty at once, each a thousand times its size."""
    bomb = squeeze(sized(100 * MB))
    assert len(bomb) < MB
    before = narrow.memory_kb()
    coding = "gzip" if squeeze is gzip.compress else "deflate"
    with ThreadPoolExecutor(20) as threads:
        answers = list(
            threads.map(
                lambda _: narrow.client.post("/v1/messages", bomb, {"content-encoding": coding}),
                range(20),
            )
        )
    assert {answer.status for answer in answers} == {413}
    assert narrow.memory_kb() - before < 20_000


# Keys on every route

ROUTES = [
    (method, prefix + path)
    for prefix in ("", "/api")
    for method, path in (
        ("POST", "/v1/messages"),
        ("POST", "/v1/messages/count_tokens"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/m"),
        ("GET", "/no/such/route"),
    )
]
WRONG_KEYS: dict[str, dict[str, str]] = {
    "none": {},
    "empty-bearer": {"authorization": "Bearer "},
    "empty-key": {"x-api-key": ""},
    "wrong": {"authorization": "Bearer sk-wrong"},
    "both-wrong": {"x-api-key": "sk-wrong", "authorization": "Bearer sk-other"},
    "basic": {"authorization": "Basic c2stZ29vZDo="},
    "scheme": {"authorization": "Token sk-good"},
    "key-alone": {"authorization": "sk-good"},
    "non-ascii": {"x-api-key": "sk-g\xf6\xf6d"},
    "comma": {"x-api-key": "sk-wrong, sk-good"},
    "64-kb": {"x-api-key": "k" * 65536},
    "64-kb-bearer": {"authorization": "Bearer " + "k" * 65536},
}


@pytest.fixture(scope="module")
def keyed(
    new_proxy: Callable[..., Ferrule],
    shared_backend: ScriptedBackend,
    tmp_path_factory: pytest.TempPathFactory,
) -> Ferrule:
    keys = write_keys(tmp_path_factory.mktemp("keys"), key_entry("good"))
    return new_proxy(config_for(shared_backend.url, auth={"keys_file": keys}))


@pytest.mark.parametrize("name", WRONG_KEYS)
def test_no_route_opens_to_a_wrong_key(keyed: Ferrule, backend: ScriptedBackend, name: str) -> None:
    for method, path in ROUTES:
        answer = keyed.client.request(
            method, path, json.dumps(REQ()).encode() if method == "POST" else None, WRONG_KEYS[name]
        )
        if name.startswith("64-kb"):  # the HTTP parser's own refusal
            assert answer.status in (400, 431), (path, answer.status)
            assert answer.json()["type"] == "error"
        else:
            assert_error(answer, 401, "authentication_error")
        assert "sk-" not in answer.text
        assert "kkk" not in answer.text
    assert backend.requests == []


def test_health_and_root_stay_open(keyed: Ferrule) -> None:
    assert [
        keyed.admin_get(path).status for path in ("/livez", "/readyz", "/metrics", "/status")
    ] == [200] * 4
    assert [keyed.client.request(method, "/").status for method in ("GET", "HEAD")] == [200, 200]
