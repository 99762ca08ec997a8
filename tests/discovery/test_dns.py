"""DNS discovery with a scripted resolver and a clock that moves when the watcher sleeps."""

import asyncio
import socket
from collections.abc import Sequence

import pytest

from ferrule.discovery.dns import DnsName, build_url, resolve_addresses
from ferrule.routing.backend import BackendSpec

Outcome = Sequence[str] | Exception


class ScriptedResolver:
    """Gives its outcomes in turn; the watch ends when they are used up."""

    def __init__(self, *answers: Outcome) -> None:
        self.answers = list(answers)
        self.asked_at: list[float] = []
        self.lists: list[list[str]] = []
        self.ages: list[float] = []
        self.now = 0.0
        self.watcher = DnsName(
            "vllm.svc", 8000, 5.0, resolve=self.resolve, clock=lambda: self.now, sleep=self.sleep
        )

    async def resolve(self, host: str, port: int) -> list[str]:
        assert (host, port) == ("vllm.svc", 8000)
        self.asked_at.append(self.now)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.ages.append(self.watcher.age_s())
        if not self.answers:
            raise asyncio.CancelledError

    async def run(self) -> "ScriptedResolver":
        with pytest.raises(asyncio.CancelledError):
            await self.watcher.watch(self.on_change)
        return self

    def on_change(self, specs: list[BackendSpec]) -> None:
        self.lists.append([spec.url for spec in specs])


async def test_a_change_is_reported_within_the_interval() -> None:
    resolver = await ScriptedResolver(
        ["10.0.0.1", "10.0.0.2"], ["10.0.0.2", "10.0.0.1"], ["10.0.0.2", "10.0.0.3"]
    ).run()
    assert resolver.lists == [
        ["http://10.0.0.1:8000", "http://10.0.0.2:8000"],
        ["http://10.0.0.2:8000", "http://10.0.0.3:8000"],
    ]
    assert resolver.asked_at == [0.0, 5.0, 10.0]


@pytest.mark.parametrize(
    "failure",
    [
        socket.gaierror(socket.EAI_NONAME, "no such name"),
        socket.gaierror(socket.EAI_AGAIN, "try again"),
        TimeoutError(),
        UnicodeError("label too long"),
    ],
)
async def test_a_failure_keeps_the_last_list_and_lets_it_age(failure: Exception) -> None:
    resolver = await ScriptedResolver(["10.0.0.1"], failure, failure, ["10.0.0.1"]).run()
    assert resolver.lists == [["http://10.0.0.1:8000"]]
    assert resolver.ages == [5.0, 10.0, 15.0, 5.0]


async def test_it_starts_unresolved_and_resolves_later() -> None:
    resolver = await ScriptedResolver(
        socket.gaierror(socket.EAI_NONAME, "no such name"), ["10.0.0.1"]
    ).run()
    assert resolver.lists == [["http://10.0.0.1:8000"]]


async def test_an_outage_becomes_stale() -> None:
    resolver = await ScriptedResolver(["10.0.0.1"], *[OSError()] * 10).run()
    assert resolver.ages[-1] > resolver.watcher.stale_after_s > resolver.ages[1]


async def test_a_repeated_address_is_one_backend() -> None:
    resolver = await ScriptedResolver(["10.0.0.1", "10.0.0.1"]).run()
    assert resolver.lists == [["http://10.0.0.1:8000"]]


@pytest.mark.parametrize(
    ("address", "url"), [("10.0.0.1", "http://10.0.0.1:80"), ("fd00::1", "http://[fd00::1]:80")]
)
def test_addresses_of_both_families(address: str, url: str) -> None:
    assert build_url(address, 80) == url


async def test_the_system_resolver_answers_for_a_literal_address() -> None:
    assert set(await resolve_addresses("127.0.0.1", 80)) == {"127.0.0.1"}
