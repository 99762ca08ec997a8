"""Routing: a session stays with its backend, spills where it must, and fails over where that has
died."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.backend import Hold, ScriptedBackend, stream
from tests.doubles.frames import Canned, D
from tests.doubles.proxy import Ferrule, config_for

SESSION = "x-claude-code-session-id"
Trio = tuple[Ferrule, list[ScriptedBackend]]


@pytest.fixture(scope="module")
def shared_trio(
    new_backend: Callable[..., ScriptedBackend], new_proxy: Callable[..., Ferrule]
) -> Trio:
    backends = [new_backend() for _ in range(3)]
    pool = {"health": {"interval_s": 0.3, "timeout_s": 0.3, "fall": 2, "rise": 1}, "slots": 2}
    return new_proxy(config_for(*(backend.url for backend in backends), pool=pool)), backends


@pytest.fixture
def trio(shared_trio: Trio) -> Trio:
    for backend in shared_trio[1]:
        backend.reset()
    return shared_trio


def served(backends: list[ScriptedBackend]) -> list[int]:
    return [len(backend.requests) for backend in backends]


def test_one_session_one_backend_on_every_route(trio: Trio) -> None:
    proxy, backends = trio
    for n in range(12):
        for backend in backends:
            backend.reset()
        headers = {SESSION: f"session-{n}"}
        names = {
            proxy.ask(headers=headers).headers["x-ferrule-backend"],
            proxy.stream(headers=headers).headers["x-ferrule-backend"],
            proxy.ask("/v1/chat/completions", headers=headers).headers["x-ferrule-backend"],
        }
        assert len(names) == 1
        assert sorted(served(backends)) == [0, 0, 3]


def test_sessions_are_spread(trio: Trio) -> None:
    proxy, backends = trio
    for n in range(60):
        assert proxy.ask(headers={SESSION: f"spread-{n}"}).headers["x-ferrule-affinity"] == "home"
    assert min(served(backends)) >= 8


UUID = "3f0c3f5e-7a34-4c8b-9d2e-0123456789ab"
USER_IDS = [
    f"user_{'a' * 64}_account__session_{UUID}",
    json.dumps({"device_id": "a" * 64, "account_uuid": "", "session_id": UUID}),
    json.dumps({"ti": "x", "team": 1, "device_id": "a" * 64, "session_id": UUID}),
]


def test_assertion_48_the_forms_of_user_id_are_one_session(trio: Trio) -> None:
    proxy, _ = trio
    homes = {
        proxy.ask(metadata={"user_id": user_id}).headers["x-ferrule-backend"]
        for user_id in USER_IDS
    }
    homes.add(proxy.ask(headers={SESSION: UUID}).headers["x-ferrule-backend"])
    assert len(homes) == 1
    for odd in ("junk", "{", "", None, json.dumps({"session_id": 7}), json.dumps([])):
        assert proxy.ask(metadata={"user_id": odd}).status == 200


def test_one_user_with_many_sessions_is_spread(trio: Trio) -> None:
    proxy, backends = trio
    for n in range(30):
        proxy.ask(metadata={"user_id": json.dumps({"device_id": "same", "session_id": f"{n}"})})
    assert min(served(backends)) >= 3


def test_k11_the_opening_of_the_conversation_is_the_key(trio: Trio) -> None:
    proxy, _ = trio
    homes = Counter[str]()
    for n in range(12):
        opening: list[Any] = [{"role": "user", "content": f"question {n}"}]
        more = [
            *opening,
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": "more"},
        ]
        noted = f"x-anthropic-billing-header: cch={n:05x};\nS"
        names = {
            proxy.ask(messages=turn, system=system).headers["x-ferrule-backend"]
            for turn, system in ((opening, "S"), (more, noted))
        }
        assert len(names) == 1
        homes.update(names)
    assert len(homes) > 1


def test_l03_a_full_home_spills_and_the_session_stays_there(trio: Trio) -> None:
    proxy, backends = trio
    hold = Hold()
    for backend in backends:
        backend.play(stream(D({"content": "x"}), hold, D({}, "stop"), b"data: [DONE]\n\n"))
    headers = {SESSION: "heavy"}

    def turn(_: int) -> tuple[str | None, str | None]:
        answer = proxy.stream(headers=headers).headers
        return answer["x-ferrule-affinity"], answer["x-ferrule-backend"]

    with ThreadPoolExecutor(6) as threads:
        turns = []
        for n in range(5):
            turns.append(threads.submit(turn, n))
            deadline = time.monotonic() + 5
            while sum(served(backends)) <= n and time.monotonic() < deadline:
                time.sleep(0.01)
        hold.release()
        branches = [done.result() for done in turns]
    assert [branch for branch, _ in branches[:2]] == ["home", "home"]
    spilled = {name for branch, name in branches if branch == "spill"}
    assert len(spilled) == 1
    assert spilled.isdisjoint({name for branch, name in branches if branch == "home"})


def test_l01_a_backend_that_died_is_skipped(trio: Trio) -> None:
    proxy, backends = trio
    victim = backends[0]
    homes: dict[str, str | None] = {}
    bereft = set()
    for session in (f"l01-{n}" for n in range(30)):
        served_before = len(victim.requests)
        homes[session] = proxy.ask(headers={SESSION: session}).headers["x-ferrule-backend"]
        if len(victim.requests) > served_before:
            bereft.add(session)
    victim.stop()
    moved = set()
    for session, home in homes.items():
        begin = time.monotonic()
        answer = proxy.ask(headers={SESSION: session})
        assert answer.status == 200
        assert time.monotonic() - begin < 2
        if answer.headers["x-ferrule-backend"] != home:
            moved.add(session)
    assert 0 < len(bereft) < 30
    assert moved == bereft
    victim.start()
    proxy.wait_for_metric("backend_healthy", 3)
    returned = time.monotonic()
    for n in range(30):
        assert proxy.ask(headers={SESSION: f"l01-later-{n}"}).status == 200
    assert victim.requests[-1].at > returned, "it gets new sessions again"


def test_one_of_three_killed_under_live_streams(trio: Trio) -> None:
    proxy, backends = trio
    hold = Hold()
    for backend in backends:
        backend.play(stream(D({"content": "x"}), hold, D({}, "stop"), b"data: [DONE]\n\n"))
    with ThreadPoolExecutor(24) as threads:
        turns = [threads.submit(proxy.stream, headers={SESSION: f"kill-{n}"}) for n in range(24)]
        deadline = time.monotonic() + 5
        while sum(served(backends)) < 24 and time.monotonic() < deadline:
            time.sleep(0.02)
        lost = len(backends[1].requests)
        time.sleep(0.2)
        backends[1].stop()
        for n in range(10):
            backends[0].play(Canned("new"))
            backends[2].play(Canned("new"))
            assert proxy.ask(headers={SESSION: f"new-{n}"}).status == 200
        hold.release()
        ends = Counter(turn.result().events[-1].name for turn in turns)
    assert ends == {"error": lost, "message_stop": 24 - lost}
    assert 0 < lost < 24
    backends[1].start()
    proxy.wait_for_metric("backend_healthy", 3)


def test_routing_is_counted(trio: Trio) -> None:
    proxy, _ = trio
    before = proxy.metric("routing_decisions_total", branch="home")
    proxy.ask(headers={SESSION: "counted"})
    proxy.wait_for_metric("routing_decisions_total", before + 1, branch="home", pool="p")


def test_l09_a_backend_listed_twice_is_refused(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9"
    proxy = Ferrule(config_for(url, url), tmp_path, waits=False)
    assert proxy.process.wait(15) == 1
    assert "pools.p.backends" in proxy.log()


def test_l11_no_backend_answers(tmp_path: Path) -> None:
    with Ferrule(config_for("http://127.0.0.1:9"), tmp_path, waits=False) as proxy:
        proxy.wait_for_readyz(503)
        assert proxy.admin_get("/livez").status == 200
