"""Server-sent events: tells open pages of the console that something has changed, and nothing of what."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import anyio
from aiohttp import web

from gateway.store.wakeups import Signal

MAX_STREAMS = 16
"""A quarter of the connections that the server takes; a further stream ends the oldest."""
_QUIET_S = 30.0
"""The interval at which a page without a known change is renewed and closed connections are noticed."""


class ChangeStreams:
    """
    The open streams of one daemon.

    Args:
        signals: Each of them is a change; a burst of them is one event.
    """

    def __init__(self, signals: Iterable[Signal[Any]]) -> None:
        self._streams: dict[object, anyio.Event] = {}
        for signal in signals:
            signal.connect(lambda _: self._wake())

    @property
    def count(self) -> int:
        """The number of open streams."""
        return len(self._streams)

    def end(self) -> None:
        """End all streams, because the server ends."""
        ended, self._streams = self._streams, {}
        for changed in ended.values():
            changed.set()

    async def serve(
        self, request: web.Request, headers: dict[str, str], is_valid: Callable[[], bool]
    ) -> web.StreamResponse:
        """Send an event after each change, until the browser leaves or its session ends."""
        answer = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream"})
        await answer.prepare(request)
        if len(self._streams) >= MAX_STREAMS:
            self._streams.pop(next(iter(self._streams))).set()
        me = object()
        self._streams[me] = anyio.Event()
        try:
            while me in self._streams and is_valid():
                with anyio.move_on_after(_QUIET_S):
                    await self._streams[me].wait()
                    await anyio.sleep(0.5)
                if me not in self._streams or request.transport is None:
                    break
                self._streams[me] = anyio.Event()
                await answer.write(b"data: \n\n")
        except ConnectionError:
            pass
        finally:
            self._streams.pop(me, None)
        return answer

    def _wake(self) -> None:
        for changed in self._streams.values():
            changed.set()
