"""Headers and small routes: what clients probe, what is added, what never passes in either
direction."""

from __future__ import annotations

import pytest
from tests.doubles.backend import ScriptedBackend, refusal, stream, whole
from tests.doubles.frames import Canned
from tests.doubles.proxy import Ferrule, assert_error


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_k07_the_root_answers(proxy: Ferrule, method: str) -> None:
    assert proxy.client.request(method, "/").status == 200


def test_k07_a_doubled_prefix_gets_a_hint(proxy: Ferrule) -> None:
    message = assert_error(proxy.ask("/v1/v1/messages"), 404, "not_found_error")
    assert "/v1" in message


def test_k07_event_logging_is_refused_quietly(proxy: Ferrule) -> None:
    assert_error(
        proxy.client.post("/api/event_logging/batch", {"events": []}), 404, "not_found_error"
    )


def test_l13_routing_headers_of_a_client_are_ignored(
    proxy: Ferrule, backend: ScriptedBackend
) -> None:
    forged = {
        "x-ferrule-backend": "evil",
        "x-ferrule-affinity": "evil",
        "x-ferrule-dropped": "evil",
    }
    answer = proxy.ask(headers=forged)
    assert "evil" not in str(answer.headers)
    assert not [value for _, value in backend.last.headers if "evil" in value]
    assert answer.headers["x-ferrule-affinity"] in ("home", "spill", "failover", "none")
    assert answer.headers["x-ferrule-backend"]
    assert str(backend.port) not in answer.headers["x-ferrule-backend"]


STEERING = [
    "x-data-parallel-rank",
    "x-session-id",
    "x-vllm-priority",
    "x-conversation-id",
    "x-smg-routing-key",
    "x-request-id",
    "endpoint-load-metrics-format",
    "x-anything",
]
PRIVATE = [
    "cookie",
    "x-forwarded-for",
    "forwarded",
    "via",
    "x-api-key",
    "authorization",
    "proxy-authorization",
]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
@pytest.mark.parametrize("name", [*STEERING, *PRIVATE])
def test_p13_client_headers_go_upstream_by_list_only(
    proxy: Ferrule, backend: ScriptedBackend, name: str, path: str
) -> None:
    assert proxy.ask(path, headers={name: "canary-value"}).status == 200
    assert not [key for key, value in backend.last.headers if "canary-value" in value]


def test_p11_cookies_of_a_backend_stay_behind(proxy: Ferrule, backend: ScriptedBackend) -> None:
    cookie = [("set-cookie", "s=1")]
    kind = [("content-type", "text/event-stream")]
    backend.play(
        whole(Canned("x").whole(), headers=cookie),
        stream(*Canned("x").frames(), headers=kind + cookie),
        refusal(400, "no", cookie),
    )
    for streamed in (False, True, False):
        assert proxy.ask(stream=streamed).headers["set-cookie"] is None
    assert backend.last.header("cookie") is None


def test_p17_nothing_is_cached(proxy: Ferrule) -> None:
    for answer in (
        proxy.ask(),
        proxy.ask(model="nope"),
        proxy.client.get("/v1/models"),
        proxy.ask("/v1/messages/count_tokens"),
    ):
        assert answer.headers["cache-control"] in ("no-store", "no-cache")
    streamed = proxy.stream()
    assert streamed.headers["cache-control"] == "no-cache"
    assert streamed.headers["x-accel-buffering"] == "no"
    assert streamed.headers["content-type"].startswith("text/event-stream")


def test_every_answer_has_a_request_id_of_its_own(proxy: Ferrule) -> None:
    answers = [
        proxy.ask(),
        proxy.ask(model="nope"),
        proxy.client.get("/v1/models"),
        proxy.client.get("/nothing"),
        proxy.client.get("/"),
    ]
    ids = [answer.headers["request-id"] for answer in answers] + [
        proxy.stream().headers["request-id"]
    ]
    assert None not in ids
    assert len(set(ids)) == len(ids)


def test_rate_limit_headers_of_a_backend_stay_behind(
    proxy: Ferrule, backend: ScriptedBackend
) -> None:
    leaks = [
        ("anthropic-ratelimit-unified-status", "rejected"),
        ("x-ratelimit-limit", "1"),
        ("openai-organization", "o"),
    ]
    backend.play(whole(Canned("x").whole(), headers=leaks))
    headers = proxy.ask().headers
    assert [headers[name] for name, _ in leaks] == [None, None, None]


def test_api_prefix_reaches_the_same_routes(proxy: Ferrule, backend: ScriptedBackend) -> None:
    assert proxy.ask("/api/v1/messages?beta=true").status == 200
    assert proxy.ask("/api/v1/chat/completions").status == 200
    assert proxy.ask("/api/v1/messages/count_tokens?x=y").status == 200
    assert [seen.target for seen in backend.requests] == ["/v1/chat/completions"] * 2


def test_accept_does_not_decide_on_streaming(proxy: Ferrule) -> None:
    for headers in ({"accept": "application/json"}, {"x-stainless-timeout": "NOT_GIVEN"}):
        assert proxy.stream(headers=headers).message["stop_reason"] == "end_turn"
    assert proxy.message()["type"] == "message"


def test_cors_is_off(proxy: Ferrule) -> None:
    answer = proxy.ask(headers={"origin": "https://evil.example"})
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]
