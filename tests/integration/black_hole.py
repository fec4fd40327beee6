"""A relay to a server that one day swallows everything, as a connection does of which only half is left."""

from __future__ import annotations

import asyncio


class BlackHole:
    """A relay in front of a server that one day forwards nothing any more, and closes nothing either."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.swallows = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there = await asyncio.open_connection("127.0.0.1", self.target)
        self._writers += [writer, there]
        for source, sink in ((reader, there), (there_reader, writer)):
            task = asyncio.ensure_future(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                if not self.swallows:
                    sink.write(data)
            if not self.swallows:
                sink.close()
        except ConnectionError:
            pass

    async def aclose(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)
