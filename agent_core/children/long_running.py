"""
Programs that go on running and are talked to, such as MCP servers: started by a small runner of which the
whole tree ends, whatever becomes of the daemon or of the program (`agent_core.children.long_running_child`).
They are not confined: the owner has configured them. `serving` is called on the event loop, never in a
thread: the runner ends with the thread that started it.
"""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
from anyio.abc import Process

from agent_core.children.order import end_runner
from agent_core.files import write_all

NOT_STARTED = 127
"""The exit code of a runner that could not start the program; the standard error says why."""
_ROOT = str(Path(__file__).resolve().parents[2])
_CODE = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from agent_core.children.long_running_child import main; main()"
)
_CHECK_EVERY_S = 0.02
_END_LIMIT_S = 2.0
"""A program may end by itself for so long after its standard input was closed."""


@asynccontextmanager
async def serving(words: Sequence[str], *, environment: Mapping[str, str]) -> AsyncIterator[Process]:
    """Run a program with three pipes during the block. Raises ValueError (too long) or OSError."""
    order = marshal.dumps({"parent": os.getpid(), "words": list(words), "environment": dict(environment)})
    if len(order) > 60_000:  # it must fit in a pipe that nobody reads yet
        raise ValueError("the command with its environment is too long")
    reading, writing = os.pipe()
    try:
        try:
            os.set_blocking(writing, False)  # who has very many pipes gets small ones
            write_all(writing, order)
        finally:
            os.close(writing)
        process = await anyio.open_process(
            [sys.executable, "-I", "-S", "-c", _CODE, _ROOT, str(reading)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
            start_new_session=True,
            pass_fds=(reading,),
        )
    finally:
        os.close(reading)
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            await _let_end(process)
            await end_runner(process)


async def _let_end(process: Process) -> None:
    """Close its input and wait for a moment: a well-behaved program ends by that."""
    assert process.stdin is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError), anyio.move_on_after(0.5):
        await process.stdin.aclose()
    with anyio.move_on_after(_END_LIMIT_S):
        # `wait` waits for the ends of the pipes, too, which nobody reads any more.
        while process.returncode is None:  # noqa: ASYNC110 - asyncio has no event for it
            await anyio.sleep(_CHECK_EVERY_S)
