"""Two real vLLMs: a session that returns to its backend finds its prefix in the cache, one that is
dealt out in turn does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.doubles.proxy import Ferrule
from tests.engines.conftest import vllm_config
from tests.engines.servers import Vllm

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
SESSIONS = 6
TURNS = 3


def play(
    proxy: Ferrule, label: str, model: Callable[[int, int], str]
) -> tuple[list[list[int]], list[set[str]]]:
    """Cached tokens by session and turn, and the backends of each session. `model` picks the model
    id of a session's turn."""
    cached, backends = [], []
    for session in range(SESSIONS):
        system = (
            f"{label} {session}: " + f"You are agent {session} and remember what was said. " * 40
        )
        messages: list[dict[str, Any]] = []
        cached.append([])
        backends.append(set())
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"Turn {turn}. [[script:greeting]]"})
            headers = {"x-claude-code-session-id": f"{label}-{session}"}
            streamed = proxy.stream(
                headers=headers,
                model=model(session, turn),
                system=system,
                messages=list(messages),
                max_tokens=100,
            )
            message = streamed.message
            messages.append({"role": "assistant", "content": message["content"]})
            cached[-1].append(message["usage"]["cache_read_input_tokens"])
            backends[-1].add(str(streamed.headers["x-ferrule-backend"]))
    return cached, backends


@pytest.mark.cell("vLLM × 2", "cache hits")
def test_sticky_sessions_hit_the_cache(
    vllm: Vllm, second_vllm: Vllm, new_proxy: Callable[..., Ferrule]
) -> None:
    config = vllm_config(vllm.url, second_vllm.url)
    for name, server in (("first", vllm), ("second", second_vllm)):
        config["pools"][name] = {"backends": [server.url], "system_first": True}
        config["models"].append({"id": name, "pool": name, "upstream": "tiny"})
    proxy = new_proxy(config)

    before = vllm.metric("vllm:prefix_cache_hits_total") + second_vllm.metric(
        "vllm:prefix_cache_hits_total"
    )
    sticky, backends = play(proxy, "sticky", lambda session, turn: "tiny")
    hits = (
        vllm.metric("vllm:prefix_cache_hits_total")
        + second_vllm.metric("vllm:prefix_cache_hits_total")
        - before
    )
    dealt, _ = play(proxy, "dealt", lambda session, turn: ("first", "second")[turn % 2])

    assert all(len(those) == 1 for those in backends), "a session changed its backend"
    assert len(set.union(*backends)) == 2, "all sessions went to one backend"
    assert all(turns[0] == 0 and turns[1] > 0 and turns[2] >= turns[1] for turns in sticky), sticky
    assert hits >= sum(map(sum, sticky)) > 0
    assert all(turns[1] == 0 for turns in dealt), dealt
    assert sum(map(sum, sticky)) > 1.5 * sum(map(sum, dealt))
