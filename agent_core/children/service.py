"""
The daemon's side of a child process: starts it when it is needed, passes calls to it, and abandons it when it
dies, hangs or breaks the protocol. It is started by `start` or by the first call, and ended after ``idle_s``
without one. A call whose process ends fails with ``unreadable="crash"``; the caller decides whether to ask
again, in a new process. A process that does not pick up a call in time, or does not release one, counts as
hung and is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio
import structlog

from agent_core.children.frames import FrameDecoder, encode_frame, failure_in, piece_text
from agent_core.errors import Failure

_START_LIMIT_S = 60.0
_TAKE_UP_LIMIT_S = 15.0
_LET_GO_LIMIT_S = 10.0
_END_LIMIT_S = 3.0
_IDLE = "it was idle"
_BLOATED_BYTES = 500_000_000
"""What it should never take; one answer of a hostile server can make it so large."""
_MAX_ANSWER_BYTES = 8 * 1024 * 1024
_NAME_FILES: Sequence[str] = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf")
_HANDED_OVER = (
    *("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
    *(
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "no_proxy",
    ),
)
_log = structlog.get_logger(__name__)
_P = TypeVar("_P")


class CallFailed(Exception):
    """A failed call, and what is known about the failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class _Call:
    """The frames of one call that nobody has taken yet."""

    def __init__(self) -> None:
        self._frames: deque[Mapping[str, Any]] = deque()
        self._come = anyio.Event()
        self.size = 0

    def send_frame(self, frame: Mapping[str, Any], size: int = 0) -> None:
        self.size += size
        self._frames.append(frame)
        self._come.set()

    async def take(self) -> Mapping[str, Any]:
        while not self._frames:
            self._come = anyio.Event()
            await self._come.wait()
        return self._frames.popleft()


class _Link(asyncio.Protocol):
    """The socket to one process, and its calls."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.ready = anyio.Event()
        self.told: Mapping[str, Any] = {}
        self.names = _name_files()
        self.lost = ""
        self.calls: dict[int, _Call] = {}
        self._decoder = FrameDecoder(max_bytes=_MAX_ANSWER_BYTES)
        self._transport: asyncio.Transport | None = None

    # ── what the loop calls ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                self._take(frame, self._decoder.size)
        except (ValueError, TypeError) as error:
            self.kill(f"it broke the protocol: {error}")

    def connection_lost(self, _: Exception | None) -> None:
        self.kill("it ended")

    # ── ours ──

    def send(self, frame: Mapping[str, Any]) -> None:
        """Hand a frame over. Raises ValueError if it is too large."""
        if self._transport is not None and not self.lost:
            self._transport.write(encode_frame(frame))

    def kill(self, why: str) -> None:
        """Give the process up; every call of it has failed."""
        if self.lost:
            return
        self.lost = why
        self.process.kill()
        if self._transport is not None:
            self._transport.abort()
        self.ready.set()
        for call in self.calls.values():
            call.send_frame({"lost": why})
        self.calls.clear()

    def _take(self, frame: Mapping[str, Any], size: int) -> None:
        if "ready" in frame or "broken" in frame:
            self.told = frame
            self.ready.set()
            return
        number = frame.get("call")
        call = self.calls.get(number) if isinstance(number, int) else None
        if call is None:
            raise ValueError("a frame that belongs to no call")
        call.send_frame(frame, size)
        if "end" in frame or "failure" in frame:
            del self.calls[cast("int", number)]
        elif call.size > _MAX_ANSWER_BYTES * 4:
            raise ValueError("an answer that does not end")


class ChildProcess:
    """
    Starts, uses and ends one process.

    Args:
        name: For the log and errors.
        command: The program; the number of the socket's descriptor is appended.
        idle_s: The unused time after which it is ended; 0 keeps it.
        variables: Prefixes of further environment variables, such as ``AWS_``.
        most_bytes: The memory above which it is ended after a call.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        idle_s: float,
        variables: Collection[str] = (),
        most_bytes: int = _BLOATED_BYTES,
    ) -> None:
        self._name = name
        self._idle_s = idle_s
        self._variables = tuple(variables)
        self.command = list(command)
        self._most_bytes = most_bytes
        self._link: _Link | None = None
        self._starting = anyio.Lock()
        self._number = 0
        self._idle: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """The process id, if the process runs."""
        return None if self._link is None or self._link.lost else self._link.process.pid

    @property
    def ready_report(self) -> Mapping[str, Any]:
        """Return the ready report of the process: its start time and its confinement."""
        told = {} if self._link is None else self._link.told.get("ready")
        return told if isinstance(told, dict) else {}

    async def start(self) -> None:
        """Start it unless it runs; returns when it is ready. Raises `CallFailed`: it cannot be started."""
        await self._linked()
        self._rest()

    async def call(self, asked: Mapping[str, Any], read: Callable[[object], _P]) -> AsyncGenerator[_P, None]:
        """Yield one answer's pieces by ``read`` (ValueError: give up); closing ends it. Raises CallFailed."""
        link = await self._linked()
        self._number += 1
        number, call = self._number, _Call()
        if link.lost:
            raise CallFailed(
                Failure(text=f"the process of {self._name} is lost: {link.lost}", unreadable="crash")
            )
        link.calls[number] = call
        try:
            link.send({"call": number, **asked})
            with anyio.move_on_after(_TAKE_UP_LIMIT_S) as scope:
                frame = await call.take()
            if scope.cancelled_caught:
                link.kill("it does not pick up calls")
                frame = await call.take()
            while "end" not in frame:
                if (piece := self._read(frame, link, read)) is not None:
                    yield piece
                call.size = 0
                frame = await call.take()
        finally:
            if number in link.calls:
                link.send({"cancel": number})
                asyncio.get_running_loop().call_later(_LET_GO_LIMIT_S, self._look_again, link, number)
            self._rest()

    async def ask_text(self, request: Mapping[str, Any], *, task: str, limit_s: float) -> str | None:
        """Return one answer, None past the limit (without the start). Raises CallFailed, ValueError."""
        await self.start()
        with anyio.move_on_after(limit_s):
            asked = {"request": request, "stream": False, "cost": False, "task": task}
            async with contextlib.aclosing(self.call(asked, piece_text)) as pieces:
                return "".join([text async for text in pieces])
        return None

    async def aclose(self) -> None:
        """End it. A later call starts a new one."""
        if self._idle is not None:
            self._idle.cancel()
        link, self._link = self._link, None
        if link is not None:
            link.kill("it is not needed any more")
            await _reap(link)

    def _read(self, frame: Mapping[str, Any], link: _Link, read: Callable[[object], _P]) -> _P | None:
        if "lost" in frame:
            text = f"the process of {self._name} is lost: {frame['lost']}"
            raise CallFailed(Failure(text=text, unreadable="crash"))
        try:
            if "failure" in frame:
                raise CallFailed(failure_in(frame["failure"]))
            return read(frame["piece"]) if "piece" in frame else None
        except (ValueError, TypeError) as error:
            link.kill(f"it broke the protocol: {error}")
            raise CallFailed(Failure(text=str(error), unreadable="crash")) from error

    async def _linked(self) -> _Link:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        async with self._starting:
            if self._link is not None and not self._link.calls and self._link.names != _name_files():
                self._link.kill("the name resolution of this machine has changed")
            if self._link is not None and self._link.lost:
                lost, self._link = self._link, None
                if lost.lost != _IDLE:
                    _log.warning("child_process.lost", name=self._name, why=lost.lost, pid=lost.process.pid)
                await _reap(lost)
            if self._link is None:
                self._link = await self._started()
            return self._link

    async def _started(self) -> _Link:
        began = anyio.current_time()
        ours, theirs = socket.socketpair()
        try:
            # From this thread: the kernel ends the child with the thread that started it.
            process = subprocess.Popen(  # noqa: ASYNC220, S603 - see above; our own command
                [*self.command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=self._environment(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise CallFailed(
                Failure(text=f"{self._name} cannot be started: {error}", transport=True)
            ) from error
        finally:
            theirs.close()
        ours.setblocking(False)
        link = _Link(process)
        try:
            await asyncio.get_running_loop().create_connection(lambda: link, sock=ours)
            with anyio.move_on_after(_START_LIMIT_S):
                await link.ready.wait()
        except BaseException:
            link.kill("its start was abandoned")
            await _reap(link)
            raise
        told = link.told.get("ready")
        if link.lost or not isinstance(told, dict):
            why = str(link.told.get("broken") or link.lost or "it did not become ready")
            link.kill(why)
            await _reap(link)
            raise CallFailed(Failure(text=f"{self._name} cannot be started: {why}", unreadable="crash"))
        _log.info(
            "child_process.started",
            name=self._name,
            pid=process.pid,
            took_s=round(anyio.current_time() - began, 2),
            **told,
        )
        return link

    def _environment(self) -> dict[str, str]:
        """Build the environment: what every program needs, our module path, the requested variables."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in _HANDED_OVER or (self._variables and name.startswith(self._variables))
        }
        root = str(Path(__file__).resolve().parents[2])
        return kept | {"PYTHONPATH": root, "HOME": "/", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"}

    def _rest(self) -> None:
        """Begin to count the time without a call, if there is none."""
        link = self._link
        if link is None or link.lost or link.calls:
            return
        if _resident_bytes(link.process.pid) > self._most_bytes:
            self._end_idle(link)
            return
        if not self._idle_s:
            return
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._end_idle, link)

    def _look_again(self, link: _Link, number: int) -> None:
        """Look for a call that was ended and is still there: nobody is at home. Else it may be the last."""
        if number in link.calls:
            link.kill("it does not release a call")
        self._rest()

    def _end_idle(self, link: _Link) -> None:
        self._idle = None
        if self._link is link and not link.calls and not link.lost:
            _log.info("child_process.idle", name=self._name, pid=link.process.pid)
            link.kill(_IDLE)
            asyncio.get_running_loop().call_later(_END_LIMIT_S, link.process.poll)


def _name_files() -> list[tuple[int, int]]:
    """
    Return device and inode of the resolver's files.

    A confined process may read these and not their successors: a change of network replaces the files.
    """
    found = []
    for path in _NAME_FILES:
        with contextlib.suppress(OSError):
            about = os.stat(path)  # noqa: PTH116 - follows the link that it usually is
            found.append((about.st_dev, about.st_ino))
    return found


def _resident_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _reap(link: _Link) -> None:
    with anyio.CancelScope(shield=True), anyio.move_on_after(_END_LIMIT_S):
        while link.process.poll() is None:  # noqa: ASYNC110 - there is no event for it
            await anyio.sleep(0.01)
