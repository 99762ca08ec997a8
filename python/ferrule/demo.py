"""`ferrule demo`: runs three simulated backends and the proxy, and prints one message as it streams.

Uses the proxy as any client does: by its command line, its ports and the Messages API.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import suppress

import aiohttp
import msgspec
import uvloop

from ferrule import sim

MODEL = "demo"
BACKENDS = 3
READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
PROMPT = "Say hello, and tell me what happens between you and me."

_DIM, _PLAIN = ("\x1b[2m", "\x1b[0m") if sys.stdout.isatty() else ("", "")

_NEXT_STEPS = """
Try it yourself:

  curl -N {url}/v1/messages -H 'content-type: application/json' -H 'anthropic-version: 2023-06-01' \\
    -d '{{"model": "{model}", "max_tokens": 200, "stream": true, "messages": [{{"role": "user", "content": "Hi"}}]}}'

  from anthropic import Anthropic

  client = Anthropic(base_url="{url}", api_key="any")
  message = client.messages.create(model="{model}", max_tokens=200, messages=[{{"role": "user", "content": "Hi"}}])
  print(message.content[-1].text)

The operator's page: http://{admin}/   Metrics: http://{admin}/metrics   Status: http://{admin}/status
"""


class DemoError(Exception):
    """Ends the demo with status 1. The message is printed."""


class _Delta(msgspec.Struct, frozen=True):
    text: str = ""
    thinking: str = ""
    stop_reason: str | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    delta: _Delta = _Delta()


def run(once: bool, listen: str, admin: str) -> int:
    """`listen` and `admin` are HOST:PORT. Serves until Ctrl-C, SIGTERM or SIGHUP; with `once`, until
    the message is complete. Returns the exit status."""
    try:
        uvloop.run(_run(once, listen, admin))
    except DemoError as error:
        print(f"ferrule demo: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        with suppress(OSError):  # after SIGHUP there may be no terminal
            print(flush=True)
    return 0


async def _run(once: bool, listen: str, admin: str) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    backends = [
        await sim.listen(sim.SimSettings(port=0, model=MODEL, reasoning=True))
        for _ in range(BACKENDS)
    ]
    urls = [url for _, url in backends]
    proxy = await _start_proxy(urls, listen, admin)
    try:
        await _wait_until_ready(proxy, admin)
        print(
            f"{BACKENDS} simulated backends: {', '.join(urls)}\nproxy: http://{listen}\n\n> "
            f"{PROMPT}\n",
            flush=True,
        )
        await _show_message(f"http://{listen}")
        print(_NEXT_STEPS.format(url=f"http://{listen}", admin=admin, model=MODEL), flush=True)
        if not once:
            print("Serving until Ctrl-C.", flush=True)
            await proxy.wait()
            raise DemoError(f"the proxy exited with status {proxy.returncode}")
    finally:
        await _stop(proxy)
        for runner, _ in backends:
            await runner.cleanup()


async def _start_proxy(urls: list[str], listen: str, admin: str) -> Process:
    options = ["--listen", listen, "--admin", admin, "--log-level", "warning"]
    for url in urls:
        options += ["--backend", url]
    # A session of its own, so that Ctrl-C reaches only the demo, which then stops the proxy. Its
    # access log is discarded: it would print into the message.
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ferrule",
        "serve",
        *options,
        stdout=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )


async def _wait_until_ready(proxy: Process, admin: str) -> None:
    try:
        async with asyncio.timeout(READY_TIMEOUT_S), aiohttp.ClientSession() as client:
            while not await _is_ready(client, admin):
                if proxy.returncode is not None:
                    raise DemoError(
                        f"the proxy exited with status {proxy.returncode} before it was ready"
                    )
                await asyncio.sleep(0.05)
    except TimeoutError as error:
        raise DemoError(f"the proxy was not ready after {READY_TIMEOUT_S:.0f} s") from error


async def _is_ready(client: aiohttp.ClientSession, admin: str) -> bool:
    try:
        async with client.get(f"http://{admin}/readyz") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


async def _show_message(url: str) -> None:
    body = {
        "model": MODEL,
        "max_tokens": 200,
        "stream": True,
        "messages": [{"role": "user", "content": PROMPT}],
    }
    stopped = False
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{url}/v1/messages", json=body) as response,
    ):
        if response.status != 200:
            raise DemoError(f"the proxy answered {response.status}: {await response.text()}")
        async for event in _read_events(response):
            print(
                f"{_DIM}{event.delta.thinking}{_PLAIN}"
                if event.delta.thinking
                else event.delta.text,
                end="",
                flush=True,
            )
            if event.type == "content_block_stop":
                print(flush=True)
            if event.type == "message_delta":
                print(
                    f"\n[{event.delta.stop_reason}, by "
                    f"{response.headers.get('x-ferrule-backend', '?')}]",
                    flush=True,
                )
            stopped = stopped or event.type == "message_stop"
    if not stopped:
        raise DemoError("the message ended early")


async def _read_events(response: aiohttp.ClientResponse) -> AsyncIterator[_Event]:
    async for line in response.content:
        if line.startswith(b"data:"):
            yield msgspec.json.decode(line[5:], type=_Event)


async def _stop(proxy: Process) -> None:
    if proxy.returncode is not None:
        return
    proxy.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await proxy.wait()
    except TimeoutError:
        proxy.kill()
        await proxy.wait()
