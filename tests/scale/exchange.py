"""
Where virtual people and daemons meet: a server of several accounts in the process of the people, and each daemon's end of it.

One connection for each account, lines of JSON arrays in both directions. The server keeps what was said until the
daemon has acknowledged it, and hands it out again to whoever logs in next; it knows an answer that is sent twice
under one key. A daemon's end is a `LoopbackServer`, so the channel is the one of the tests.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import orjson

from channels.base import ChannelUnavailable, Redelivery
from tests.doubles.loopback import Delivered, Link, LoopbackServer, Said


class _Wire(asyncio.Protocol):
    """One connection: lines in, lines out."""

    def __init__(self, heard: Callable[[_Wire, list[Any]], None], ended: Callable[[_Wire], None]) -> None:
        self._heard, self._ended = heard, ended
        self._rest = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._heard(self, orjson.loads(line))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._ended(self)

    def send(self, *words: Any) -> None:
        if self._transport is not None:
            self._transport.write(orjson.dumps(words) + b"\n")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class _Account:
    def __init__(self) -> None:
        self.wire: _Wire | None = None
        self.said: deque[tuple[int, str, str, str]] = deque()
        self.sequence = 0
        self.taken: dict[str, str] = {}


class Exchange:
    """
    The people's side.

    Args:
        path: Of the socket.
        answered: Told of each answer that people see: account, conversation and text.
    """

    def __init__(self, path: Path, answered: Callable[[str, str, str], None]) -> None:
        self._path, self._answered = path, answered
        self._accounts: dict[str, _Account] = {}
        self._of: dict[_Wire, str] = {}
        self._counts: dict[int, dict[str, list[int]]] = {}
        self.repeated = 0
        """How often a daemon has sent something once more."""

    async def start(self) -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Wire(self._hear, self._lost), self._path)

    def close(self) -> None:
        """Hang up."""
        self._server.close()
        for wire in list(self._of):
            wire.close()

    def say(self, account: str, conversation: str, text: str) -> None:
        """Somebody says something."""
        place = self._accounts.setdefault(account, _Account())
        place.sequence += 1
        said = (place.sequence, conversation, text, datetime.now(UTC).isoformat())
        place.said.append(said)
        if place.wire is not None:
            place.wire.send("said", *said)

    async def counts(self) -> dict[int, dict[str, list[int]]]:
        """What the daemons have counted, by process: calls, transactions and round trips by the name of the call."""
        self._counts = {}
        for wire in self._of:
            wire.send("count")
        await anyio.sleep(0.3)
        return self._counts

    def _hear(self, wire: _Wire, words: list[Any]) -> None:
        kind, *rest = words
        if kind == "login":
            [name] = rest
            self._of[wire] = name
            account = self._accounts.setdefault(name, _Account())
            account.wire = wire
            for said in account.said:
                wire.send("said", *said)
        elif kind == "counted":
            self._counts[rest[0]] = rest[1]
        elif kind == "acknowledged":
            account = self._accounts[self._of[wire]]
            while account.said and account.said[0][0] <= rest[0]:
                account.said.popleft()
        elif kind == "find":
            wire.send("found", rest[0], self._accounts[self._of[wire]].taken.get(rest[1]))
        else:
            self._take(wire, *rest)

    def _take(self, wire: _Wire, question: int, key: str, conversation: str, text: str) -> None:
        name = self._of[wire]
        taken = self._accounts[name].taken
        if key in taken:
            self.repeated += 1
        else:
            taken[key] = f"$answer-{len(taken)}"
            self._answered(name, conversation, text)
        wire.send("found", question, taken[key])

    def _lost(self, wire: _Wire) -> None:
        name = self._of.pop(wire, "")
        if name and self._accounts[name].wire is wire:
            self._accounts[name].wire = None


class LinkedServer(LoopbackServer):
    """
    A daemon's end, for one account.

    Args:
        path: Of the socket.
        counted: What is told when the people's side asks for it.
    """

    def __init__(self, path: Path, counted: Callable[[], tuple[int, dict[str, list[int]]]]) -> None:
        super().__init__(redelivery=Redelivery.SAME_KEY)
        self._path, self._counted = path, counted
        self._wire: _Wire | None = None
        self._received: deque[tuple[int, str, str, str]] = deque()
        self._came = anyio.Event()
        self._numbers = itertools.count()
        self._questions: dict[int, asyncio.Future[str | None]] = {}

    async def login(self, account: str) -> Link:
        """Connect; what nobody has acknowledged comes by itself."""
        if self._wire is not None:
            self._wire.close()
        self._received.clear()
        loop = asyncio.get_running_loop()
        try:
            _, self._wire = await loop.create_unix_connection(
                lambda: _Wire(self._hear, self._lost), str(self._path)
            )
        except OSError as error:
            raise ChannelUnavailable(f"nobody listens at the exchange: {error}") from error
        self._wire.send("login", account)
        return Link(account, 0)

    async def fetch(self, link: Link, after: int, *, limit: int, wait_s: float) -> Sequence[Said]:
        """What was said after ``after``."""
        with anyio.move_on_after(wait_s):
            while True:
                while self._received and self._received[0][0] <= after:
                    self._received.popleft()
                if self._received:
                    return [_said(*each) for each in itertools.islice(self._received, limit)]
                self._connected()
                if wait_s <= 0:
                    break
                await self._came.wait()
        return ()

    async def acknowledge(self, link: Link, sequence: int) -> None:
        """It need not be kept."""
        self._connected().send("acknowledged", sequence)

    async def take(self, link: Link, message: Delivered) -> str:
        """Send, and wait for the name that it has there."""
        name = await self._ask("take", message.key, message.conversation, message.text)
        assert name is not None
        return name

    async def find(self, link: Link, key: str) -> str | None:
        """Ask whether it arrived."""
        return await self._ask("find", key)

    async def _ask(self, kind: str, *words: str) -> str | None:
        wire, number = self._connected(), next(self._numbers)
        future = self._questions[number] = asyncio.get_running_loop().create_future()
        wire.send(kind, number, *words)
        try:
            return await future
        finally:
            del self._questions[number]

    def _connected(self) -> _Wire:
        if self._wire is None:
            raise ChannelUnavailable("the exchange has hung up")
        return self._wire

    def _hear(self, wire: _Wire, words: list[Any]) -> None:
        kind, *rest = words
        if kind == "said":
            self._received.append(tuple(rest))  # type: ignore[arg-type]
            self._tell()
        elif kind == "count":
            wire.send("counted", *self._counted())
        elif (future := self._questions.get(rest[0])) is not None and not future.done():
            future.set_result(rest[1])

    def _lost(self, wire: _Wire) -> None:
        if wire is self._wire:
            self._wire = None
            for future in self._questions.values():
                if not future.done():
                    future.set_exception(ChannelUnavailable("the exchange has hung up"))
            self._tell()

    def _tell(self) -> None:
        self._came.set()
        self._came = anyio.Event()


def _said(sequence: int, conversation: str, text: str, said_at: str) -> Said:
    return Said(
        sequence=sequence,
        native_id=f"$said-{sequence}",
        person=f"@{conversation.removeprefix('dm-')}:hs.test",
        text=text,
        conversation=conversation,
        said_at=datetime.fromisoformat(said_at),
    )
