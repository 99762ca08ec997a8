"""A TCP line to a server that can be made slow, or cut, at any moment, also for connections that
are there already."""

from __future__ import annotations

import asyncio

from tests.doubles.loop_thread import LoopThread


class SlowLine:
    """`delay_s`: how long each answer is held back from now on."""

    def __init__(self, threads: LoopThread, port: int) -> None:
        self.delay_s = 0.0
        self._target = port
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = threads
        self._server = threads.run(self._listen())
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        self._threads.run(self._end())

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _end(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self._target)
        for source, target, is_answer in (
            (reader, back_writer, False),
            (back_reader, writer, True),
        ):
            task = asyncio.create_task(self._poller(source, target, is_answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _poller(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, is_answer: bool
    ) -> None:
        try:
            while data := await source.read(65536):
                if is_answer and self.delay_s:
                    await asyncio.sleep(self.delay_s)
                target.write(data)
                await target.drain()
        except ConnectionError:
            pass
        finally:
            target.close()
