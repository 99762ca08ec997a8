"""`make bench`: measures ferrule, a direct connection, nginx and installed peers in turn, in one run
against one mock.

    .venv/bin/python bench/run.py [--rounds 3] [--only ferrule,nginx] [--skip counting,scaling] [--output FILE]

Writes bench/results/last.json, the charts beside it and the tables in bench/README.md, and prints
the tables. All numbers are from this run.
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
from figures import Contender, CountingSpeed, Results, Row, make_figure
from measures import Measurement, RoundValues
from peers import Peer
from rig import Proxy, Rig

RESULTS = Path(__file__).resolve().parent / "results/last.json"


def main() -> int:
    args = _build_parser().parse_args()
    began = time.monotonic()
    selected = [peer for peer in peers.PEERS if not args.only or peer.name in args.only.split(",")]
    contenders = [_probe_contender(peer) for peer in selected]
    installed = [
        peer for peer, contender in zip(selected, contenders, strict=True) if contender.version
    ]
    results = Results(
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        machine=_describe_machine(),
        command="bench/run.py " + " ".join(sys.argv[1:]),
        contenders=contenders,
    )
    with Rig() as rig:
        _compare(rig, installed, contenders, args.rounds, results)
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
    print("\n" + tables.render(results))
    return 0


def _probe_contender(peer: Peer) -> Contender:
    try:
        return Contender(peer.name, peer.translates, peer.version())
    except (FileNotFoundError, subprocess.CalledProcessError, ImportError) as error:
        return Contender(peer.name, peer.translates, None, str(error))


# --- the comparison -----------------------------------------------------------------------------


def _compare(
    rig: Rig, installed: Sequence[Peer], contenders: list[Contender], rounds: int, results: Results
) -> None:
    """Starts all proxies, then takes each measurement of each proxy in turn, `rounds` times."""
    running: list[tuple[Proxy, bool]] = [(rig.direct, False)]
    for peer in installed:
        contender = next(known for known in contenders if known.name == peer.name)
        try:
            proxy = rig.launch(peer)
            contender.idle_mb = round(proxy.idle_kb / 1000, 1)
            measures.warm_up(rig, proxy)
            running.append((proxy, peer.slow))
        except RuntimeError as error:
            contender.version, contender.missing = None, f"did not start: {error}"
    plan = list(measures.list_measurements())
    values: dict[tuple[int, str], RoundValues] = {}
    for number in range(rounds):
        for index, measurement in enumerate(plan):
            for proxy, slow in running:
                if not slow or measurement.slow_too:
                    part = values.setdefault((index, proxy.name), RoundValues())
                    _measure_round(rig, proxy, slow, measurement, part)
            _print_progress(number, rounds, measurement)
    for (index, name), part in values.items():
        rows: list[Row] = getattr(results, plan[index].group)
        rows.append(part.row(name, plan[index].streams))
    for proxy, _ in running[1:]:
        rig.end(proxy)


def _measure_round(
    rig: Rig, proxy: Proxy, slow: bool, measurement: Measurement, part: RoundValues
) -> None:
    report, figures = measurement.run(rig, proxy, measurement.streams, slow)
    part.add(report, figures)


def _print_progress(number: int, rounds: int, measurement: Measurement) -> None:
    print(
        f"round {number + 1}/{rounds}: {measurement.group} at {measurement.streams}",
        file=sys.stderr,
        flush=True,
    )


# --- workers and counting -----------------------------------------------------------------------


def _scale(rig: Rig, rounds: int) -> list[Row]:
    """One worker on the proxies' CPU, and two on all CPUs."""
    running = {
        workers: rig.launch(peers.FERRULE, workers, every_cpu=workers > 1) for workers in (1, 2)
    }
    values = {workers: RoundValues() for workers in running}
    for proxy in running.values():
        measures.warm_up(rig, proxy)
    for _ in range(rounds):
        for workers, proxy in running.items():
            report, figures = measures.measure_scaling(
                rig, proxy, workers * measures.SCALING_STREAMS
            )
            values[workers].add(report, figures)
    for proxy in running.values():
        rig.end(proxy)
    return [
        part.row(f"ferrule ×{workers}", workers * measures.SCALING_STREAMS)
        for workers, part in values.items()
    ]


def _count(rig: Rig) -> list[CountingSpeed]:
    text = bodies.build_agent(peers.MESSAGES, measures.BIG_KB)
    rows = counting.measure_all(text, peers.CACHE, rig.directory)
    return [
        CountingSpeed(row["tokenizer"], row["counter"], make_figure(row["speeds"]), row["tokens"])
        for row in rows
    ]


# --- the machine --------------------------------------------------------------------------------


def _describe_machine() -> dict[str, str | int]:
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


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="medians are over this many (%(default)s)"
    )
    parser.add_argument(
        "--only", default="", help="names of proxies, comma-separated; direct is always included"
    )
    parser.add_argument("--skip", default="", help="measurements to skip: scaling, counting")
    parser.add_argument(
        "--output",
        type=Path,
        default=RESULTS,
        help="the JSON file; charts are written beside it (%(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
