"""`make bench`: ferrule, a direct connection, nginx and the peers that are installed, turn by turn
in one run against one mock.

    .venv/bin/python bench/run.py [--rounds 3] [--only ferrule,nginx] [--skip counting,scaling] [--output FILE]

Writes bench/results/last.json, the charts beside it and the tables of bench/README.md, and ends
with the tables. Nothing is printed that this run did not measure.
"""

import argparse
import datetime
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

import bodies
import charts
import counting
import measures
import model
import peers
import tables
from figures import Contender, Counting, Results, Row, figure
from measures import Gathered, Measurement
from peers import Peer
from rig import Proxy, Rig

RESULTS = Path(__file__).resolve().parent / "results/last.json"


def main() -> int:
    args = _parser().parse_args()
    began = time.monotonic()
    wanted = [peer for peer in peers.PEERS if not args.only or peer.name in args.only.split(",")]
    contenders = [_contender(peer) for peer in wanted]
    here = [peer for peer, contender in zip(wanted, contenders, strict=True) if contender.version]
    results = Results(
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        machine=_machine(),
        command="bench/run.py " + " ".join(sys.argv[1:]),
        contenders=contenders,
    )
    with Rig() as rig:
        _compare(rig, here, contenders, args.rounds, results)
        if "scaling" not in args.skip:
            results.scaling = _scale(rig, args.rounds)
        if "counting" not in args.skip:
            results.counting = _count(rig)
    results.seconds = round(time.monotonic() - began, 1)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    charts.write_all(results, args.output.parent)
    if args.output == RESULTS:
        model.write_readme(results)
    print("\n" + tables.text(results))
    return 0


def _contender(peer: Peer) -> Contender:
    try:
        return Contender(peer.name, peer.translates, peer.version())
    except (FileNotFoundError, subprocess.CalledProcessError, ImportError) as error:
        return Contender(peer.name, peer.translates, None, str(error))


# --- the comparison -----------------------------------------------------------------------------


def _compare(
    rig: Rig, here: Sequence[Peer], contenders: list[Contender], rounds: int, results: Results
) -> None:
    """All proxies stand for the whole comparison; each measurement goes from one to the next, and
    all of it `rounds` times."""
    standing: list[tuple[Proxy, bool]] = [(rig.direct, False)]
    for peer in here:
        contender = next(one for one in contenders if one.name == peer.name)
        try:
            proxy = rig.launch(peer)
            contender.idle_mb = round(proxy.idle_kb / 1000, 1)
            measures.warm(rig, proxy)
            standing.append((proxy, peer.slow))
        except RuntimeError as error:
            contender.version, contender.missing = None, f"did not start: {error}"
    plan = list(measures.plan())
    gathered: dict[tuple[int, str], Gathered] = {}
    for number in range(rounds):
        for place, measurement in enumerate(plan):
            for proxy, slow in standing:
                if not slow or measurement.slow_too:
                    part = gathered.setdefault((place, proxy.name), Gathered())
                    _one(rig, proxy, slow, measurement, part)
            _say(number, rounds, measurement)
    for (place, name), part in gathered.items():
        rows: list[Row] = getattr(results, plan[place].group)
        rows.append(part.row(name, plan[place].streams))
    for proxy, _ in standing[1:]:
        rig.end(proxy)


def _one(rig: Rig, proxy: Proxy, slow: bool, measurement: Measurement, part: Gathered) -> None:
    report, found = measurement.run(rig, proxy, measurement.streams, slow)
    part.add(report, found)


def _say(number: int, rounds: int, measurement: Measurement) -> None:
    print(
        f"round {number + 1}/{rounds}: {measurement.group} at {measurement.streams}",
        file=sys.stderr,
        flush=True,
    )


# --- workers and counting -----------------------------------------------------------------------


def _scale(rig: Rig, rounds: int) -> list[Row]:
    """One worker on the proxies' CPU; two on all there are."""
    standing = {
        workers: rig.launch(peers.FERRULE, workers, every_cpu=workers > 1) for workers in (1, 2)
    }
    gathered = {workers: Gathered() for workers in standing}
    for proxy in standing.values():
        measures.warm(rig, proxy)
    for _ in range(rounds):
        for workers, proxy in standing.items():
            report, found = measures.scaling(rig, proxy, workers * measures.SCALING_STREAMS)
            gathered[workers].add(report, found)
    for proxy in standing.values():
        rig.end(proxy)
    return [
        part.row(f"ferrule ×{workers}", workers * measures.SCALING_STREAMS)
        for workers, part in gathered.items()
    ]


def _count(rig: Rig) -> list[Counting]:
    text = bodies.agent(peers.MESSAGES, measures.BIG_KB)
    rows = counting.measure(text, peers.CACHE, rig.directory)
    return [
        Counting(row["tokenizer"], row["counter"], figure(row["speeds"]), row["tokens"])
        for row in rows
    ]


# --- the machine --------------------------------------------------------------------------------


def _machine() -> dict[str, str | int]:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    kernel, load = platform.release(), os.getloadavg()[0]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count() or 0,
        "kernel": kernel,
        "python": platform.python_version(),
        "load_before": f"{load:.2f}",
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="medians are over this many (%(default)s)"
    )
    parser.add_argument(
        "--only", default="", help="proxies by name, comma-separated; direct is always there"
    )
    parser.add_argument("--skip", default="", help="scaling, counting")
    parser.add_argument(
        "--output", type=Path, default=RESULTS, help="the JSON; charts go beside it (%(default)s)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
