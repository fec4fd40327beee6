"""
The person's side of the terminal channel: typed text goes in, events (plain data for a line of JSON) come
out. An answer is delivered when the link's holder asks for the next event or leaves in order; after an
exception the next link gets it again. The newest `MAX_WAITING` answers and the newest hint of each kind are
kept.
"""

from __future__ import annotations

import secrets
from collections import deque
from types import TracebackType
from typing import Annotated, Literal, Protocol, Self

import anyio
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from agent_core.bounded import Bounded
from agent_core.messages import OutboundKind, SessionKey


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Answer(_Event):
    """
    A whole message from the bot; ``id`` is the same for a repetition.

    ``answers`` is the native id up to which messages are answered, or "".
    """

    type: Literal["answer"] = "answer"
    id: str
    text: str
    kind: OutboundKind = OutboundKind.REPLY
    answers: str = ""


class Preview(_Event):
    """The unfinished answer as it is now; replaces the previous one."""

    type: Literal["preview"] = "preview"
    text: str


class Typing(_Event):
    """The bot is working, or no longer."""

    type: Literal["typing"] = "typing"
    on: bool


TerminalEvent = Annotated[Answer | Preview | Typing, Field(discriminator="type")]
"""What a link yields; ``model_dump_json`` writes it for a socket, `parse_event` reads it."""

_EVENT: TypeAdapter[Answer | Preview | Typing] = TypeAdapter(TerminalEvent)


def parse_event(data: str | bytes) -> Answer | Preview | Typing:
    """Read an event that ``model_dump_json`` wrote. Raises `ValueError`: it is not one."""
    return _EVENT.validate_json(data)


MAX_WAITING = 64
REMEMBERED = 1000


class LinkOwner(Protocol):
    """The part of its channel that a link uses."""

    async def accept_line(self, session: SessionKey, text: str, native_id: str) -> None:
        """Hand over what was typed; returns once it is accepted, else raises `ChannelUnavailable`."""
        ...

    def note_confirmation(self, answer_id: str) -> None:
        """Note that a link has confirmed an answer."""
        ...

    def detach(self, link: TerminalLink) -> None:
        """Note that a link is closed."""
        ...


class TerminalDelivery:
    """One attempt to deliver one answer to the links of a session."""

    def __init__(self, event: Answer) -> None:
        self.event = event
        self.holders: set[TerminalLink] = set()
        self.received = False
        """A link has given it to its holder."""
        self.taken = False
        """A holder has dealt with it."""
        self.over = anyio.Event()

    def confirm(self) -> None:
        """Note that a link has confirmed it."""
        self.taken = True
        self.over.set()

    def drop(self, link: TerminalLink) -> None:
        """Note that a link does not have it any more; when none has, the wait ends."""
        self.holders.discard(link)
        if not self.holders:
            self.over.set()


class TerminalLink:
    """
    One screen and keyboard, attached to one session. Use it as an async context manager and iterate over it.

    Only one task may iterate. Leaving the ``async with`` block with an exception means that the event at
    hand was not dealt with; leaving it in order means that it was.
    """

    def __init__(self, owner: LinkOwner, session: SessionKey) -> None:
        self.session = session
        self.closed = False
        self._owner = owner
        self._queue: deque[TerminalDelivery | Preview | Typing] = deque()
        self._at_hand: TerminalDelivery | None = None
        self._shown: Bounded[str, None] = Bounded(REMEMBERED)
        self._arrived = anyio.Event()

    async def say(self, text: str, *, native_id: str | None = None) -> str:
        """Send the text; return its id once accepted. Raises ChannelUnavailable: repeat with the same id."""
        native_id = native_id or secrets.token_hex(16)
        await self._owner.accept_line(self.session, text, native_id)
        return native_id

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Answer | Preview | Typing:
        """The next event; ends when the link or the channel is closed."""
        self._confirm()
        while not self._queue:
            if self.closed:
                raise StopAsyncIteration
            self._arrived = anyio.Event()
            await self._arrived.wait()
        entry = self._queue.popleft()
        if not isinstance(entry, TerminalDelivery):
            return entry
        entry.received = True
        self._at_hand = entry
        self._shown[entry.event.id] = None
        return entry.event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._confirm()
        self.close()

    def close(self) -> None:
        """Detach. An unconfirmed answer is delivered again to the next link."""
        if self.closed:
            return
        self.closed = True
        self._owner.detach(self)
        for entry in [*self._queue, self._at_hand]:
            if isinstance(entry, TerminalDelivery):
                entry.drop(self)
        self._queue.clear()
        self._at_hand = None
        self._arrived.set()

    # ── for the channel ──
    def queue_answer(self, handover: TerminalDelivery) -> None:
        """Queue an answer. One that is at hand already is only waited for; one that was dealt with, is."""
        handover.holders.add(self)
        if self._at_hand is not None and self._at_hand.event.id == handover.event.id:
            handover.received = True
            self._at_hand = handover
        elif handover.event.id in self._shown:
            handover.confirm()
        else:
            # The preview that waits is of this answer, or of an older one.
            self._forget(Preview)
            if len(self._queue) >= MAX_WAITING:
                oldest = next(entry for entry in self._queue if isinstance(entry, TerminalDelivery))
                self.withdraw(oldest)
                oldest.drop(self)
            self._put(handover)

    def queue_hint(self, event: Preview | Typing) -> None:
        """Queue a hint; it replaces the last one of its kind."""
        self._forget(type(event))
        self._put(event)

    def withdraw(self, handover: TerminalDelivery) -> None:
        """Withdraw an answer that has not been received. A received one stays, for the next attempt."""
        if handover in self._queue:
            self._queue.remove(handover)

    # ── inside ──
    def _forget(self, kind: type[Preview | Typing]) -> None:
        self._queue = deque(entry for entry in self._queue if not isinstance(entry, kind))

    def _put(self, entry: TerminalDelivery | Preview | Typing) -> None:
        self._queue.append(entry)
        self._arrived.set()

    def _confirm(self) -> None:
        if self._at_hand is not None:
            handover, self._at_hand = self._at_hand, None
            self._owner.note_confirmation(handover.event.id)
            handover.confirm()
