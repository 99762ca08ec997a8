"""`make soak`: runs 300 streams for ten minutes, of which clients abort a fifth, and prints the
growth of memory and descriptors.

    .venv/bin/python bench/soak.py [--seconds 600] [--streams 300]

Exit status 1 if memory or descriptors grow, a stream is left at the end, or a reply failed.
"""

import argparse
import asyncio
import os
import random
import re
import statistics
import sys
import time
from pathlib import Path

import aiohttp
import msgspec

from peers import FERRULE
from rig import Proxy, Rig, list_process_tree, measure_resident_kb

_ABORTED_SHARE = 0.2
_SAMPLE_S = 5.0
# Caches and pools fill up at first; growth after that is a leak.
_WARM_SHARE = 0.3
_MOST_KB_PER_MIN = 300.0
_MOST_FDS_PER_MIN = 3.0
_SIM = ["-m", "ferrule", "sim", "--tokens-per-second", "10", "--scripted", "--reasoning"]


class Point(msgspec.Struct):
    at_s: float
    resident_kb: int
    descriptors: int
    streams: float


class Tally(msgspec.Struct):
    whole: int = 0
    aborted: int = 0
    failed: int = 0


async def _run_client(
    http: aiohttp.ClientSession, url: str, until_s: float, dice: random.Random, tally: Tally
) -> None:
    """One stream after another, all of one session; aborts every fifth on average."""
    # Sessions are remembered for a while, so a new one per stream would look like a leak.
    headers = {"x-claude-code-session-id": str(dice.random())}
    while time.monotonic() < until_s:
        tokens = dice.randint(10, 80)
        leaves_at = dice.randint(1, tokens) if dice.random() < _ABORTED_SHARE else None
        message = {"role": "user", "content": f"{dice.random()} [[tokens:{tokens}]]"}
        body = {"model": "m", "max_tokens": 200, "stream": True, "messages": [message]}
        try:
            async with http.post(url, data=msgspec.json.encode(body), headers=headers) as response:
                seen, ended = 0, False
                async for line in response.content:
                    seen += line.startswith(b"event: content_block_delta")
                    ended = ended or line.startswith(b"event: message_stop")
                    if leaves_at is not None and seen >= leaves_at:
                        response.close()
                        break
                tally.aborted += leaves_at is not None and not ended
                tally.whole += ended
                tally.failed += leaves_at is None and not ended
        except aiohttp.ClientError:
            tally.failed += 1


async def _watch(
    http: aiohttp.ClientSession, proxy: Proxy, admin: str, points: list[Point]
) -> None:
    begun_s = time.monotonic()
    while True:
        await asyncio.sleep(_SAMPLE_S)
        point = await _take_point(http, proxy, admin, time.monotonic() - begun_s)
        points.append(point)
        print(
            f"{point.at_s:6.0f} s {point.resident_kb:8d} kB {point.descriptors:5d} descriptors "
            f"{point.streams:4.0f} streams",
            flush=True,
        )


async def _take_point(http: aiohttp.ClientSession, proxy: Proxy, admin: str, at_s: float) -> Point:
    async with http.get(f"{admin}/metrics") as response:
        gauges = re.findall(
            r"^ferrule_streams_active\S* (\S+)$", await response.text(), re.MULTILINE
        )
    return Point(
        at_s, measure_resident_kb(proxy.pid), _count_descriptors(proxy.pid), sum(map(float, gauges))
    )


def _count_descriptors(pid: int) -> int:
    return sum(
        len(os.listdir(f"/proc/{member}/fd"))
        for member in list_process_tree(pid)
        if Path(f"/proc/{member}/fd").exists()
    )


def fit_slope_per_min(points: list[Point], name: str) -> float:
    if len(points) < 3:
        return 0.0
    times = [point.at_s / 60 for point in points]
    return statistics.linear_regression(
        times, [float(getattr(point, name)) for point in points]
    ).slope


async def _soak(proxy: Proxy, admin: str, seconds: float, streams: int) -> int:
    url, tally, points = f"http://127.0.0.1:{proxy.port}/v1/messages", Tally(), []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=120)
    ) as http:
        watcher = asyncio.create_task(_watch(http, proxy, admin, points))
        until_s = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for number in range(streams):
                group.create_task(_run_client(http, url, until_s, random.Random(number), tally))
        watcher.cancel()
        await asyncio.sleep(_SAMPLE_S)
        last = await _take_point(http, proxy, admin, seconds)
    settled = [
        point for point in points if point.at_s >= _WARM_SHARE * seconds and point.at_s <= seconds
    ]
    return _print_report(tally, settled, last)


def _print_report(tally: Tally, settled: list[Point], last: Point) -> int:
    memory, descriptors = (
        fit_slope_per_min(settled, "resident_kb"),
        fit_slope_per_min(settled, "descriptors"),
    )
    rows = (
        ("memory", f"{memory:+.1f} kB a minute", memory <= _MOST_KB_PER_MIN),
        ("descriptors", f"{descriptors:+.2f} a minute", descriptors <= _MOST_FDS_PER_MIN),
        ("streams left over", f"{last.streams:.0f}", last.streams == 0),
        (
            "replies",
            f"{tally.whole} whole, {tally.aborted} aborted, {tally.failed} failed",
            tally.failed == 0 and tally.whole > 0,
        ),
    )
    for name, value, holds in rows:
        print(f"{'ok' if holds else 'NO':4s}{name:20s}{value}")
    return 0 if all(holds for _, _, holds in rows) else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--streams", type=int, default=300)
    args = parser.parse_args()
    with Rig() as rig:
        rig.start_backend([sys.executable, *_SIM, "--model", "m"])
        proxy = rig.launch(FERRULE)
        return asyncio.run(
            _soak(proxy, f"http://127.0.0.1:{proxy.admin_port}", args.seconds, args.streams)
        )


if __name__ == "__main__":
    sys.exit(main())
