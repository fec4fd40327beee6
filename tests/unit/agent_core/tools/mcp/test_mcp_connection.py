"""One connection, in virtual time, without a server."""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace

import anyio
import pytest

from agent_core.tools.mcp.sdk_client import _ended, parsed_line
from agent_core.tools.mcp.server_connection import McpConnection, ServerError, ServerLost, Stderr

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


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("error: no such package\n\nhint: try again\n", "error: no such package hint: try again"),
        (
            "Error: no key\n    at main.js:3\n\nNode.js v22.1.0\n",
            "Error: no key at main.js:3 Node.js v22.1.0",
        ),
        ("x" * 300 + "\n" + "reason " * 60, "reason " * 60),
        ("y" * 900, "y" * 500),
        ("", ""),
    ],
)
def test_the_reason_of_an_end_is_in_the_last_lines_not_in_the_last_one(said, told):
    """The last one is a hint (uv), the version (Node), or the place of a file with more (npm)."""
    stderr = Stderr()
    stderr.add(said.encode())
    ended = _ended(SimpleNamespace(returncode=2), stderr)
    assert ended == "it ended with exit status 2" + (f"; its last words: {told.strip()}" if told else "")


_RESULT = b'{"jsonrpc":"2.0","id":1,"result":{}}'


def test_an_answer_behind_a_log_text_without_a_line_end_counts():
    """Programs write a progress text to the same stream."""
    for before in (b"", b"  ", b"INFO ready ", b"50%..."):
        assert parsed_line(before + _RESULT, is_own=False) is not None


@pytest.mark.parametrize(
    ("line", "is_own"),
    [
        (b"INFO ready " + _RESULT, True),
        (b"got " + b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}', False),
        (b"said '" + _RESULT + b"'", False),
        (b"Welcome to the server!", False),
        (b"{not json}", False),
    ],
)
def test_a_log_text_that_is_no_answer_is_none(line, is_own):
    """Negative control: what a log repeats is no request, and nobody's words on a server of the owner's own."""
    assert parsed_line(line, is_own=is_own) is None
