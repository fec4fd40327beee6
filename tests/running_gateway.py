"""A gateway that runs inside of a test, for as long as a block."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from channels.base import LinkState
from gateway.supervision.gateway import Gateway


async def connected(built: Gateway, account: str = "email") -> None:
    """Wait until an account of a running gateway is connected."""
    with anyio.fail_after(60):
        await built.supervisor.wait(lambda: built.supervisor.status(account).state is LinkState.UP)


@asynccontextmanager
async def running(built: Gateway) -> AsyncIterator[anyio.Event]:
    """Run a gateway until the block ends, then drain it; the event is set when `Gateway.run` has returned."""
    ended = anyio.Event()

    async def run() -> None:
        await built.run()
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        try:
            yield ended
        finally:
            built.stop()
            with anyio.move_on_after(30, shield=True):
                await ended.wait()
            tasks.cancel_scope.cancel()
