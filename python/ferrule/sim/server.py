"""The simulated vLLM's HTTP side: its command line, its routes, its start and its end.

What is said comes from `answer`, how it is worded from `wire`.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import signal
import sys
from collections.abc import Sequence

import msgspec
import uvloop
from aiohttp import web

from ferrule.config import describe_os_error
from ferrule.sim import completion as model
from ferrule.sim import faults, wire
from ferrule.sim.completion import SimSettings
from ferrule.sim.engine import Engine, Generation
from ferrule.sim.faults import FAULTS
from ferrule.sim.stream import HEADERS, TICK_S, reset, stream

KEEP_ALIVE_S = 5.0


class TokenizeRequest(msgspec.Struct):
    messages: list[msgspec.Raw] = []
    tools: msgspec.Raw = msgspec.Raw(b"null")
    prompt: str = ""


ENGINE: web.AppKey[Engine] = web.AppKey("engine", Engine)


def create_sim_app(settings: SimSettings) -> web.Application:
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app[ENGINE] = Engine(settings)
    app.router.add_post("/v1/chat/completions", _chat)
    app.router.add_get("/v1/models", _models)
    app.router.add_post("/tokenize", _tokenize)
    app.router.add_get("/health", _health)
    app.router.add_get("/version", _version)
    app.router.add_get("/metrics", _metrics)
    return app


async def listen(settings: SimSettings) -> tuple[web.AppRunner, str]:
    """A running server and its URL; port 0 takes a free one. The caller cleans the runner up."""
    app = create_sim_app(settings)
    runner = web.AppRunner(
        app,
        access_log=None,
        keepalive_timeout=KEEP_ALIVE_S,
        handler_cancellation=True,
        shutdown_timeout=1.0,
    )
    await runner.setup()
    fault = app[ENGINE].fault
    if fault is not None and fault.name == "refuse":
        return runner, f"http://{settings.host}:{settings.port}"
    try:
        await web.TCPSite(runner, settings.host, settings.port, backlog=4096).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner, f"http://{settings.host}:{runner.addresses[0][1]}"


async def run_sim(settings: SimSettings) -> None:
    """Serves until SIGTERM or SIGINT, or until it is cancelled; prints one line with its URL once
    it listens."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    runner, url = await listen(settings)
    try:
        print(f"simulated vLLM serves {settings.model} at {url}", flush=True)
        await stop.wait()
        await _drain(runner.app[ENGINE])
    finally:
        await runner.cleanup()


def main(argv: Sequence[str]) -> int:
    """`ferrule sim`."""
    settings = _settings(argv)
    try:
        uvloop.run(run_sim(settings))
    except OSError as trouble:
        print(
            f"ferrule sim: {settings.host}:{settings.port}: {describe_os_error(trouble)}",
            file=sys.stderr,
        )
        return 1
    return 0


def _settings(argv: Sequence[str]) -> SimSettings:
    table = "\n".join(f"  {name:20} {effect}" for name, effect in FAULTS.items())
    parser = argparse.ArgumentParser(
        prog="ferrule sim",
        description="One simulated vLLM.",
        epilog=f"faults (NAME or NAME:N):\n{table}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=_port, default=8000)
    parser.add_argument("--model", default="sim")
    parser.add_argument(
        "--tokens-per-second", type=_amount, default=50.0, help="per stream; 0: as fast as it goes"
    )
    parser.add_argument("--ttft-ms", type=_amount, default=20.0, help="time to first token")
    parser.add_argument(
        "--reasoning", action="store_true", help="the model thinks before it answers"
    )
    parser.add_argument("--images", action="store_true", help="the model takes images")
    parser.add_argument("--max-model-len", type=_count, default=131_072)
    parser.add_argument(
        "--drain-s", type=_amount, default=0.0, help="how long streams may run on after SIGTERM"
    )
    parser.add_argument(
        "--scripted", action="store_true", help="obey [[fault:NAME]] and [[tokens:N]] in prompts"
    )
    parser.add_argument("--fault", metavar="NAME", help="what goes wrong; see below")
    options = vars(parser.parse_args(argv))
    try:
        faults.parse(options["fault"])
    except ValueError as error:
        parser.error(str(error))
    return SimSettings(**options)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError("expected 0 to 65535")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError("expected a whole number from 1 on")
    return int(text)


def _amount(text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0 <= amount < math.inf:
        raise argparse.ArgumentTypeError("expected a number from 0 on")
    return amount


async def _drain(engine: Engine) -> None:
    engine.draining = True
    loop = asyncio.get_running_loop()
    deadline = loop.time() + engine.settings.drain_s
    while engine.running and loop.time() < deadline:
        await asyncio.sleep(TICK_S)
    engine.aborting = True


# The routes


async def _health(request: web.Request) -> web.Response:
    return web.Response(headers=HEADERS)


async def _version(request: web.Request) -> web.Response:
    return _json(b'{"version":"0.33.0"}')


async def _models(request: web.Request) -> web.Response:
    settings = request.app[ENGINE].settings
    return _json(wire.models(settings.model, settings.max_model_len))


async def _metrics(request: web.Request) -> web.Response:
    return web.Response(text=request.app[ENGINE].metrics(), headers=HEADERS)


async def _tokenize(request: web.Request) -> web.Response:
    try:
        body = msgspec.json.decode(await request.read(), type=TokenizeRequest)
    except msgspec.DecodeError:
        return _refuse(wire.validation_refusal("body", "invalid"))
    prompt = model.prompt_of(body.messages, body.tools) if body.messages else body.prompt.encode()
    count = model.count_tokens(prompt)
    limit = request.app[ENGINE].settings.max_model_len
    return _json(
        msgspec.json.encode(
            {
                "count": count,
                "max_model_len": limit,
                "tokens": list(range(count)),
                "token_strs": None,
            }
        )
    )


async def _chat(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    try:
        generation = engine.admit(await request.read())
    except wire.Refusal as refusal:
        return _refuse(refusal)
    engine.running += 1
    try:
        if generation.fault is not None:
            refusal_or_none = await _before_the_head(request, generation)
            if refusal_or_none is not None:
                return refusal_or_none
        if generation.request.stream:
            return await stream(request, engine, generation)
        return await _whole(engine, generation)
    finally:
        engine.running -= 1


async def _before_the_head(request: web.Request, generation: Generation) -> web.Response | None:
    assert generation.fault is not None
    match generation.fault.name:
        case "refuse":
            reset(request)
            return web.Response()
        case "hang":
            await asyncio.Event().wait()
        case "503":
            return _refuse(wire.Refusal(503, wire.BUSY, kind="Service Unavailable"))
        case "500-draining":
            return _refuse(wire.Refusal(500, wire.DRAINING, kind="InternalServerError"))
        case "empty-200":
            return _json(b"")
        case "json-instead":
            return _json(
                wire.whole_reply(
                    generation.request.model or "sim", generation.completion, generation.usage
                )
            )
        case _:
            pass
    return None


async def _whole(engine: Engine, generation: Generation) -> web.Response:
    settings = engine.settings
    if generation.fault is not None and generation.fault.name in ("error-first", "error-mid"):
        return _refuse(wire.Refusal(500, wire.DEAD, kind="InternalServerError"))
    if generation.fault is not None and generation.fault.name == "abort":
        generation.completion.finish_reason = "abort"
    pace_s = (
        len(generation.completion.deltas) / settings.tokens_per_second
        if settings.tokens_per_second
        else 0.0
    )
    await asyncio.sleep(settings.ttft_ms / 1000 + pace_s)
    engine.generated_tokens += generation.usage.completion_tokens
    engine.finished += 1
    return _json(wire.whole_reply(settings.model, generation.completion, generation.usage))


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json", headers=HEADERS)


def _refuse(refusal: wire.Refusal) -> web.Response:
    return web.Response(
        body=refusal.body, status=refusal.status, content_type="application/json", headers=HEADERS
    )
