"""
Runs whose runner is elsewhere: in a unit that the service manager starts for each run. The runner is the same
as here (`agent_core.children.confined_child`). Its standard input stays open after the order: when it ends,
whoever wanted the run is gone, and the runner ends everything that it has started. A run that is cancelled,
or whose daemon is killed, leaves nothing behind.
"""

from __future__ import annotations

import marshal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import anyio
from anyio.abc import ByteReceiveStream, TaskGroup

from agent_core.children.listener import Serve, serve_handle
from agent_core.children.order import ProgramOutcome, outcome_of, serve_nothing

_GRACE_S, _END_LIMIT_S = 15.0, 6.0


async def run_in_unit(order: Mapping[str, Any], serve: Serve | None = None) -> ProgramOutcome:
    """Execute an order in a unit, ``serve`` its listener; cancelling ends all. Raises OSError."""
    found: list[Mapping[str, Any] | OSError] = []
    async with anyio.create_task_group() as tasks:
        try:
            found.append(await _by_unit(order, tasks, serve or serve_nothing))
        except OSError as error:
            found.append(error)
        tasks.cancel_scope.cancel()
    report = found[0]
    if isinstance(report, OSError):
        raise report
    return outcome_of(report) if report else ProgramOutcome(limit="lost")


async def _by_unit(order: Mapping[str, Any], tasks: TaskGroup, serve: Serve) -> Mapping[str, Any]:
    """Run an order in a unit of the service manager, by its socket. Raises OSError."""
    stream = await anyio.connect_unix(order["unit"])
    async with stream:
        pieces = _Pieces(stream)

        async def read() -> bytes:
            """The report, after the listener if there is to be one; where that failed it comes at once."""
            if order["connects"] and not pieces.said:
                with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                    first, handles = await stream.receive_fds(1, 1)
                    if handles:
                        tasks.start_soon(serve_handle, handles[0], serve)
                    else:
                        pieces.said += first
            return await pieces.read()

        return await _asked(order, stream.send, stream.send_eof, read)


async def _asked(
    order: Mapping[str, Any],
    send: Callable[[bytes], Awaitable[None]],
    end: Callable[[], Awaitable[None]],
    read: Callable[[], Awaitable[bytes]],
) -> Mapping[str, Any]:
    """Send the order and read the report; nothing if the runner has ended without one."""
    content = marshal.dumps(dict(order), 4)  # a form that any version reads
    said = b""
    try:
        with anyio.move_on_after(float(order["seconds"]) + _GRACE_S):
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await send(len(content).to_bytes(8, "little") + content)
            said = await read()
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(_END_LIMIT_S):
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                await end()
            said = said or await read()
    try:
        return dict(marshal.loads(said))  # noqa: S302 - the runner wrote it, not the program
    except (ValueError, EOFError, TypeError):
        return {}


class _Pieces:
    """Collects a stream's data, also over several attempts to read it to its end."""

    def __init__(self, stream: ByteReceiveStream) -> None:
        self._stream = stream
        self.said = bytearray()

    async def read(self) -> bytes:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for piece in self._stream:
                self.said += piece
                if len(self.said) > 4_000_000:
                    return b""
        return bytes(self.said)
