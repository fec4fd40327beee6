"""
Runs whose runner is elsewhere: in a unit that the service manager starts for each run, or in a container.

The runner is the same as here (`agent_core.sandbox.child`). Its standard input stays open after the order:
when it ends, whoever wanted the run is gone, and the runner ends everything that it has started. A run that
is cancelled, or whose daemon is killed, leaves nothing behind.
"""

from __future__ import annotations

import marshal
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import anyio
from anyio.abc import ByteReceiveStream, TaskGroup

from agent_core.sandbox.listener import Serve, serve_handle, serve_received
from agent_core.sandbox.long_running import serving
from agent_core.sandbox.process import Outcome, outcome_of, serve_nothing

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


async def run_linked(order: Mapping[str, Any], serve: Serve | None = None) -> Outcome:
    """
    Carry an order out in a unit or a container; cancelling it ends everything that was started.

    ``serve`` serves the listener of an order with one, for as long as the runner is there.

    Raises:
        OSError: There is no such unit, or the engine's program cannot be started.
    """
    found: list[Mapping[str, Any] | OSError] = []
    carry_out = _by_engine if order["engine"] else _by_unit
    async with anyio.create_task_group() as tasks:
        try:
            found.append(await carry_out(order, tasks, serve or serve_nothing))
        except OSError as error:
            found.append(error)
        tasks.cancel_scope.cancel()
    report = found[0]
    if isinstance(report, OSError):
        raise report
    if _FAILED in report:
        return Outcome(error=str(report[_FAILED]))
    return outcome_of(report) if report else Outcome(limit="lost")


async def _by_unit(order: Mapping[str, Any], tasks: TaskGroup, serve: Serve) -> Mapping[str, Any]:
    """
    The report of a runner that the service manager starts for a connection to its socket.

    Raises:
        OSError: There is no such socket, or nobody listens.
    """
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


async def _by_engine(order: Mapping[str, Any], tasks: TaskGroup, serve: Serve) -> Mapping[str, Any]:
    """The report of a runner in a container; its listener comes by a socket, if there is to be one."""
    with _meeting(order["meets_at"]) if order["meets_at"] else nullcontext() as waiting:
        if waiting is not None:
            tasks.start_soon(_meet, waiting, serve)
        try:
            return await _contained(order["engine"], order)
        except ValueError:  # of `serving`: each file and folder is a word of the engine's command
            return {_FAILED: "there are too many files and folders at the top of the workspace"}


@contextmanager
def _meeting(path: str) -> Iterator[socket.socket]:
    """A socket of the daemon's; the path may be longer than a socket's address."""
    parent, _, name = path.rpartition("/")
    folder = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waiting:
            waiting.setblocking(False)
            waiting.bind(f"/proc/self/fd/{folder}/{name}")
            waiting.listen(1)
            yield waiting
    finally:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        os.close(folder)


async def _meet(waiting: socket.socket, serve: Serve) -> None:
    await anyio.wait_readable(waiting)
    given, _ = waiting.accept()
    with given:
        given.setblocking(False)
        await serve_received(given, serve)


async def _contained(words: Sequence[str], order: Mapping[str, Any]) -> Mapping[str, Any]:
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
        self.said = bytearray()

    async def read(self) -> bytes:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for piece in self._stream:
                self.said += piece
                if len(self.said) > _MOST_REPORT_BYTES:
                    return b""
        return bytes(self.said)


async def _collect(stream: ByteReceiveStream, said: bytearray) -> None:
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for piece in stream:
            said += piece
            del said[: -4 * _SAID_CHARS]
