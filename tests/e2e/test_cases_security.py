"""Keys, canaries and framing tricks: who gets in, what never gets out, what is never passed on."""

from __future__ import annotations

import base64
import contextlib
import gzip
import select
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.doubles.backend import Close, Reply, Reset, ScriptedBackend, refusal, stream
from tests.doubles.client import post
from tests.doubles.frames import DONE, D
from tests.doubles.proxy import REQ, Ferrule, assert_error, config_for
from tests.e2e.test_cases_limits import bearer, key_entry, write_keys

CANARY_KEY = "sk-canary"
CANARY_PROMPT = "canary-prompt-83c1"
POOL_KEY = "pool-secret-51"
USER_INFO = "u:hunter2"


@pytest.fixture(scope="module")
def shared_guarded(
    new_proxy: Callable[..., Ferrule],
    shared_backend: ScriptedBackend,
    tmp_path_factory: pytest.TempPathFactory,
) -> Ferrule:
    keys = [
        key_entry("canary"),
        key_entry("narrow", models=["other-*"]),
        key_entry("a"),
        key_entry("b"),
    ]
    path = write_keys(tmp_path_factory.mktemp("keys"), *keys)
    pool = {"api_key": "${POOL_KEY}", "timeouts": {"first_event_s": 1, "total_s": 2}, "retries": 0}
    edge = {"header_s": 1, "body_stall_s": 1, "idle_s": 2}
    config = config_for(
        shared_backend.url, auth={"keys_file": path}, pool=pool, body_limit_mb=1, edge=edge
    )
    config["pools"]["user"] = {
        "backends": [shared_backend.url.replace("http://", f"http://{USER_INFO}@")],
        "engine": "vllm",
    }
    config["models"].append({"id": "by-user", "pool": "user", "upstream": "m"})
    return new_proxy(config, env={"POOL_KEY": POOL_KEY}, args=["--log-level", "debug"])


@pytest.fixture
def guarded(shared_guarded: Ferrule, backend: ScriptedBackend) -> Ferrule:
    """With keys, a small body limit and short deadlines, at log level debug."""
    return shared_guarded


ROUTES = [
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/m"),
    ("POST", "/api/v1/messages"),
]
BAD_CREDENTIALS: dict[str, dict[str, str]] = {
    "none": {},
    "empty-bearer": {"authorization": "Bearer "},
    "wrong": {"authorization": "Bearer sk-wrong"},
    "wrong-x": {"x-api-key": "sk-wrong"},
    "both-wrong": {"x-api-key": "sk-wrong", "authorization": "Bearer sk-other"},
    "basic": {"authorization": "Basic " + base64.b64encode(b"sk-canary:").decode()},
    "long": {"authorization": "Bearer " + "x" * 7000},
    "not-ascii": {"x-api-key": "sk-\xe9"},
}


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("name", BAD_CREDENTIALS)
def test_p07_no_valid_key_no_answer(
    guarded: Ferrule, backend: ScriptedBackend, method: str, path: str, name: str
) -> None:
    answer = guarded.client.request(
        method, path, REQ() if method == "POST" else None, BAD_CREDENTIALS[name]
    )
    assert_error(answer, 401, "authentication_error")
    assert answer.headers["x-should-retry"] == "false"
    assert "sk-" not in answer.text
    assert backend.requests == []


def test_p07_a_64_kb_header_is_refused(guarded: Ferrule) -> None:
    head = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-api-key: " + b"k" * 65536 + b"\r\n\r\n"
    assert guarded.client.raw(head).split(b" ")[1] in (b"400", b"401", b"431")


@pytest.mark.parametrize(
    "headers",
    [
        {"x-api-key": CANARY_KEY},
        {"authorization": f"Bearer {CANARY_KEY}"},
        {"authorization": f"bearer {CANARY_KEY}"},
        {"x-api-key": CANARY_KEY, "authorization": f"Bearer {CANARY_KEY}"},
        {"x-api-key": "sk-wrong", "authorization": f"Bearer {CANARY_KEY}"},
        {"x-api-key": CANARY_KEY, "authorization": "Bearer sk-wrong"},
    ],
    ids=["x-api-key", "bearer", "lower-case", "both", "bearer-valid", "x-api-key-valid"],
)
def test_p07_one_valid_key_is_enough(guarded: Ferrule, headers: dict[str, str]) -> None:
    assert guarded.ask(headers=headers).status == 200


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_p07_the_root_stays_open(guarded: Ferrule, method: str) -> None:
    assert guarded.client.request(method, "/").status == 200


def test_a_key_may_use_its_models_only(guarded: Ferrule) -> None:
    assert_error(guarded.ask(headers=bearer("narrow")), 403, "permission_error", "m")


def test_p01_admin_routes_are_not_on_the_client_port(guarded: Ferrule, proxy: Ferrule) -> None:
    for path in ("/metrics", "/status", "/readyz", "/livez"):
        assert_error(guarded.client.get(path), 401, "authentication_error")
        assert_error(proxy.client.get(path), 404, "not_found_error")


def test_p13_the_pools_own_key_goes_upstream(guarded: Ferrule, backend: ScriptedBackend) -> None:
    guarded.ask(headers={**bearer("a"), "cookie": "c", "x-forwarded-for": "1.2.3.4", "via": "x"})
    sent = {name.lower(): value for name, value in backend.last.headers}
    assert sent["authorization"] == f"Bearer {POOL_KEY}"
    assert {"cookie", "x-forwarded-for", "via", "x-api-key"}.isdisjoint(sent)


WAYS_OUT: dict[str, Any] = {
    "backend-500": refusal(500, "x"),
    "backend-400": refusal(400, "x"),
    "reset": Reply([Reset()], sends_head=False),
    "broken": stream(D({"content": "x"}), Close()),
    "garbage": stream(b"data: {\n\n"),
    "complete": stream(D({"content": "x"}), D({}, "stop"), DONE),
}


def test_p03_a_canary_is_found_nowhere(guarded: Ferrule, backend: ScriptedBackend) -> None:
    headers = {"x-api-key": CANARY_KEY}
    received = []
    for play in WAYS_OUT.values():
        backend.play(play)
        for streamed in (True, False):
            answer = guarded.ask(
                headers=headers,
                stream=streamed,
                messages=[{"role": "user", "content": CANARY_PROMPT}],
            )
            received.append(answer.text + str(answer.headers))
    for body in (
        b"{",
        b'{"model":"%s"}' % CANARY_PROMPT.encode(),
        b'{"messages":"%s"}' % CANARY_PROMPT.encode(),
    ):
        received.append(str(guarded.client.post("/v1/messages", body, headers).headers))
    received.append(guarded.ask(headers=headers, model="nope").text)
    surfaces = [
        *received,
        guarded.log(),
        guarded.admin_get("/metrics").text,
        guarded.admin_get("/status").text,
    ]
    for secret in (CANARY_KEY, key_entry("canary")["sha256"], POOL_KEY, "hunter2"):
        assert not [surface for surface in surfaces if secret in surface], secret
    for surface in surfaces[-3:]:
        assert CANARY_PROMPT not in surface
    for seen in backend.requests:
        assert CANARY_KEY not in str(seen.headers)


def test_p05_user_and_password_of_a_backend_are_redacted(
    guarded: Ferrule, backend: ScriptedBackend
) -> None:
    assert guarded.ask(headers=bearer("a"), model="by-user").status == 200
    assert (
        backend.last.header("authorization")
        == "Basic " + base64.b64encode(USER_INFO.encode()).decode()
    )
    backend.play(refusal(500), Reply([Reset()], sends_head=False))
    received = [guarded.ask(headers=bearer("a"), model="by-user").text for _ in range(2)]
    for surface in (
        *received,
        guarded.log(),
        guarded.admin_get("/metrics").text,
        guarded.admin_get("/status").text,
    ):
        assert "hunter2" not in surface


def test_p15_each_line_names_its_caller(guarded: Ferrule) -> None:
    for n in range(40):
        guarded.ask(headers=bearer("ab"[n % 2]), model="m")
    time.sleep(0.3)
    tenants = [
        line.get("tenant") for line in guarded.log_lines() if line.get("tenant") in ("a", "b")
    ][-40:]
    assert tenants == ["a", "b"] * 20


# Bodies and framing


def test_b21_a_body_without_end_is_cut_at_the_limit(guarded: Ferrule) -> None:
    before = guarded.memory_kb()
    host, port = guarded.listen.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(
            b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: "
            b"sk-canary\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 200_000_000 and not select.select([client], [], [], 0)[0]:
                client.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
                sent += 0x10000
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            answer = client.recv(65536)
    assert sent < 20_000_000
    assert answer.startswith(b"HTTP/1.1 413"), answer
    assert guarded.memory_kb() - before < 40_000


def test_b21_a_body_over_the_limit(guarded: Ferrule) -> None:
    answer = guarded.ask(
        headers=bearer("a"), messages=[{"role": "user", "content": "x" * 1_500_000}]
    )
    assert_error(answer, 413, "request_too_large")


def test_a_bomb_costs_nothing(guarded: Ferrule) -> None:
    bomb = gzip.compress(
        b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"'
        + b"x" * 30_000_000
        + b'"}]}'
    )
    before = guarded.memory_kb()
    answer = guarded.client.post("/v1/messages", bomb, {**bearer("a"), "content-encoding": "gzip"})
    assert_error(answer, 413, "request_too_large")
    assert guarded.memory_kb() - before < 20_000


def test_a_compressed_body_is_read(guarded: Ferrule) -> None:
    body = gzip.compress(b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}')
    assert (
        guarded.client.post(
            "/v1/messages", body, {**bearer("a"), "content-encoding": "gzip"}
        ).status
        == 200
    )
    assert_error(
        guarded.client.post("/v1/messages", body, {**bearer("a"), "content-encoding": "lzma"}),
        415,
        "invalid_request_error",
    )


HEAD = "POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: sk-canary\r\n"
SMUGGLED = post("/v1/messages", REQ(messages=[{"role": "user", "content": "smuggled"}]))


@pytest.mark.parametrize(
    "framing",
    [
        "content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        "transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        "content-length: +5\r\n\r\nhello",
        "content-length: 5, 5\r\n\r\nhello",
        "x-folded: a\r\n b\r\ncontent-length: 2\r\n\r\n{}",
        "content-length : 2\r\n\r\n{}",
        "transfer-encoding: chunked\r\n\r\n-1\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\n5;" + "a" * 70_000 + "\r\nhello\r\n0\r\n\r\n",
    ],
    ids=[
        "cl-and-te",
        "two-cl",
        "te-list",
        "te-unknown",
        "cl-plus",
        "cl-list",
        "obs-fold",
        "blank-before-colon",
        "negative-chunk",
        "extension",
    ],
)
def test_ambiguous_framing_is_refused(
    guarded: Ferrule, backend: ScriptedBackend, framing: str
) -> None:
    answer = guarded.client.raw(HEAD.encode() + framing.encode() + SMUGGLED)
    assert answer == b"" or answer.split(b" ")[1][:1] == b"4", answer[:200]
    assert backend.requests == []
    assert guarded.ask(headers=bearer("a")).status == 200


@pytest.mark.parametrize(
    ("sent", "limit_s"),
    [
        (b"POST /v1/messages HTTP/1.1\r\nhost: x\r\n", 1),
        (HEAD.encode() + b"content-length: 100\r\n\r\n{", 1),
        (b"", 2),
    ],
    ids=["header", "body", "idle"],
)
def test_slow_clients_are_cut_at_their_deadlines(
    guarded: Ferrule, sent: bytes, limit_s: float
) -> None:
    host, port = guarded.listen.split(":")
    begin = time.monotonic()
    with socket.create_connection((host, int(port)), timeout=limit_s + 5) as client:
        client.sendall(sent)
        while client.recv(65536):
            pass
    assert time.monotonic() - begin < limit_s + 3


def test_beyond_loopback_needs_keys(
    new_proxy: Callable[..., Ferrule], shared_backend: ScriptedBackend, tmp_path: Any
) -> None:
    proxy = Ferrule(
        config_for(shared_backend.url), tmp_path, args=["--listen", "0.0.0.0:0"], waits=False
    )
    assert proxy.process.wait(15) == 1
    assert "allow_anonymous" in proxy.log()
