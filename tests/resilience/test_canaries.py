"""A secret key and a secret prompt, sent through every way a request can fail at log level debug,
are found nowhere afterwards."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.doubles.backend import (
    Close,
    Pause,
    Reply,
    Reset,
    ScriptedBackend,
    refusal,
    stream,
    whole,
)
from tests.doubles.frames import DONE, ROLE_DELTA, Canned, D, error_frame
from tests.doubles.proxy import REQ, Ferrule, config_for
from tests.e2e.test_cases_limits import key_entry, write_keys

KEY = "sk-canary-7f3a"
PROMPT = "canary-prompt-83c1"
POOL_KEY = "pool-canary-51"
KEYED = {"x-api-key": KEY}


@dataclass
class Surfaces:
    """Where a secret could come to light."""

    proxy: Ferrule
    backend: ScriptedBackend
    received: list[str] = field(default_factory=list)
    """What clients got that were refused, or whose answer failed."""

    def __post_init__(self) -> None:
        self._logged = len(self.proxy.log())

    def ask(
        self, path: str, body: Any, headers: dict[str, str] | None = None, method: str = "POST"
    ) -> None:
        answer = self.proxy.client.request(method, path, body, {**KEYED, **(headers or {})})
        self.received.append(
            f"{answer.status} {answer.headers} {answer.content.decode(errors='replace')}"
        )

    def all(self) -> dict[str, str]:
        sent = [
            f"{seen.method} {seen.target} {seen.headers}"
            for seen in (*self.backend.requests, *self.backend.others)
        ]
        return {
            "answers": "\n".join(self.received),
            "log": self.proxy.log()[self._logged :],
            "metrics": self.proxy.admin_get("/metrics").text,
            "status": self.proxy.admin_get("/status").text,
            "upstream heads": "\n".join(sent),
        }

    def assert_hidden(self, *secrets: str) -> None:
        for name, text in self.all().items():
            for secret in secrets:
                at = text.find(secret)
                assert at < 0, f"{secret} in {name}: …{text[max(0, at - 200) : at + 100]}…"


@pytest.fixture(scope="module")
def proxy_with_keys(
    new_proxy: Callable[..., Ferrule],
    shared_backend: ScriptedBackend,
    tmp_path_factory: pytest.TempPathFactory,
) -> Ferrule:
    entry = {**key_entry("canary"), "sha256": hashlib.sha256(KEY.encode()).hexdigest()}
    keys = write_keys(tmp_path_factory.mktemp("keys"), entry)
    pool = {
        "api_key": POOL_KEY,
        "timeouts": {"first_event_s": 0.5, "idle_s": 0.5, "total_s": 1},
        "retries": 0,
    }
    config = config_for(
        shared_backend.url,
        pool=pool,
        auth={"keys_file": keys},
        body_limit_mb=1,
        workers=2,
        edge={"body_stall_s": 1},
    )
    return new_proxy(config, args=["--log-level", "debug"])


@pytest.fixture
def surfaces(proxy_with_keys: Ferrule, backend: ScriptedBackend) -> Surfaces:
    return Surfaces(proxy_with_keys, backend)


SAID: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}], "system": PROMPT}
WAYS_OUT: dict[str, Any] = {
    **{
        f"status-{status}": refusal(status, "no")
        for status in (400, 401, 404, 413, 422, 429, 500, 503)
    },
    "draining": refusal(500, "cannot schedule new futures after shutdown"),
    "html": Reply(
        [b"<html>Bad Gateway</html>"], 502, [("content-type", "text/html")], framing="length"
    ),
    "reset": Reply([Reset()], sends_head=False),
    "not-http": Reply([b"\x00\xff\r\n\r\n", Close()], sends_head=False),
    "silent": Reply([Pause(2)], sends_head=False),
    "role-then-reset": stream(D(ROLE_DELTA), Reset()),
    "cut": stream(D({"content": "x"}), Close()),
    "garbage": stream(D({"content": "x"}), b"data: {\n\n"),
    "error-first": stream(error_frame()),
    "error-later": stream(D({"content": "x"}), error_frame()),
    "abort": stream(D({"content": "x"}), D({}, "abort"), DONE),
    "idle": stream(D({"content": "x"}), Pause(2)),
    "empty": whole(b""),
    "whole": whole(Canned("x").whole()),
}


@pytest.mark.parametrize("name", WAYS_OUT)
def test_however_a_backend_fails(surfaces: Surfaces, name: str) -> None:
    surfaces.backend.play(WAYS_OUT[name])
    surfaces.backend.routes["POST", "/tokenize"] = WAYS_OUT[name]
    asked = [("/v1/messages/count_tokens", REQ(**SAID))]
    for streamed in (True, False):
        asked.append(("/v1/messages", REQ(stream=streamed, **SAID)))
        asked.append(
            (
                "/v1/chat/completions",
                {"model": "m", "stream": streamed, "messages": SAID["messages"]},
            )
        )
    with ThreadPoolExecutor(len(asked)) as threads:
        list(threads.map(lambda ask: surfaces.ask(*ask), asked))
    assert len(surfaces.received) == len(asked)
    surfaces.assert_hidden(KEY, PROMPT, hashlib.sha256(KEY.encode()).hexdigest())
    assert POOL_KEY not in "".join(
        text for name, text in surfaces.all().items() if name != "upstream heads"
    )


TEXT = {"type": "text", "text": PROMPT}
USER = {"role": "user", "content": PROMPT}


def user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


INVALID: dict[str, Any] = {
    "not-json": b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"%s"'
    % PROMPT.encode(),
    "not-utf-8": b'{"messages":"%s\xff"}' % PROMPT.encode(),
    "deep": b'{"x":' + b"[" * 20_000 + PROMPT.encode(),
    "messages": REQ(messages=PROMPT),
    "message": REQ(messages=[PROMPT]),
    "role": REQ(messages=[{"role": PROMPT, "content": "x"}]),
    "content": REQ(messages=[{"role": "user", "content": {"text": PROMPT}}]),
    "block-type": REQ(**user({"type": "video", "text": PROMPT, "source": {"data": PROMPT}})),
    "block-text": REQ(**user({"type": "text", "text": [PROMPT]})),
    "image": REQ(
        **user(
            TEXT,
            {"type": "image", "source": {"type": "base64", "media_type": PROMPT, "data": PROMPT}},
        )
    ),
    "image-url": REQ(
        **user(
            TEXT, {"type": "image", "source": {"type": "url", "url": f"http://10.0.0.1/{PROMPT}"}}
        )
    ),
    "document": REQ(
        **user(
            TEXT,
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": PROMPT},
            },
        )
    ),
    "document-url": REQ(
        **user(
            TEXT,
            {"type": "document", "source": {"type": "url", "url": f"http://10.0.0.1/{PROMPT}"}},
        )
    ),
    "tool-result": REQ(**user({"type": "tool_result", "tool_use_id": PROMPT, "content": PROMPT})),
    "tool-use": REQ(
        messages=[
            USER,
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": 1, "name": "F", "input": PROMPT}],
            },
        ]
    ),
    "system": REQ(system={"text": PROMPT}),
    "max-tokens": REQ(max_tokens=PROMPT),
    "temperature": REQ(temperature=PROMPT),
    "stop": REQ(stop_sequences=[[PROMPT]]),
    "tools": REQ(tools=[{"name": PROMPT}]),
    "tool-schema": REQ(tools=[{"name": "F", "input_schema": PROMPT}]),
    "tool-choice": REQ(
        tool_choice={"type": "tool", "name": "G"},
        tools=[{"name": "F", "description": PROMPT, "input_schema": {}}],
    ),
    "thinking": REQ(thinking={"type": PROMPT}),
    "effort": REQ(output_config={"effort": PROMPT}, messages=[USER]),
    "metadata": REQ(metadata={"user_id": [PROMPT]}, messages=[USER]),
    "unknown-member": REQ(messages=[USER], no_such_member=PROMPT),
    "unknown-model": REQ(model="nobody", **SAID),
    "no-model": REQ(model=None, **SAID),
    "too-large": REQ(messages=[{"role": "user", "content": PROMPT * 100_000}]),
    "bomb": gzip.compress(
        json.dumps(REQ(messages=[{"role": "user", "content": PROMPT * 200_000}])).encode()
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_however_a_request_is_wrong(surfaces: Surfaces, name: str) -> None:
    headers = {"content-encoding": "gzip"} if name == "bomb" else {}
    for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions"):
        surfaces.ask(path, INVALID[name], headers)
    surfaces.assert_hidden(KEY, PROMPT)


BASIC = base64.b64encode(f"{KEY}:".encode()).decode()


def test_however_a_key_is_wrong(surfaces: Surfaces) -> None:
    body = REQ(**SAID)
    wrong = [
        {"x-api-key": KEY + "x"},
        {"x-api-key": KEY[:-1], "authorization": f"Bearer {KEY}x"},
        {"x-api-key": "", "authorization": f"Basic {BASIC}"},
        {"x-api-key": "", "authorization": f"Token {KEY}"},
        {"x-api-key": "k" * 8000 + KEY},
        {"x-api-key": KEY + "\xe9"},
    ]
    for headers in wrong:
        for path in (
            "/v1/messages",
            "/v1/chat/completions",
            "/v1/models",
            "/v1/models/m",
            "/no/such/route",
            "/",
        ):
            surfaces.ask(
                path,
                None if "model" in path else body,
                headers,
                "GET" if "models" in path else "POST",
            )
    for number in (b"x" * 70_000, b"\x01"):
        head = (
            b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: "
            + KEY.encode()
            + number
            + b"\r\ncontent-length: 0\r\n\r\n"
        )
        surfaces.received.append(surfaces.proxy.client.raw(head).decode(errors="replace"))
    surfaces.assert_hidden(KEY[:-1], BASIC, PROMPT)


def test_a_client_that_leaves_takes_its_secrets_along(surfaces: Surfaces) -> None:
    surfaces.backend.play(stream(D({"content": "x"}), Pause(3)))
    with surfaces.proxy.open_stream(headers=KEYED, **SAID) as answer:
        answer.read_some()
        answer.reset()
    half = json.dumps(REQ(**SAID)).encode()[:-5]
    head = (
        f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\ncontent-length: "
        f"{len(half) + 5}\r\n\r\n"
    ).encode()
    surfaces.received.append(surfaces.proxy.client.raw(head + half).decode(errors="replace"))
    surfaces.proxy.wait_for_metric("streams_active", 0)
    surfaces.assert_hidden(KEY, PROMPT)


def test_what_a_backend_quotes_of_a_prompt_goes_to_its_sender_alone(surfaces: Surfaces) -> None:
    """An engine's refusal may quote the request; only who sent it sees that."""
    surfaces.backend.play(refusal(400, f"1 validation error: input {PROMPT}"))
    surfaces.ask("/v1/messages", REQ(**SAID))
    surfaces.received.clear()
    surfaces.assert_hidden(KEY, PROMPT)
