"""DNS, by a scripted resolver and a clock that moves when the watcher sleeps."""

import asyncio
import socket
from collections.abc import Sequence

import pytest

from ferrule.discovery.dns import DnsName, system_addresses, url_of
from ferrule.routing.backend import BackendSpec

Answer = Sequence[str] | Exception


class Script:
    """Answers in turn; the watch ends when they are used up."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[float] = []
        self.lists: list[list[str]] = []
        self.ages: list[float] = []
        self.now = 0.0
        self.watcher = DnsName(
            "vllm.svc", 8000, 5.0, resolve=self.resolve, clock=lambda: self.now, sleep=self.sleep
        )

    async def resolve(self, host: str, port: int) -> list[str]:
        assert (host, port) == ("vllm.svc", 8000)
        self.asked.append(self.now)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.ages.append(self.watcher.age_s())
        if not self.answers:
            raise asyncio.CancelledError

    async def run(self) -> "Script":
        with pytest.raises(asyncio.CancelledError):
            await self.watcher.watch(self.on_change)
        return self

    def on_change(self, specs: list[BackendSpec]) -> None:
        self.lists.append([spec.url for spec in specs])


async def test_a_changed_answer_is_told_within_the_interval() -> None:
    script = await Script(
        ["10.0.0.1", "10.0.0.2"], ["10.0.0.2", "10.0.0.1"], ["10.0.0.2", "10.0.0.3"]
    ).run()
    assert script.lists == [
        ["http://10.0.0.1:8000", "http://10.0.0.2:8000"],
        ["http://10.0.0.2:8000", "http://10.0.0.3:8000"],
    ]
    assert script.asked == [0.0, 5.0, 10.0]


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
    script = await Script(["10.0.0.1"], failure, failure, ["10.0.0.1"]).run()
    assert script.lists == [["http://10.0.0.1:8000"]]
    assert script.ages == [5.0, 10.0, 15.0, 5.0]


async def test_it_starts_without_an_answer_and_finds_one_later() -> None:
    script = await Script(socket.gaierror(socket.EAI_NONAME, "no such name"), ["10.0.0.1"]).run()
    assert script.lists == [["http://10.0.0.1:8000"]]


async def test_an_outage_becomes_stale() -> None:
    script = await Script(["10.0.0.1"], *[OSError()] * 10).run()
    assert script.ages[-1] > script.watcher.stale_after_s > script.ages[1]


async def test_a_repeated_address_is_one_backend() -> None:
    script = await Script(["10.0.0.1", "10.0.0.1"]).run()
    assert script.lists == [["http://10.0.0.1:8000"]]


@pytest.mark.parametrize(
    ("address", "url"), [("10.0.0.1", "http://10.0.0.1:80"), ("fd00::1", "http://[fd00::1]:80")]
)
def test_addresses_of_both_families(address: str, url: str) -> None:
    assert url_of(address, 80) == url


async def test_the_system_resolver_answers_for_a_literal_address() -> None:
    assert set(await system_addresses("127.0.0.1", 80)) == {"127.0.0.1"}
