"""Pages of the console that stay open: an event after each change, and nothing left behind by it."""

from __future__ import annotations

import gc
from typing import Any

import anyio
import pytest
from aiohttp.test_utils import make_mocked_request

from gateway.operations.http.console.streams import MAX_STREAMS, ChangeStreams
from gateway.store.wakeups import Signal

pytestmark = pytest.mark.virtual_time
EVENTS = 10_000 // MAX_STREAMS
"""To each of the pages that can be open at once."""
WARM, TOLERANCE = 20, 100


class Counting:
    """What a browser gets, counted."""

    def __init__(self) -> None:
        self.events = 0

    async def write(self, chunk: bytes) -> None:
        self.events += chunk == b"data: \n\n"

    async def write_headers(self, *_: Any) -> None:
        pass

    async def write_eof(self, *_: Any) -> None:
        pass

    async def drain(self) -> None:
        pass

    def send_headers(self) -> None:
        pass

    def enable_chunking(self) -> None:
        pass


async def new_objects(kept: list[Any] | None = None) -> int:
    """How many objects more there are after 10,000 events to open pages; ``kept`` gets one with each."""
    signal: Signal[str] = Signal()
    streams, last = ChangeStreams([signal]), WARM + EVENTS + 1
    browsers = [Counting() for _ in range(MAX_STREAMS)]

    async def until(count: int) -> int:
        while browsers[0].events < count:
            signal.fire("matrix")
            if kept is not None:
                kept.extend([] for _ in browsers)
            await anyio.sleep(1)
        gc.collect()
        return len(gc.get_objects())

    async with anyio.create_task_group() as tasks:
        for one in browsers:
            request = make_mocked_request("GET", "/console/changes", writer=one)  # type: ignore[arg-type]
            tasks.start_soon(streams.serve, request, {}, lambda one=one: one.events < last)
        before = await until(WARM)
        after = await until(WARM + EVENTS)
        assert streams.count == MAX_STREAMS
        await until(last)
    assert streams.count == 0
    assert sum(one.events for one in browsers) >= 10_000
    return after - before


async def test_pages_open_for_long_leave_nothing_behind() -> None:
    assert await new_objects() < TOLERANCE


async def test_one_object_for_each_event_is_noticed() -> None:
    """The control."""
    assert await new_objects([]) > 10_000 - TOLERANCE  # of other tests some may go meanwhile
