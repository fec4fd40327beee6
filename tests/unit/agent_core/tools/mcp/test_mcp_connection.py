"""One connection, in virtual time, without a server."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import pytest

from agent_core.tools.mcp.server_connection import McpConnection, ServerError, ServerLost

pytestmark = pytest.mark.virtual_time


class Link:
    """Stands, and says again and again that something has changed."""

    why = ""

    async def wait_end(self):
        await anyio.sleep_forever()

    async def wait_change(self):
        await anyio.sleep(1)


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (OSError(28, "No space left on device"), False),
        (ServerError("no"), False),
        (KeyError("a defect"), True),
    ],
)
async def test_a_look_that_fails_costs_no_call(error, lost):
    """The control: a defect ends the connection, and the call that was made on it is unknown."""
    made, looked = [], []

    @asynccontextmanager
    async def connect():
        made.append(1)
        yield Link()

    async def nothing(_link):
        pass

    async def look(_link):
        looked.append(1)
        raise error

    async def work(_link):
        await anyio.sleep(60)
        return "done"

    one = McpConnection("far", connect, on_connected=nothing, on_changed=look, start_s=5, idle_s=900)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        if lost:
            with pytest.raises(ServerLost):
                await one.ask(work, seconds=100)
        else:
            assert await one.ask(work, seconds=100) == "done"
            assert (len(made), len(looked) > 1, one.is_up) == (1, True, True)
        tasks.cancel_scope.cancel()
