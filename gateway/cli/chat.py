"""
`squidbot chat`: a conversation in this terminal, with the memory and the history of the owner. While a daemon
runs on the home folder, the conversation goes through it. Otherwise a gateway with nothing but the terminal
channel runs here, in this process, on the same files.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, TextIO

import anyio
import anyio.abc

from agent_core.messages import OutboundKind
from channels.base import ChannelError
from channels.markup import to_text
from channels.terminal import Answer, Preview, TerminalChannel, Typing
from gateway.app import Overrides, build
from gateway.errors import AlreadyRunning, ChatOpen, StateUnusable
from gateway.observability.logs import configure_logs
from gateway.operations.control.control_client import DaemonGone
from gateway.operations.control.terminal_routes import RemoteTerminal
from gateway.settings import Settings
from gateway.store.lease import unwrap_lost_lease
from gateway.store.stores import StoreUnusable
from gateway.system.home import Home, open_home
from gateway.system.lock import hold_home
from gateway.system.process_tuning import loop_for
from gateway.system.terminal_text import plain_text

_HELP = "Type and press Enter. !help tells what else I can do; /quit or Ctrl-D leaves, and answers are kept."


class TerminalConversation(Protocol):
    """The other side of a chat: a link in this process, or the daemon's."""

    async def say(self, text: str, *, native_id: str | None = None) -> str:
        """Hand over what was typed."""

    def __aiter__(self) -> AsyncIterator[Answer | Preview | Typing]: ...


def run_chat(settings: Settings, home: Home, *, session: str = "main") -> int:
    """
    Talk until the person leaves. Returns the exit code.

    Raises:
        StateUnusable: The home folder or the database cannot be used.
        LeaseTaken, LeaseLost: Another process works on the database, or may.
    """
    return anyio.run(_chat, settings, home, session, backend_options=loop_for(settings.store_url))


async def _chat(settings: Settings, home: Home, session: str) -> int:
    async with contextlib.AsyncExitStack() as stack:
        try:
            conversation: TerminalConversation = await stack.enter_async_context(
                RemoteTerminal(home, session)
            )
        except DaemonGone:
            conversation = await stack.enter_async_context(_alone(settings, home, session))
        return await _Screen(conversation, sys.stdin, sys.stdout).run()


@asynccontextmanager
async def _alone(settings: Settings, home: Home, session: str) -> AsyncIterator[TerminalConversation]:
    # Only here: beside a daemon nothing is written, so root can talk to one that runs under another user.
    open_home(home.root)
    # Into the file alone: a traceback in the middle of a conversation helps nobody.
    configure_logs("error", file=home.root / "chat.log", secrets=settings.secrets(), quiet=True)
    try:
        lock = hold_home(home, purpose="chat")
        lock.__enter__()
    except ChatOpen:
        raise
    except AlreadyRunning as error:
        raise AlreadyRunning(f"{error}. Its terminal does not answer: is it just starting?") from error
    try:
        terminal = TerminalChannel()
        try:
            built = await build(settings, home, Overrides(channels={"terminal": (terminal, "merge")}))
        except StoreUnusable as error:
            raise StateUnusable(str(error)) from error
        await built.take_lease()
        with unwrap_lost_lease():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(built.run)
                await built.started.wait()
                async with terminal.attach(session) as link:
                    yield link
                built.stop()
    finally:
        lock.__exit__(None, None, None)


class _Keyboard:
    """Lines of a stream, without a thread: one that waits for a key could not be ended by Ctrl-C."""

    def __init__(self, source: TextIO) -> None:
        self._descriptor = source.fileno()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._typed = ""
        self._over = False

    async def line(self) -> str:
        """The next line with its end; empty when there is nothing any more."""
        while "\n" not in self._typed and not self._over:
            with contextlib.suppress(PermissionError):  # a file, which never keeps anybody waiting
                await anyio.wait_readable(self._descriptor)
            piece = os.read(self._descriptor, 65_536)
            self._over = not piece
            self._typed += self._decoder.decode(piece, self._over)
        line, end, self._typed = self._typed.partition("\n")
        return line + end


class _Screen:
    """Lines in, answers out; on a terminal with a prompt and the answer as it grows."""

    def __init__(self, conversation: TerminalConversation, source: TextIO, sink: TextIO) -> None:
        self._conversation = conversation
        self._keyboard = _Keyboard(source)
        self._sink = sink
        self._tty = source.isatty() and sink.isatty()
        self._shown = ""
        # What was said and is not answered, oldest first: one answer may be for several.
        self._open: list[str] = []
        self._handing_over = ""
        self._quiet = anyio.Event()

    async def run(self) -> int:
        clean = False
        if self._tty:
            self._write(_HELP + "\n")
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._show, tasks)
                clean = await self._listen()
                if self._open and self._tty:
                    self._write("(what is not answered yet is kept for the next time)\n")
                elif self._open:
                    with anyio.move_on_after(120.0):
                        await self._quiet.wait()
                tasks.cancel_scope.cancel()
        finally:
            if self._tty and not clean:
                self._write("\n")
        return 0 if clean and (self._tty or not self._open) else 1

    async def _listen(self) -> bool:
        while True:
            self._prompt()
            line = await self._keyboard.line()
            text = line.strip()
            if not line and self._tty:
                self._write("\n")
            if not line or text in {"/quit", "/exit"}:
                return True
            if text == "/help":
                self._write(_HELP + "\n")
            elif text and not await self._say(text):
                return False

    async def _say(self, text: str) -> bool:
        native_id = secrets.token_hex(16)
        self._open.append(native_id)
        self._handing_over = text
        for left in (2, 1, 0):
            try:
                await self._conversation.say(text, native_id=native_id)
                self._handing_over = ""
                return True
            except ChannelError as error:
                if not left:
                    with contextlib.suppress(ValueError):  # its answer has come after all
                        self._open.remove(native_id)
                    self._write("(given up; if it is stored after all, its answer comes here)\n")
                elif left > 1:
                    self._write(f"(not accepted yet: {error}; I try it again)\n")
            await anyio.sleep(1)
        return False

    async def _show(self, tasks: anyio.abc.TaskGroup) -> None:
        async for event in self._conversation:
            match event:
                case Preview(text=text) if self._tty:
                    self._grow(plain_text(text))
                case Answer(text=text, answers=answers, kind=kind):
                    shown = to_text(text) if kind is OutboundKind.NOTICE else text
                    self._finish(plain_text(shown))
                    self._close(answers)
                    self._prompt()
                case _:
                    pass
        self._write("\n(the daemon has stopped; an open answer is kept for the next time)\n")
        if self._handing_over:
            self._write(f"(not known to be taken, say it again: {self._handing_over})\n")
        tasks.cancel_scope.cancel()

    def _close(self, answers: str) -> None:
        """Note that everything up to ``answers`` is answered."""
        if answers in self._open:
            del self._open[: self._open.index(answers) + 1]
        if not self._open:
            self._quiet.set()
            self._quiet = anyio.Event()

    def _grow(self, text: str) -> None:
        """Show what is new of an answer that grows at its end."""
        if text.startswith(self._shown):
            if not self._shown:
                self._write("\r")
            self._write(text[len(self._shown) :])
            self._shown = text

    def _finish(self, text: str) -> None:
        if self._shown and text.startswith(self._shown.rstrip()):
            # The end of what grew may have been white space, which is no part of the answer.
            self._write(text[len(self._shown) :])
            if not (self._shown.endswith("\n") and len(self._shown) > len(text)):
                self._write("\n")
        else:
            self._write(("\n" if self._shown else "\r" if self._tty else "") + text + "\n")
        self._shown = ""

    def _prompt(self) -> None:
        if self._tty and not self._shown:
            self._write("> ")

    def _write(self, text: str) -> None:
        self._sink.write(text)
        self._sink.flush()
