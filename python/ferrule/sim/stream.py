"""A streamed reply on its way out: pace, faults, and the abort that a drain ends with.

Load tests run against it, so tokens that are due at once go out in one write.
"""

from __future__ import annotations

import asyncio
import socket
import struct

from aiohttp import web

from ferrule.sim import wire
from ferrule.sim.engine import Engine, Generation
from ferrule.sim.faults import Fault

TICK_S = 0.01
HEADERS = {"server": "uvicorn"}


async def stream(
    request: web.Request, engine: Engine, generation: Generation
) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={**HEADERS, "content-type": "text/event-stream; charset=utf-8", "vary": "Origin"}
    )
    response.enable_chunked_encoding()
    await response.prepare(request)
    frames = _frames(engine, generation)
    settings = engine.settings
    send = _Sender(request, response, generation.fault)
    fault = generation.fault.name if generation.fault else ""
    if fault == "keepalive-only":
        while True:
            await response.write(b": keep-alive\n\n")
            await asyncio.sleep(1.0)
    if fault not in ("error-first", "done-only"):
        await send(frames.pop(0))
    if settings.ttft_ms:
        await asyncio.sleep(settings.ttft_ms / 1000)
    if generation.fault is not None and fault == "silent-then-stream":
        await asyncio.sleep(generation.fault.number)
    await _paced(engine, send, frames, generation)
    if fault == "cut-mid-chunk" and request.transport is not None:
        request.transport.write(b'400\r\ndata: {"id":"chatcmpl-')
        request.transport.close()
    if send.is_cut or fault == "cut-mid-chunk":
        return response
    engine.finished += 1
    await response.write_eof()
    return response


async def _paced(
    engine: Engine, send: _Sender, frames: list[bytes], generation: Generation
) -> None:
    """Token frames at their pace; the frames after the last token at once."""
    rate = engine.settings.tokens_per_second
    tokens = len(generation.completion.deltas)
    loop = asyncio.get_running_loop()
    begin, sent = loop.time(), 0
    while sent < tokens and rate and not send.is_cut:
        due = min(tokens, int((loop.time() - begin) * rate) + 1)
        if due > sent:
            await send(b"".join(frames[sent:due]))
            engine.generated_tokens += due - sent
            sent = due
        if engine.aborting:
            generation.completion.finish_reason = "abort"
            generation.completion.deltas = generation.completion.deltas[:sent]
            stopped = _closing(wire.Frames(engine.settings.model), engine, generation)
            await send(b"".join(stopped))
            return
        await asyncio.sleep(
            max(
                begin + (sent if sent < tokens else sent - 1) / rate - loop.time(),
                min(TICK_S, 1 / rate),
            )
        )
    engine.generated_tokens += max(0, tokens - sent)
    if not send.is_cut:
        await send(b"".join(frames[sent:]))


# The frames of a generation, with what its fault makes of them


def _frames(engine: Engine, generation: Generation) -> list[bytes]:
    frames = wire.Frames(engine.settings.model)
    fault = generation.fault
    if fault is not None and fault.name in ("error-first", "done-only"):
        generation.completion.deltas = []
        return (
            [wire.error_event(500, wire.DEAD), wire.DONE]
            if fault.name == "error-first"
            else [wire.DONE]
        )
    stops_early = fault is not None and fault.name in (
        "error-mid",
        "abort",
        "no-finish",
        "garbage",
        "cut-mid-chunk",
    )
    if fault is not None and stops_early:
        generation.completion.deltas = generation.completion.deltas[: int(fault.number)]
    options = generation.request.stream_options
    every = generation.usage if options and options.continuous_usage_stats else None
    body = [frames.delta(delta, every) for delta in generation.completion.deltas]
    if fault is not None and fault.name == "abort":
        generation.completion.finish_reason = "abort"
    endings = {
        "error-mid": [wire.error_event(500, wire.DEAD), wire.DONE],
        "no-finish": [],
        "cut-mid-chunk": [],
        "garbage": [b"data: {this is not json\n\n"],
    }
    ending = endings.get(fault.name if fault else "")
    return [
        frames.role(),
        *body,
        *(_closing(frames, engine, generation) if ending is None else ending),
    ]


def _closing(frames: wire.Frames, engine: Engine, generation: Generation) -> list[bytes]:
    closing = [frames.finish(generation.completion)]
    if generation.request.stream_options and generation.request.stream_options.include_usage:
        reasoning = generation.completion.reasoning_tokens if engine.settings.reasoning else None
        usage = wire.Usage(
            generation.usage.prompt_tokens,
            generation.usage.cached_tokens,
            len(generation.completion.deltas),
            reasoning,
        )
        closing.append(frames.usage(usage))
    return [*closing, wire.DONE]


class _Sender:
    """Writes frames the way the fault has it. Once `is_cut`, the connection is gone and nothing
    more may be sent."""

    def __init__(
        self, request: web.Request, response: web.StreamResponse, fault: Fault | None
    ) -> None:
        self._request = request
        self._response = response
        self._fault = fault.name if fault else ""
        self._room = int(fault.number) if fault and fault.name == "reset-after-k" else -1
        self.is_cut = False

    async def __call__(self, data: bytes) -> None:
        if self._fault == "slow-bytes":
            for byte in data:
                await self._response.write(bytes((byte,)))
                await asyncio.sleep(0)
            return
        if self._fault == "reset-after-k" and len(data) >= self._room:
            await self._response.write(data[: self._room] or b"\n")
            await asyncio.sleep(TICK_S)
            reset(self._request)
            self.is_cut = True
            return
        self._room -= len(data)
        if data:
            await self._response.write(data)


def reset(request: web.Request) -> None:
    transport = request.transport
    if transport is None:
        return
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
