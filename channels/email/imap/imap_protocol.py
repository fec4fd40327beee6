"""
aioimaplib's protocol, hardened for a daemon: it never hangs, never recurses, never throws an event away.

What stock aioimaplib 2.0.3 does on a real network, and what happens here instead (each with a test that the
stock class fails, in ``tests/unit/channels/email/test_imap_protocol.py``):

====  =============================================================  =====================================
trap  stock                                                          here
====  =============================================================  =====================================
1     a lost connection is silent: commands and IDLE wait for ever   everything that waits raises `LinkLost`
2     DONE without an answer waits for ever                          every wait has a deadline
3     one recursion per line: dies at about 700 lines at once        `ResponseReader` is a loop
4     FETCH looks at all lines again for each line                   each line is looked at once
5     a reply after a timeout breaks every later command             a timeout or cancellation aborts the link
6     EXISTS inside another reply is thrown away                     sets ``pushed``
7     no way to hear about the loss with TLS                         ``lost`` and `pushed`
8     a greeting of BYE becomes a timeout                            raises at once, with the server's words
9     a refused SASL token (``+`` with an error) is never answered   answered with an empty line
10    capabilities are junk after login                              `capability` reads them, any time
11    every ``* `` in a line is removed                              only the one in front
12    any line that ends in ``{5}`` is a literal; bytes are ASCII    only where literals can be; bytes stay
13    ``uid("search")`` raises, results are a flat list              `uid_search`; one tuple per response
14    a bare LF or a lower-case ``ok`` is never understood           both are
====  =============================================================  =====================================

One command at a time, on purpose: the channel needs no more, and replies cannot be mixed up. Nothing is ever
logged here, because what passes is passwords and other people's mail.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
from aioimaplib import aioimaplib

from channels.email.imap.imap_syntax import ImapResponse, ResponseReader, WireError, quote

MAX_RESPONSES = 500_000
"""Responses between two commands: more than any mailbox that a person reads in has mails."""
MAX_ANSWER_BYTES = 128_000_000
"""All of them together: far more than is ever asked for at once."""


class HardenedProtocol(aioimaplib.IMAP4ClientProtocol):  # type: ignore[misc]  # aioimaplib has no types
    """
    One connection, from the greeting to its end.

    Waiting methods raise `LinkLost`, `ImapRefused`, or `TimeoutError` after ``timeout_s`` without data; that,
    and a cancellation, abort it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.exists = 0
        """How many mails the server last said the selected folder holds."""
        self.pushed = asyncio.Event()
        """Set when there is something to look at: an EXISTS, the end of an IDLE, the loss of the link."""
        self.lost: Exception | None = None
        self.closed = asyncio.Event()
        self._reader = ResponseReader()
        self._greeting: asyncio.Future[None] = loop.create_future()
        self._command: ImapCommand | None = None
        self._sasl: list[str] = []
        self._upload: bytes | None = None
        self._responses = 0
        self._answer_bytes = 0
        self._deaf = False

    # ── the stream ──
    def data_received(self, data: bytes) -> None:
        """Read on; a stream that is not IMAP ends the connection."""
        if self.lost is not None:
            return
        if self._command is not None:
            self._command.note_progress()
        try:
            for response in self._reader.feed(data):
                self._dispatch(response)
        except (WireError, aioimaplib.AioImapException) as exc:
            self.abort(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake all waiting tasks."""
        self._fail(exc or LinkLost("the server closed the connection"))
        self.closed.set()

    def abort(self, reason: Exception | None = None) -> None:
        """Drop the connection at once. May be called twice."""
        self._fail(reason or LinkLost("the connection was abandoned"))
        if self.transport is None:
            self.closed.set()
        else:
            self.transport.abort()

    def _fail(self, reason: Exception) -> None:
        if self.lost is None:
            self.lost = reason
        lost = self._as_lost()
        if not self._greeting.done():
            self._greeting.set_exception(lost)
            self._greeting.exception()  # it is retrieved even if nobody waits
        if self._command is not None:
            self._command.fail(lost)
        self._idle_event.set()
        self.pushed.set()

    def _as_lost(self) -> LinkLost:
        lost = self.lost if isinstance(self.lost, LinkLost) else LinkLost(str(self.lost) or repr(self.lost))
        if lost is not self.lost:
            lost.__cause__ = self.lost
        return lost

    def _dispatch(self, response: ImapResponse) -> None:
        if self._deaf:
            raise WireError("the server kept sending plaintext after it had agreed to TLS")
        self._responses += 1
        self._answer_bytes += sum(map(len, response))
        if self._responses > MAX_RESPONSES or self._answer_bytes > MAX_ANSWER_BYTES:
            raise WireError("the server's answer does not end")
        head = response[0]
        if self.state == aioimaplib.CONNECTED:
            self._greet(head)
        elif head.startswith(b"* "):
            self._untagged(response)
        elif head.startswith(b"+"):
            self._continuation(head)
        else:
            self._tagged(head)

    def _greet(self, line: bytes) -> None:
        word = line[2:].split(b" ", 1)[0].upper()
        if word in (b"OK", b"PREAUTH"):
            self.state = aioimaplib.AUTH if word == b"PREAUTH" else aioimaplib.NONAUTH
            if not self._greeting.done():
                self._greeting.set_result(None)
        else:
            self.abort(
                ImapRefused("greeting", word.decode("ascii", "replace"), line[2 + len(word) :].strip())
            )

    def _untagged(self, response: ImapResponse) -> None:
        words = response[0][2:].split(b" ", 2)
        if len(words) > 1 and words[0].isdigit() and words[1].upper() == b"EXISTS":
            self.exists = int(words[0][:12])
            self.pushed.set()
        elif words[0].upper() == b"BYE":
            # What is still to come of this connection is its end; a LOGOUT waits for its own OK.
            self.pushed.set()
        command = self._command
        if command is not None and command.name != "IDLE":
            command.append_to_resp(response)

    def _tagged(self, line: bytes) -> None:
        tag, _, rest = line.partition(b" ")
        command = self._command
        if command is None or command.tag.encode() != tag:
            raise WireError("the server sent an answer to no command")
        result, _, text = rest.partition(b" ")
        if command.name == "STARTTLS":
            self._deaf = True  # whatever still comes in the clear was put there by somebody else
            self.transport.pause_reading()
        command.close(text, result.decode("ascii", "replace").upper())
        if command.name == "IDLE":
            self._idle_event.set()
            self.pushed.set()

    def _continuation(self, line: bytes) -> None:
        command = self._command
        if command is None:
            return
        if command.name == "IDLE":
            self._idle_event.set()
        elif command.name == "APPEND" and self._upload is not None:
            self.transport.write(self._upload + b"\r\n")
            self._upload = None
        elif command.name == "AUTHENTICATE":
            # Nothing left to say: the server sent an error that wants to be acknowledged before it says NO.
            self.send(self._sasl.pop(0) if self._sasl else "")

    # ── commands ──
    def send(self, line: str, scrub: str | None = None) -> None:
        """Write one line."""
        self.transport.write(line.encode() + b"\r\n")

    async def wait_greeting(self, timeout_s: float) -> None:
        """Wait for the greeting."""
        try:
            with anyio.fail_after(timeout_s):
                await self._greeting
        except BaseException:
            self.abort()
            raise

    async def run(self, name: str, *args: str, uid: bool = False, timeout_s: float) -> ImapReply:
        """Send a command and wait for its end."""
        return await self._run(
            ImapCommand(name, self.new_tag(), *args, prefix="UID" if uid else "", timeout=timeout_s)
        )

    async def execute(self, command: Any, scrub: str | None = None) -> Any:
        """Refuse the library's own way to run commands: it has none of the promises of `run`."""
        raise NotImplementedError("use run")

    async def _run(self, command: ImapCommand) -> ImapReply:
        with self._pending(command):
            self.send(str(command))
            await self._finish(command)
        return self._reply(command)

    async def _finish(self, command: ImapCommand) -> None:
        try:
            await command.wait()
        except aioimaplib.CommandTimeout as exc:
            raise TimeoutError(f"no answer to {command.name}") from exc

    def _reply(self, command: ImapCommand) -> ImapReply:
        result, lines = command.response
        if result != "OK":
            raise ImapRefused(command.name, result, lines[-1])
        return ImapReply(tuple(lines[:-1]), lines[-1])

    @contextmanager
    def _pending(self, command: ImapCommand) -> Iterator[None]:
        """The time in which ``command`` runs; if it has not ended when that is over, the link is given up."""
        if self.lost is not None:
            raise self._as_lost()
        if self._command is not None:
            raise RuntimeError(f"{command.name} while {self._command.name} runs")
        known = aioimaplib.Commands.get(command.name)
        if known is not None and self.state not in known.valid_states:
            raise RuntimeError(f"{command.name} in state {self.state}")
        self._command = command
        self._responses = self._answer_bytes = 0
        try:
            yield
        finally:
            self._command = None
            if not command.done or command.response.result == "KO":
                self.abort()

    async def capability(self, timeout_s: float = 30.0) -> None:
        """Ask what the server can do, and remember it in ``capabilities``, in capitals."""
        reply = await self.run("CAPABILITY", timeout_s=timeout_s)
        found: set[str] = set()
        for response in reply.untagged:
            words = response[0].decode("ascii", "replace").upper().split()
            if words[1:2] == ["CAPABILITY"]:
                found.update(words[2:])
        self.capabilities = found

    def continue_with_tls(self, transport: Any) -> None:
        """Continue with TLS and forget plaintext facts. Raises WireError if plaintext is left over."""
        if not self._reader.is_empty:
            raise WireError("the server kept sending plaintext after it had agreed to TLS")
        self.transport = transport
        self.capabilities = set()
        self._deaf = False

    async def authenticate(self, user: str, password: str, timeout_s: float) -> None:
        """Log in by LOGIN, or by SASL PLAIN where LOGIN cannot carry the characters."""
        if (user + password).isascii() and "LOGINDISABLED" not in self.capabilities:
            await self.run("LOGIN", quote(user), quote(password), timeout_s=timeout_s)
        else:
            token = base64.b64encode(f"\0{user}\0{password}".encode()).decode()
            await self.sasl("PLAIN", token, timeout_s)
        self.state = aioimaplib.AUTH

    async def sasl(self, mechanism: str, token: str, timeout_s: float, *, after_error: str = "") -> None:
        """AUTHENTICATE with one token; a challenge after it is answered with ``after_error``."""
        self._sasl = [token, after_error]
        await self.run("AUTHENTICATE", mechanism, timeout_s=timeout_s)
        self.state = aioimaplib.AUTH

    async def open_folder(self, name: str, *, read_only: bool, timeout_s: float) -> ImapReply:
        """SELECT or EXAMINE; ``name`` is quoted here."""
        if self.state == aioimaplib.SELECTED:
            self.state = aioimaplib.AUTH  # a refused SELECT leaves nothing selected
        reply = await self.run("EXAMINE" if read_only else "SELECT", quote(name), timeout_s=timeout_s)
        self.state = aioimaplib.SELECTED
        return reply

    async def uid_search(self, *criteria: str, timeout_s: float) -> list[int]:
        """UID SEARCH; sorted."""
        reply = await self.run("SEARCH", *criteria, uid=True, timeout_s=timeout_s)
        found: set[int] = set()
        for response in reply.untagged:
            words = response[0].split()
            if words[1].upper() == b"SEARCH":
                found.update(int(word) for word in words[2:] if word.isdigit())
        return sorted(found)

    async def append(self, folder: str, raw: bytes, flags: Iterable[str], *, timeout_s: float) -> ImapReply:
        """APPEND a mail."""
        self._upload = raw
        arguments = (quote(folder), f"({' '.join(flags)})", f"{{{len(raw)}}}")
        return await self.run("APPEND", *arguments, timeout_s=timeout_s)

    @asynccontextmanager
    async def idling(self, *, deadline_s: float) -> AsyncIterator[None]:
        """
        IDLE during the block; wait for ``pushed`` in it, with a limit of your own.

        Clear ``pushed`` before reading the mailbox, so that nothing is missed between. Entering and leaving
        take at most ``deadline_s`` each.
        """
        command = ImapCommand("IDLE", self.new_tag())
        with self._pending(command):
            self._idle_event.clear()
            self.send(str(command))
            with anyio.fail_after(deadline_s):
                await self._idle_event.wait()
            yield
            if not command.done:
                self.send("DONE")
            with anyio.fail_after(deadline_s):
                await self._finish(command)
        self._reply(command)


class LinkLost(Exception):
    """The connection to the server is gone."""


class ImapRefused(Exception):
    """The server answered NO or BAD; ``text`` is what it said."""

    def __init__(self, command: str, result: str, text: bytes) -> None:
        self.command = command
        self.result = result
        self.text = text.decode("utf-8", "replace")
        super().__init__(f"{command}: {result} {self.text}")


@dataclass(frozen=True, slots=True)
class ImapReply:
    """The result of a command: the untagged responses meanwhile, and the text of the final OK."""

    untagged: tuple[ImapResponse, ...]
    text: bytes


class ImapCommand(aioimaplib.Command):  # type: ignore[misc]  # aioimaplib has no types
    """A command whose timer restarts with everything that arrives, even half a literal."""

    def note_progress(self) -> None:
        """Something has arrived."""
        if not self.done:
            self._reset_timer()

    def fail(self, exc: Exception) -> None:
        """Raise ``exc`` in the waiting task."""
        if not self._event.is_set():
            self._exception = exc
            self.close(b"", "KO")

    @property
    def done(self) -> bool:
        """Return True if the command has ended."""
        return bool(self._event.is_set())
