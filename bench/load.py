"""Generates load on a running proxy: multi-turn agent sessions with a growing history, in a closed
or open loop.

    .venv/bin/python bench/load.py --url http://127.0.0.1:8080 --sessions 64 --concurrency 16 --duration 30

Closed loop (`--concurrency C`): C turns run at any time. Open loop (`--rate R`): turns arrive as a
Poisson process, R per second, however many still run. Prints a table at the end; `--csv` and
`--json` save the results.
"""

import argparse
import asyncio
import platform
import random
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from conversation import Conversation, ConversationSettings
from reading import Reader
from samples import (
    Sample,
    Slo,
    compute_spread,
    render_affinity,
    render_table,
    summarise,
    write_csv,
)

_PROGRESS_S = 0.5
# A generator whose own loop is this late measures itself, not the proxy.
_LAG_WARNING_MS = 20.0


class Plan(msgspec.Struct, frozen=True):
    """The schedule that the command line asks for."""

    url: str
    key: str
    sessions: int
    concurrency: int | None
    rate_per_s: float | None
    duration_s: float
    turns: int
    think_s: float
    timeout_s: float
    slo: Slo


class Load:
    """The running load. Sessions wait in `_ready` between turns; one that has had all its turns is
    replaced by a new one."""

    def __init__(
        self, plan: Plan, settings: ConversationSettings, http: aiohttp.ClientSession
    ) -> None:
        self.samples: list[Sample] = []
        self.in_flight = 0
        self.lag_s: list[float] = []
        self.started_s = time.perf_counter()
        self._plan = plan
        self._settings = settings
        self._http = http
        self._opened = 0
        self._ready: deque[Conversation] = deque()
        self._resting: set[asyncio.Task[None]] = set()
        path = "/v1/chat/completions" if settings.route == "chat" else "/v1/messages"
        self._target = plan.url.rstrip("/") + path

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.started_s

    async def run(self) -> None:
        self._ready.extend(self._open() for _ in range(self._plan.sessions))
        watcher = asyncio.create_task(self._watch())
        try:
            await (
                self._closed_loop()
                if self._plan.rate_per_s is None
                else self._open_loop(self._plan.rate_per_s)
            )
        finally:
            for task in (watcher, *self._resting):
                task.cancel()

    # --- schedules ------------------------------------------------------------------------------

    async def _closed_loop(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._plan.concurrency or self._plan.sessions):
                group.create_task(self._worker())

    async def _worker(self) -> None:
        while self.elapsed_s < self._plan.duration_s:
            if self._ready:
                await self._run_turn(self._ready.popleft())
            else:
                await asyncio.sleep(0.005)

    async def _open_loop(self, rate_per_s: float) -> None:
        arrivals = random.Random(self._settings.seed)
        due_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            while True:
                due_s += arrivals.expovariate(rate_per_s)
                await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
                if self.elapsed_s >= self._plan.duration_s:
                    return
                # If no session is free a new one opens; waiting for one would close the loop.
                session = self._ready.popleft() if self._ready else self._open()
                group.create_task(self._run_turn(session))

    def _open(self) -> Conversation:
        self._opened += 1
        return Conversation(self._settings, self._opened)

    async def _rest(self, session: Conversation) -> None:
        await asyncio.sleep(self._plan.think_s)
        self._ready.append(session)

    # --- one turn -------------------------------------------------------------------------------

    async def _run_turn(self, session: Conversation) -> None:
        body = session.build_body()
        sample = Sample(
            session=session.session_id, turn=session.turn, started_s=time.perf_counter()
        )
        reader = Reader(sample)
        self.in_flight += 1
        try:
            async with asyncio.timeout(self._plan.timeout_s):
                await self._send(body, session.headers, reader)
        except TimeoutError:
            sample.error = "timeout"
        except aiohttp.ClientError as error:
            sample.error = type(error).__name__
        finally:
            self.in_flight -= 1
        sample.e2e_s = sample.e2e_s or time.perf_counter() - sample.started_s
        self.samples.append(sample)
        if sample.error is None:
            session.record_reply(reader.content)
        else:
            session.drop_turn()
        if session.turn >= self._plan.turns:
            session = self._open()
        rest = asyncio.create_task(self._rest(session))
        self._resting.add(rest)
        rest.add_done_callback(self._resting.discard)

    async def _send(self, body: bytes, headers: dict[str, str], reader: Reader) -> None:
        async with self._http.post(self._target, data=body, headers=headers) as response:
            reader.sample.backend = response.headers.get("x-ferrule-backend")
            reader.sample.affinity = response.headers.get("x-ferrule-affinity")
            if response.status != 200:
                reader.sample.error = (
                    f"status {response.status} {_parse_error_type(await response.read())}"
                )
                return
            await reader.read(response.content)

    # --- watching -------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Prints the progress and measures the generator's own lag."""
        while True:
            before_s = time.perf_counter()
            await asyncio.sleep(_PROGRESS_S)
            self.lag_s.append(max(0.0, time.perf_counter() - before_s - _PROGRESS_S))
            if sys.stderr.isatty() or round(self.elapsed_s / _PROGRESS_S) % 10 == 0:
                end = "\r" if sys.stderr.isatty() else "\n"
                print(self._format_progress(), end=end, file=sys.stderr, flush=True)

    def _format_progress(self) -> str:
        recent_since_s = time.perf_counter() - 10
        recent = [s for s in self.samples[-2000:] if s.started_s + s.e2e_s >= recent_since_s]
        ttft = compute_spread([s.ttft_s for s in recent if s.ttft_s is not None])
        errors = sum(s.error is not None for s in self.samples)
        tokens = sum(s.output_tokens for s in recent) / min(10.0, max(self.elapsed_s, 0.1))
        return (
            f"{self.elapsed_s:6.1f}/{self._plan.duration_s:.0f} s  in flight {self.in_flight:4d} "
            f" done {len(self.samples):6d}"
            f"  errors {errors:4d}  {tokens:7.0f} tok/s  TTFT p50/p99 "
            f"{ttft.p50:.0f}/{ttft.p99:.0f} ms "
        )


def _parse_error_type(body: bytes) -> str:
    try:
        error: Any = msgspec.json.decode(body)
        return str((error.get("detail") or error)["error"]["type"])
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError):
        return "(no error type)"


def _build_headers(key: str) -> dict[str, str]:
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    return {**headers, "authorization": f"Bearer {key}"} if key else headers


async def _fetch_first_model(http: aiohttp.ClientSession, url: str) -> str:
    async with http.get(url.rstrip("/") + "/v1/models") as response:
        response.raise_for_status()
        models = (await response.json())["data"]
    if not models:
        raise SystemExit("load: the proxy lists no models; name one with --model")
    return str(models[0]["id"])


async def _main(args: argparse.Namespace) -> int:
    slo = Slo(ttft_ms=args.slo_ttft_ms, tpot_ms=args.slo_tpot_ms, e2e_ms=args.slo_e2e_ms)
    plan = Plan(
        url=args.url,
        key=args.key,
        sessions=args.sessions,
        concurrency=args.concurrency,
        rate_per_s=args.rate,
        duration_s=args.duration,
        turns=args.turns,
        think_s=args.think_time,
        timeout_s=args.timeout,
        slo=slo,
    )
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=_build_headers(args.key), read_bufsize=1 << 20
    ) as http:
        try:
            model = args.model or await _fetch_first_model(http, args.url)
        except aiohttp.ClientError as error:
            print(f"load: {args.url} does not answer: {error}", file=sys.stderr)
            return 1
        settings = ConversationSettings(
            model,
            args.route,
            args.system_tokens,
            args.prompt_tokens,
            args.output_tokens,
            args.tools,
            args.seed,
        )
        load = Load(plan, settings, http)
        try:
            await load.run()
        except asyncio.CancelledError:
            print("\nload: interrupted; the results so far:", file=sys.stderr)
    print(file=sys.stderr)
    return _print_report(args, plan, settings, load)


def _print_report(
    args: argparse.Namespace, plan: Plan, settings: ConversationSettings, load: Load
) -> int:
    summary = summarise(load.samples, load.elapsed_s, plan.slo)
    print(render_table(summary))
    if args.affinity:
        print(render_affinity(summary.affinity))
    lag = compute_spread(load.lag_s)
    if lag.p99 > _LAG_WARNING_MS:
        print(
            f"warning: the generator itself was late (p99 {lag.p99:.0f} ms): lower the load, or "
            f"run several generators",
            file=sys.stderr,
        )
    if args.csv:
        write_csv(args.csv, load.samples)
    if args.json:
        machine = {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "processor": platform.processor(),
        }
        # the key must not end up in the file
        inputs = {"plan": msgspec.structs.replace(plan, key=""), "shape": settings}
        report = {**inputs, "machine": machine, "generator_lag_ms": lag, "summary": summary}
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    return 0 if summary.completed and not summary.errors else 1


def _parse_range(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    return int(low), int(high or low)


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="the proxy (%(default)s)")
    parser.add_argument("--key", default="", help="a key of the proxy, if it wants one")
    parser.add_argument("--model", help="default: the first that the proxy lists")
    parser.add_argument("--route", choices=("messages", "chat"), default="messages")
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument(
        "--concurrency",
        type=int,
        help="closed loop: turns that run at any time (default: one per session)",
    )
    pace.add_argument("--rate", type=float, help="open loop: turns started per second, on average")
    parser.add_argument(
        "--sessions", type=int, default=16, help="sessions open at a time (%(default)s)"
    )
    parser.add_argument(
        "--duration", type=float, default=30, help="seconds during which turns start (%(default)s)"
    )
    parser.add_argument(
        "--turns",
        type=int,
        default=10,
        help="turns of a session before a new one replaces it (%(default)s)",
    )
    parser.add_argument(
        "--think-time",
        type=float,
        default=0.0,
        help="seconds a session rests between turns (%(default)s)",
    )
    parser.add_argument(
        "--system-tokens", type=int, default=1000, help="size of the system prompt (%(default)s)"
    )
    parser.add_argument(
        "--prompt-tokens", type=int, default=200, help="tokens that each turn adds (%(default)s)"
    )
    parser.add_argument(
        "--output-tokens",
        type=_parse_range,
        default=(64, 64),
        metavar="N[:M]",
        help="max_tokens of a turn (64)",
    )
    parser.add_argument(
        "--tools", type=int, default=0, help="tool definitions in each request (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="same seed, same bytes (%(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds for one turn (%(default)s)"
    )
    parser.add_argument("--slo-ttft-ms", type=float, help="goodput: time to first token at most")
    parser.add_argument("--slo-tpot-ms", type=float, help="goodput: time per output token at most")
    parser.add_argument("--slo-e2e-ms", type=float, help="goodput: whole reply at most")
    parser.add_argument(
        "--affinity", action="store_true", help="also report which backends the sessions went to"
    )
    parser.add_argument("--csv", type=Path, help="one row per request")
    parser.add_argument("--json", type=Path, help="the summary")
    return parser


def main() -> int:
    args = _build_parser().parse_args()
    try:
        import uvloop

        return uvloop.run(_main(args))
    except ImportError:
        return asyncio.run(_main(args))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
