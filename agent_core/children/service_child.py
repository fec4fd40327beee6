"""
The child's side of a `ChildProcess`: frames over a socket. Frames in: ``{"call": n, "request": {…}, …}`` and
``{"cancel": n}``. Frames out: ``{"ready": {…}}`` or ``{"broken": …}`` once, then for each call ``{"call": n,
"begun": true}``, ``piece`` frames, and ``end`` or ``failure``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NoReturn, TypeVar

import anyio

from agent_core.children.frames import FrameDecoder, encode_frame
from agent_core.children.service_confinement import confine, die_with_parent, limit_resources
from agent_core.errors import Failure

Answers = Callable[[Mapping[str, Any]], AsyncGenerator[Mapping[str, Any], None]]
Work = Callable[[Mapping[str, Any], threading.Event], str]
_T = TypeVar("_T")


def begin_child(*, memory_bytes: int) -> None:
    """Prepare a child process: it ends with the daemon, ignores the daemon's signals, and limits memory."""
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the daemon, which drains
        signal.signal(number, signal.SIG_IGN)
    limit_resources(memory_bytes=memory_bytes)


def load_reporting(link: socket.socket, load: Callable[[], _T]) -> _T:
    """Return what ``load`` returns; report its exception to the daemon first."""
    try:
        return load()
    except BaseException as error:
        link.sendall(encode_frame({"broken": f"{type(error).__name__}: {error}"[:500]}))
        raise


def failure_of(error: Exception) -> Failure:
    """Describe an error to the daemon: a lack of resources here may be temporary."""
    unreadable = "large" if isinstance(error, MemoryError) else ""
    return Failure(text=str(error), transport=isinstance(error, OSError), unreadable=unreadable)


async def serve(
    link: socket.socket,
    answers: Answers,
    told: Mapping[str, Any],
    *,
    failure: Callable[[Exception], Failure] = failure_of,
) -> None:
    """Tell the daemon that the child is ready, and answer until the socket ends."""
    reader, writer = await asyncio.open_connection(sock=link)
    server = ChildServer(reader, writer, answers, failure)
    with suppress(OSError):
        await server.say({"ready": told})
        await server.serve()


def serve_engine(load: Callable[[], Work], *, readable: Sequence[str], memory_bytes: int) -> NoReturn:
    """
    Confine this process to the ``readable`` files, load the engine and serve the socket in argv[-1].

    ``load`` imports foreign code and returns the function that answers requests in a thread; its event is set
    when nobody waits for the answer any more.
    """
    begin_child(memory_bytes=memory_bytes)
    link, began = socket.socket(fileno=int(sys.argv[-1])), time.monotonic()
    gave = confine(readable, network=False)
    work = load_reporting(link, load)

    async def answers(frame: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        given_up = threading.Event()
        try:
            yield {"text": await asyncio.to_thread(work, frame["request"], given_up)}
        finally:
            given_up.set()

    asyncio.run(serve(link, answers, {**gave, "load_s": round(time.monotonic() - began, 2)}))
    os._exit(0)  # a thread that still works is not waited for


class ChildServer:
    """Answers one daemon until its socket ends: ``answers`` per frame, ``failure`` for an error."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: Answers,
        failure: Callable[[Exception], Failure],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._answers = answers
        self._failure = failure
        self._calls: dict[int, anyio.CancelScope] = {}

    async def serve(self) -> None:
        """Take calls until the socket ends."""
        decoder = FrameDecoder()
        async with anyio.create_task_group() as tasks:
            while data := await self._reader.read(256 * 1024):
                for frame in decoder.feed(data):
                    if "cancel" in frame:
                        if scope := self._calls.get(frame["cancel"]):
                            scope.cancel()
                    else:
                        tasks.start_soon(self._answer, frame)
            tasks.cancel_scope.cancel()

    async def _answer(self, frame: Mapping[str, Any]) -> None:
        number = frame["call"]
        last: dict[str, Any] = {"end": True}
        with anyio.CancelScope() as scope:
            self._calls[number] = scope
            try:
                await self.say({"call": number, "begun": True})
                async for piece in self._answers(frame):
                    await self.say({"call": number, "piece": piece})
            except Exception as error:  # noqa: BLE001 - the daemon makes one of its own errors of it
                last = {"failure": asdict(self._failure(error))}
        self._calls.pop(number, None)
        await self.say({"call": number, **last})

    async def say(self, frame: Mapping[str, Any]) -> None:
        """Hand a frame over."""
        self._writer.write(encode_frame(frame))
        await self._writer.drain()
