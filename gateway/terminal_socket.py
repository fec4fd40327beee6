"""
`squidbot chat` beside a running daemon: the terminal channel over a socket in the home folder.

Lines of JSON. The client begins with ``{"attach": SESSION}``, then sends ``{"say": TEXT, "id": ID}``, which is
answered by ``{"accepted": ID}`` or ``{"refused": ID, "error": TEXT}``; events come as `TerminalEvent`s. An
answer counts as delivered only when the client has confirmed it with ``{"seen": ID}``, so a client that dies
gets it again.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import anyio
from anyio.abc import ByteStream, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream

from channels.base import ChannelUnavailable
from channels.terminal import Answer, Preview, TerminalChannel, TerminalLink, Typing, parse_event
from gateway.home import Home, short_path

__all__ = ["RemoteTerminal", "attach_remotely", "serve_terminal"]

_LINE_LIMIT = 2_000_000
_SEND_LIMIT_S = 30.0
_ACCEPT_LIMIT_S = 30.0


@asynccontextmanager
async def serve_terminal(home: Home, channel: TerminalChannel) -> AsyncIterator[None]:
    """Serve while inside. The caller holds the lock of the home, so a socket that is there is a left-over."""
    path = home.terminal_socket
    path.unlink(missing_ok=True)
    with short_path(path) as short:
        listener = await anyio.create_unix_listener(short, mode=0o600)
    try:
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, lambda stream: _serve_one(stream, channel))
            yield
            tasks.cancel_scope.cancel()
    finally:
        path.unlink(missing_ok=True)


async def _serve_one(stream: ByteStream, channel: TerminalChannel) -> None:
    lines = _Lines(stream)
    async with stream:
        try:
            first = await lines.receive()
            session = str(first.get("attach") or "main")
            async with channel.attach(session) as link, anyio.create_task_group() as tasks:
                seen = _Seen()
                tasks.start_soon(_listen, lines, link, seen, tasks)
                async for event in link:
                    await lines.send(event.model_dump(mode="json"))
                    if isinstance(event, Answer):
                        await seen.wait(event.id)
        except* (
            anyio.BrokenResourceError,
            anyio.EndOfStream,
            anyio.ClosedResourceError,
            OSError,
            ValueError,
        ):
            pass  # the client is gone, or is none of ours; an answer at hand goes to the next link
        except* (ChannelUnavailable, TimeoutError):
            pass


async def _listen(lines: _Lines, link: TerminalLink, seen: _Seen, tasks: TaskGroup) -> None:
    while True:
        try:
            said = await lines.receive()
        except anyio.EndOfStream as error:
            raise anyio.BrokenResourceError from error
        if "seen" in said:
            seen.note(str(said["seen"]))
        elif "say" in said:
            tasks.start_soon(_take_in, lines, link, str(said["say"]), str(said.get("id", "")))


async def _take_in(lines: _Lines, link: TerminalLink, text: str, native_id: str) -> None:
    try:
        accepted = await link.say(text, native_id=native_id or None)
    except ChannelUnavailable as error:
        await lines.send({"refused": native_id, "error": error.public})
    else:
        await lines.send({"accepted": accepted})


class _Seen:
    """Which answer the client has confirmed."""

    def __init__(self) -> None:
        self._last = ""
        self._changed = anyio.Event()

    def note(self, answer_id: str) -> None:
        self._last = answer_id
        self._changed.set()
        self._changed = anyio.Event()

    async def wait(self, answer_id: str) -> None:
        with anyio.fail_after(_SEND_LIMIT_S):
            while self._last != answer_id:
                await self._changed.wait()


class _Lines:
    """Objects as lines of JSON, both ways."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._buffer = BufferedByteReceiveStream(stream)
        self._sending = anyio.Lock()

    async def send(self, value: dict[str, Any]) -> None:
        async with self._sending:
            with anyio.fail_after(_SEND_LIMIT_S):
                await self._stream.send(json.dumps(value).encode() + b"\n")

    async def receive(self) -> dict[str, Any]:
        value = json.loads(await self._buffer.receive_until(b"\n", _LINE_LIMIT))
        if not isinstance(value, dict):
            raise ValueError("a line that is no object")  # noqa: TRY004 - of the same kind as no JSON at all
        return value


class RemoteTerminal:
    """The client's side: the same face as a `TerminalLink`."""

    def __init__(self, lines: _Lines) -> None:
        self._lines = lines
        self._waiting: dict[str, tuple[anyio.Event, list[str]]] = {}
        self._at_hand: str | None = None

    async def say(self, text: str, *, native_id: str) -> str:
        """
        Hand over what the person typed; returns once it is durably accepted. Somebody must iterate meanwhile.

        Raises:
            ChannelUnavailable: It is not known to be accepted.
        """
        over, errors = anyio.Event(), list[str]()
        self._waiting[native_id] = (over, errors)
        await self._lines.send({"say": text, "id": native_id})
        try:
            with anyio.fail_after(_ACCEPT_LIMIT_S):
                await over.wait()
        except TimeoutError as error:
            raise ChannelUnavailable("the daemon does not answer") from error
        finally:
            self._waiting.pop(native_id, None)
        if errors:
            raise ChannelUnavailable(errors[0])
        return native_id

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Answer | Preview | Typing:
        """The next event; coming back for it confirms the one before. Ends with the daemon."""
        try:
            if self._at_hand is not None:
                await self._lines.send({"seen": self._at_hand})
                self._at_hand = None
            while True:
                value = await self._lines.receive()
                if "type" in value:
                    event = parse_event(json.dumps(value))
                    self._at_hand = event.id if isinstance(event, Answer) else None
                    return event
                self._settle(value)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise StopAsyncIteration from error

    def _settle(self, value: dict[str, Any]) -> None:
        name = str(value.get("accepted") or value.get("refused") or "")
        if name in self._waiting:
            over, errors = self._waiting[name]
            if "refused" in value:
                errors.append(str(value.get("error", "")))
            over.set()


@asynccontextmanager
async def attach_remotely(home: Home, session: str) -> AsyncIterator[RemoteTerminal]:
    """
    Attach to the daemon of a home folder.

    Raises:
        OSError: No daemon listens there.
    """
    with short_path(home.terminal_socket) as short:
        stream = await anyio.connect_unix(short)
    async with stream:
        lines = _Lines(stream)
        await lines.send({"attach": session})
        yield RemoteTerminal(lines)
