"""A name whose addresses change under load. The hosts file that the proxy's resolver reads is our
own, in a mount namespace of its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.doubles.proxy import ROOT, Ferrule, config_for, free_port
from tests.resilience.crowd import SESSION, Crowd, bad, crowd, until

NAME = "engines.test"
INTERVAL_S = 1.0


def can_unshare() -> bool:
    unshare = shutil.which("unshare")
    return (
        unshare is not None
        and subprocess.run([unshare, "-rm", "true"], check=False, capture_output=True).returncode
        == 0
    )


pytestmark = pytest.mark.skipif(not can_unshare(), reason="no mount namespaces here")


@pytest.fixture
def named_sims() -> Iterator[tuple[int, list[str]]]:
    """Three engines on one port of three addresses."""
    port, hosts = free_port(), ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    command = [
        sys.executable,
        "-m",
        "ferrule",
        "sim",
        "--scripted",
        "--model",
        "m",
        "--tokens-per-second",
        "20",
        "--port",
        str(port),
    ]
    made = [
        subprocess.Popen(
            [*command, "--host", host],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
        )
        for host in hosts
    ]
    for sim in made:
        assert sim.stdout is not None
        assert "serves" in sim.stdout.readline()
    yield port, hosts
    for sim in made:
        sim.kill()
        sim.wait(5)
        assert sim.stdout is not None
        sim.stdout.close()


class Resolver:
    """What NAME resolves to."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "hosts"

    def say(self, *addresses: str) -> None:
        self.file.write_text(
            "127.0.0.1 localhost\n" + "".join(f"{address} {NAME}\n" for address in addresses)
        )

    def command(self) -> list[str]:
        """What to put in front of a command for it to ask this resolver."""
        return [
            "unshare",
            "-rm",
            "sh",
            "-c",
            f'mount --bind "{self.file}" /etc/hosts && exec "$@"',
            "sh",
        ]


async def test_addresses_change_under_load(
    named_sims: tuple[int, list[str]], tmp_path: Path
) -> None:
    port, hosts = named_sims
    resolver = Resolver(tmp_path)
    resolver.say(*hosts[:2])
    pool = {
        "backends": [],
        "discover": {"dns": f"{NAME}:{port}", "interval_s": INTERVAL_S},
        "slots": 1000,
        "max_inflight": 1000,
    }
    config = config_for(pool={**pool, "health": {"interval_s": 1, "timeout_s": 1}})
    del config["pools"]["p"]["backends"]
    with Ferrule(config, tmp_path, before=resolver.command()) as proxy:

        def members() -> dict[str, str]:
            """address → name"""
            backends = [
                backend
                for backend in proxy.status()["pools"][0]["backends"]
                if not backend["draining"]
            ]
            return {
                backend["address"].removeprefix("http://").partition(":")[0]: backend["name"]
                for backend in backends
            }

        assert set(members()) == set(hosts[:2])
        is_over = asyncio.Event()

        async def session(clients: Crowd, n: int) -> None:
            turn = 0
            while not is_over.is_set():
                turn += 1
                await clients.stream(f"short-{n}-{turn}", 2)

        async with crowd(proxy) as clients:
            long = [asyncio.create_task(clients.stream(f"long-{n}", 120)) for n in range(60)]
            await until(
                lambda: len(clients.turns) == 60 and all(turn.moments for turn in clients.turns),
                10,
                "the long streams to run",
            )
            short = [asyncio.create_task(session(clients, n)) for n in range(20)]
            for added, now in ((hosts[2], hosts[1:]), (hosts[0], hosts[:1])):
                resolver.say(*now)
                changed = time.monotonic()
                await until(lambda now=now: set(members()) == set(now), 5, f"{now} to be known")  # type: ignore[misc]
                assert time.monotonic() - changed < INTERVAL_S + 0.5
                name = members()[added]
                await until(
                    lambda name=name, at=changed: name in used_since(clients, at),
                    5,
                    "the new address to be used",
                )  # type: ignore[misc]
            resolver.file.write_text("")  # a name that does not resolve keeps the last list
            await until(lambda: "does not resolve" in proxy.log(), 5, "the failure to resolve")
            assert set(members()) == set(hosts[:1])
            is_over.set()
            await asyncio.gather(*short, *long)
            assert bad(clients.turns) == [], "old streams complete, new ones do not fail"
            assert (
                await clients.ask(
                    headers={SESSION: "last"},
                    messages=[{"role": "user", "content": "[[tokens:1]]"}],
                )
            ).status == 200


def used_since(clients: Crowd, moment: float) -> set[str]:
    return {turn.backend for turn in clients.turns if turn.began > moment and turn.status == 200}
