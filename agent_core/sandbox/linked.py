"""
Runs whose runner is elsewhere: in a unit that the service manager starts for each run, or in a container.

The runner is the same as here (`agent_core.sandbox.child`). Its standard input stays open after the order:
when it ends, whoever wanted the run is gone, and the runner ends everything that it has started. A run that
is cancelled, or whose daemon is killed, leaves nothing behind.
"""

from __future__ import annotations

import marshal
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import anyio
from anyio.abc import ByteReceiveStream

from agent_core.sandbox.process import Outcome, outcome_of
from agent_core.sandbox.serving import serving

__all__ = ["run_linked"]

_FAILED = "failed"
"""In a report: why nothing was started."""
_GRACE_S, _END_LIMIT_S = 15.0, 6.0
_MOST_REPORT_BYTES, _SAID_CHARS = 4_000_000, 300
_NOT_STARTED = (125, 126, 127)
"""The exit codes of an engine that has not started the runner, see docker-run(1)."""
_HANDED_ON = (
    *(
        "HOME",
        "PATH",
        "USER",
        "XDG_RUNTIME_DIR",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "DBUS_SESSION_BUS_ADDRESS",
    ),
    *("DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "CONTAINER_HOST", "CONTAINERS_CONF", "TMPDIR"),
)


async def run_linked(order: Mapping[str, Any]) -> Outcome:
    """
    Carry an order out in a unit or a container; cancelling it ends everything that was started.

    Raises:
        OSError: There is no such unit, or the engine's program cannot be started.
    """
    report = await (_by_engine(order["engine"], order) if order["engine"] else _by_unit(order["unit"], order))
    if _FAILED in report:
        return Outcome(error=str(report[_FAILED]))
    return outcome_of(report) if report else Outcome(limit="lost")


async def _by_unit(socket: str, order: Mapping[str, Any]) -> Mapping[str, Any]:
    """
    The report of a runner that the service manager starts for a connection to its socket.

    Raises:
        OSError: There is no such socket, or nobody listens.
    """
    stream = await anyio.connect_unix(socket)
    async with stream:
        pieces = _Pieces(stream)
        return await _asked(order, stream.send, stream.send_eof, pieces.read)


async def _by_engine(words: Sequence[str], order: Mapping[str, Any]) -> Mapping[str, Any]:
    """
    The report of a runner that a container engine starts by this command line.

    Raises:
        OSError: The engine's program cannot be started.
    """
    environment = {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
    async with serving(words, environment=environment) as process, anyio.create_task_group() as tasks:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        said = bytearray()
        tasks.start_soon(_collect, process.stderr, said)
        report = await _asked(order, process.stdin.send, process.stdin.aclose, _Pieces(process.stdout).read)
        if not report:
            with anyio.move_on_after(_END_LIMIT_S):
                await process.wait()
            if process.returncode in _NOT_STARTED:
                told = " ".join(said.decode("utf-8", "replace").split())
                report = {_FAILED: told[-_SAID_CHARS:] or "the engine says nothing"}
        tasks.cancel_scope.cancel()
    return report


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
    """What comes from a stream, also over several attempts to read it to its end."""

    def __init__(self, stream: ByteReceiveStream) -> None:
        self._stream = stream
        self._said = bytearray()

    async def read(self) -> bytes:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for piece in self._stream:
                self._said += piece
                if len(self._said) > _MOST_REPORT_BYTES:
                    return b""
        return bytes(self._said)


async def _collect(stream: ByteReceiveStream, said: bytearray) -> None:
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for piece in stream:
            said += piece
            del said[: -4 * _SAID_CHARS]
