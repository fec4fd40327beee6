"""
Messages that a model sends elsewhere for the owner: to the owner on another channel, or to known people and
rooms. Known are people named in the settings by address, allowed people who have written with a proven
address, and rooms in which such people addressed the bot; a ``*`` makes nobody known. An ambiguous name is
explained to the model, and the question shows the address. Messages leave through the outbox, once per
request, and become a line of the recipient's history with their origins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import anyio
import structlog

from agent_core.errors import ToolDenied, ToolFailed, ToolRetry
from agent_core.language import _, speaking
from agent_core.messages import (
    Attachment,
    Audience,
    InboundMessage,
    MessageContext,
    MessageNotes,
    OutboundKind,
    SessionKey,
)
from agent_core.ports import Clock
from agent_core.provenance import Origins, join_origins, person, to_json
from agent_core.text import one_line
from channels.base import Channel, ChannelError, SupportsDirectMessages, SupportsRoomNames
from channels.split import message_parts
from gateway.proactive.jobs.job_permissions import PlaceUnknown, has_bot_left
from gateway.proactive.owner_contact import OwnerContact
from gateway.routing.access import Access, Role, is_admitted, kinds_of, normalise
from gateway.routing.conversations import addresses_for, scope_at
from gateway.store.stores import NewOutbound, Queue, StoreUnavailable

if TYPE_CHECKING:
    from agent_core.tools.dav.invitation_tool import InvitationReply  # only with a calendar

PER_TURN, PER_HOUR = 5, 20
"""Messages at most; they count from the start of the daemon."""
FindContacts = Callable[[str], Awaitable[Mapping[str, str]]]
"""Looks people up in the owner's address book, by name or address; returns names by address of mail."""
_LOOKED_AT = 200
_LISTED = 20
_A_ROOM = "a room"
_MAX_NAME = 80
_NO_QUOTES = str.maketrans('“”"', "'''")
_TOO_MANY = (
    "Nothing was sent: there were {count} messages to others or elsewhere {when}, which is the limit. "
    "Tell the person so once, and do not try again in this turn."
)
_NO_REPLY = "The calendar has the answer, but the organizer was not told: the disk accepts no writes now."
_ANSWERS: Mapping[str, Callable[[str, str, str], str]] = {
    "accept": lambda who, title, _at: _("{who} accepts: {title}", who=who, title=title),
    "decline": lambda who, title, _at: _("{who} declines: {title}", who=who, title=title),
    "tentative": lambda who, title, _at: _("{who} may come: {title}", who=who, title=title),
    "propose": lambda who, title, at: _(
        "{who} proposes another time, {at}: {title}", who=who, at=at, title=title
    ),
}
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class Messenger:
    """Sends messages for the owner. One instance for all sessions."""

    store: Queue
    contact: OwnerContact
    _: KW_ONLY
    access: Access
    channels: Mapping[str, Channel]
    clock: Clock
    find_contacts: FindContacts | None = None

    def __post_init__(self) -> None:
        self._posting = anyio.Lock()
        self._posted: deque[tuple[str, float]] = deque(maxlen=PER_HOUR)
        """The turn and the time of the newest messages."""

    def own_channel(self, to: str) -> str | None:
        """Return the owner's own channel that is meant, by its name or by an address of the owner."""
        name, _, place = to.strip().partition(":")
        name = name.lower()
        channel = self.channels.get(name)
        if not isinstance(channel, SupportsDirectMessages):
            return None
        mine = self.access.owner_addresses_on(name)
        return name if mine and (not place or normalise(place) in mine) else None

    def language_of(self, to: str) -> str:
        """The language of a recipient as the model names one; empty: that of the home."""
        return self.access.household.rules(_address_in(to)).language

    async def known_recipients(self) -> dict[str, str]:
        """Return people and rooms that may get messages, by address. Raises `StoreUnavailable`."""
        found: dict[str, str] = {
            f"{name}:{address}": ""
            for name, channel in self.channels.items()
            if isinstance(channel, SupportsDirectMessages)
            for address in self.access.allowed_addresses(name)
        }
        for name in self.channels:
            for row in await self.store.inbox.list_accepted_messages(name, limit=_LOOKED_AT):
                for each, called in self._recipients_in(row.message).items():
                    found[each] = found.get(each) or called
        return found

    async def _is_known(self, wanted: str, place: str) -> bool:
        """Return True if that one may be written to after a yes; ``place`` is the address as given."""
        name, _, address = wanted.partition(":")
        if not isinstance(self.channels.get(name), SupportsDirectMessages):
            return False
        if address in self.access.allowed_addresses(name):
            return True
        if self.access.is_room(name, address):
            rows = await self.store.inbox.list_accepted_messages(
                name, session=SessionKey(name, address), limit=_LOOKED_AT
            )
            return any(wanted in self._recipients_in(row.message) for row in rows)
        if self.access.role(name, address, verified=True) is not Role.ALLOWED:
            return False  # whatever they have written: the payloads need not be read
        for spelling in {address, address if place.isascii() else place.strip()}:
            rows = await self.store.inbox.list_accepted_messages(name, sender=spelling)
            if any(wanted in self._recipients_in(row.message) for row in rows):
                return True
        return False

    async def _contacts(self, wanted: str) -> dict[str, str]:
        """Return those of the owner's contacts that may be meant, as recipients. Raises `ToolError`."""
        found = await self.find_contacts(wanted) if self.find_contacts and wanted.strip() else {}
        accounts = self.mail_accounts() if found else ()
        return {f"{each}:{normalise(address)}": name for each in accounts for address, name in found.items()}

    def _recipients_in(self, message: InboundMessage) -> dict[str, str]:
        """Return whom a message makes known, with the name that they use: its sender and its room."""
        found: dict[str, str] = {}
        channel = self.channels.get(message.channel)
        if message.kind != "message" or not isinstance(channel, SupportsDirectMessages):
            return found
        if not message.sender.verified or is_admitted(message) or not self.access.decide(message).allowed:
            return found
        if self.access.role(message.channel, message.sender.address, verified=True) is Role.ALLOWED:
            found[f"{message.channel}:{normalise(message.sender.address)}"] = message.sender.name
        if message.audience is Audience.GROUP and not channel.capabilities.email_style:
            found[f"{message.channel}:{message.session.conversation}"] = _A_ROOM
        return found

    async def recipient(self, to: str) -> str:
        """Return who is meant, as ``channel:address``. Raises `ToolRetry`: that is not certain."""
        if (own := self.own_channel(to)) is not None:
            return f"{own}:{await self._own_address(own, _address_in(to))}"
        name, _, place = to.strip().partition(":")
        if name.lower() in self.channels:
            wanted = f"{name.lower()}:{normalise(place)}"
        else:
            kinds, address = kinds_of(to.strip()), normalise(to)
            wanted = next(
                (f"{each}:{address}" for each in self.channels if self.access.kind(each) in kinds), ""
            )
        try:
            if await self._is_known(wanted, place or to):
                return wanted
            known = {
                each: self._name_of(each) or name for each, name in (await self.known_recipients()).items()
            }
            contacts = await self._contacts(place if name.lower() in self.channels else to)
            if wanted in contacts:
                return wanted
            known = contacts | known
        except StoreUnavailable as error:
            raise ToolFailed("The known recipients cannot be looked up now.") from error
        on_one = name.lower() in self.channels
        prefix = f"{name.lower()}:" if on_one else ""
        called = {each: "" if name == _A_ROOM else name for each, name in known.items()}
        meant = addresses_for(
            place if on_one else to, {each: called[each] for each in known if each.startswith(prefix)}
        )
        if len(meant) == 1:
            return meant[0]
        shown = sorted((each, known[each]) for each in meant or known)[:_LISTED]
        names = {each: one_line(name, _MAX_NAME) for each, name in shown}
        listed = ", ".join(f"{each} ({name})" if name else each for each, name in names.items())
        places = [(name, *each.partition(":")[::2]) for each, name in names.items()]
        others = [
            person(address, self.clock.now())
            for called, name, address in places
            if called or address not in self.access.allowed_addresses(name)
        ]
        own_ones = ", ".join(sorted(each for each in self.channels if self.own_channel(each)))
        if meant:
            raise ToolRetry(
                f"Nothing was sent: {to[:100]!r} can be {listed}. Ask once who is meant; use the address.",
                origins=join_origins(others),
            )
        raise ToolRetry(
            f"Nothing was sent: {to[:100]!r} is not a known recipient. The owner's own channels: "
            f"{own_ones or 'none'}. Known are: {listed or 'nobody else'}.",
            origins=join_origins(others),
        )

    async def _own_address(self, name: str, wanted: str) -> str:
        """Return the owner's address on a channel: the wanted one, else the usual one."""
        if wanted:
            return wanted
        mine = self.access.owner_addresses_on(name)
        try:
            known = await self.contact.get()
        except StoreUnavailable as error:
            raise ToolFailed("The owner's place cannot be looked up now.") from error
        usual = normalise(known.person) if known is not None and known.channel == name else ""
        return usual if usual in mine else mine[0]

    def describe(self, recipient: str) -> str:
        """A room with the name that it has there; it follows the address, which nobody can choose freely."""
        called = one_line(self._name_of(recipient), _MAX_NAME).translate(_NO_QUOTES)
        return f"{recipient} (the room “{called}”)" if called else recipient

    def _name_of(self, recipient: str) -> str:
        """The name of a room; empty: it has none, or it is a person."""
        name, _, place = recipient.partition(":")
        channel = self.channels.get(name)
        is_room = place.startswith("!")
        return channel.room_name(place) if is_room and isinstance(channel, SupportsRoomNames) else ""

    async def post(
        self,
        session: SessionKey,
        turn: str,
        text: str,
        files: Sequence[Attachment],
        context: MessageContext,
        *,
        once: tuple[str, str],
    ) -> None:
        """Put a message into the outbox. Raises `ToolDenied`, `StoreUnavailable`."""
        channel = self.channels[session.channel]
        outbound = [
            NewOutbound(
                session.channel,
                channel.account,
                session,
                part,
                OutboundKind.MESSAGE,
                context,
                attachments=attached,
                remembered=True,
            )
            for part, attached in message_parts(text, files, channel.capabilities)
        ]
        async with self._posting:
            self.check_limits(turn)  # another turn may have posted meanwhile
            await self.store.outbox.post(outbound, once=once)
            self._posted.append((turn, self.clock.monotonic()))

    def mail_accounts(self) -> list[str]:
        """The names of the mail accounts that messages may leave by."""
        return [
            name
            for name, channel in self.channels.items()
            if channel.capabilities.email_style and isinstance(channel, SupportsDirectMessages)
        ]

    def check_limits(self, turn: str) -> None:
        """Raise `ToolDenied`: there are as many as allowed."""
        since = self.clock.monotonic() - 3600.0
        recent = [of for of, at in self._posted if at > since]
        if recent.count(turn) >= PER_TURN:
            raise ToolDenied(_TOO_MANY.format(count=PER_TURN, when="in this turn"))
        if len(recent) >= PER_HOUR:
            raise ToolDenied(_TOO_MANY.format(count=PER_HOUR, when="in the last hour"))

    async def find_place(self, to: str, name: str, place: str, *, topic: str) -> tuple[SessionKey, str]:
        """Return the conversation in which it is said, and for whom alone."""
        if self.own_channel(to) is not None:
            reached = await self.contact.reach_on(name, topic=topic, person=_address_in(to))
            if reached.target is None:
                raise ToolFailed(f"Nothing was sent: {reached.why}.")
            return reached.target.session, reached.target.person or place
        try:
            if place.startswith("!") and await has_bot_left(self.channels[name], SessionKey(name, place)):
                raise ToolFailed(f"Nothing was sent: I am no longer in {place}.")
        except PlaceUnknown as error:
            raise ToolFailed(f"Nothing was sent: {place} cannot be written to now.") from error
        if place.startswith(("@", "!")):
            return SessionKey(name, place), ""  # a person's room is found, or made, when it is sent
        channel = self.channels[name]
        assert isinstance(channel, SupportsDirectMessages)
        try:
            with anyio.fail_after(30.0):
                return await channel.direct_session(place, topic=topic), ""
        except (ChannelError, TimeoutError) as error:
            raise ToolFailed(f"Nothing was sent: {place} cannot be written to now.") from error


class RunMessages:
    """Implements `agent_core.tools.send_message.MessengerPort` for one run, whose person is ``who``."""

    def __init__(self, messenger: Messenger, session: SessionKey, turn: str, who: str) -> None:
        self._messenger = messenger
        self._who = one_line(who, _MAX_NAME)
        self._session = session
        self._turn = turn

    def is_own(self, to: str) -> bool:
        """Return True if ``to`` is one of the owner's addresses."""
        return self._messenger.own_channel(to) is not None

    def add_sender(self, to: str, text: str) -> str:
        """Say to others who sends it."""
        with speaking(self._messenger.language_of(to)):
            return text if self.is_own(to) else _("{who} says: {text}", who=self._who, text=text).strip()

    async def recipient(self, to: str) -> str:
        """Return the recipient that ``to`` names."""
        return await self._messenger.recipient(to)

    def describe(self, recipient: str) -> str:
        """Return the recipient as people know it."""
        return self._messenger.describe(recipient)

    @property
    def _mail_account(self) -> str:
        """The name of the mail account for replies: that of the conversation, if it is one; empty: none."""
        found = self._messenger.mail_accounts()
        return self._session.channel if self._session.channel in found else next(iter(found), "")

    def mail_addresses(self) -> tuple[str, Sequence[str]]:
        """See `agent_core.tools.dav.invitation_tool.InvitationMailPort`."""
        messenger, name = self._messenger, self._mail_account
        if not name:
            return "", ()
        return messenger.channels[name].account, messenger.access.owner_addresses_on(name)

    async def is_posted(self, key: str) -> bool:
        """Return True if this turn has posted a message for ``key``."""
        try:
            return await self._messenger.store.outbox.is_posted(self._once(key))
        except StoreUnavailable as error:
            raise ToolFailed("It cannot be looked up now whether that was sent.") from error

    async def send(
        self, to: str, text: str, files: Sequence[Attachment], *, key: str, origins: Origins
    ) -> str:
        """Post a message once per ``key``; return the outcome. Raises ToolError."""
        messenger, once = self._messenger, self._once(key)
        recipient = await messenger.recipient(to)
        name, _, place = recipient.partition(":")
        try:
            if await messenger.store.outbox.is_posted(once):
                return f"It is on its way to {recipient}."
            messenger.check_limits(self._turn)
            session, person = await messenger.find_place(to, name, place, topic=_topic(text, files))
            if session == self._session:
                raise ToolDenied("Nothing was sent: that is this conversation. Just answer.")
            context = MessageContext(person=person, notes=self._notes(session, place, origins))
            await messenger.post(session, self._turn, text, files, context, once=once)
        except StoreUnavailable as error:
            raise ToolFailed("Nothing was sent: the disk accepts no writes now.") from error
        _log.info("message.posted", channel=name, own=self.is_own(to), files=len(files))
        return f"It is on its way to {recipient}."

    async def reply_to_invitation(self, reply: InvitationReply, *, key: str, origins: Origins) -> None:
        """Post a reply by mail, once per ``key``. Raises ToolError."""
        messenger, name, place = self._messenger, self._mail_account, reply.organizer
        with speaking(messenger.language_of(f"{name}:{place}")):
            text = _ANSWERS[reply.answer](self._who, reply.title, reply.proposed)
        try:
            messenger.check_limits(self._turn)
            session, _person = await messenger.find_place("", name, place, topic=text)
            notes = self._notes(session, place, origins)
            context = MessageContext(notes=notes, headline=text, itip=reply.content)
            await messenger.post(session, self._turn, text, (), context, once=self._once(key))
        except StoreUnavailable as error:
            raise ToolFailed(_NO_REPLY) from error
        _log.info("invitation.answered", channel=name)

    def _notes(self, session: SessionKey, place: str, origins: Origins) -> MessageNotes:
        scope = scope_at(self._messenger.access, session, place)
        return MessageNotes(scope=scope, origins=to_json(origins) or None)

    def _once(self, key: str) -> tuple[str, str]:
        return f"message {self._session}", f"{self._turn} {key}"


def _address_in(to: str) -> str:
    """The address in ``channel:address``; empty: no certain one is meant."""
    return normalise(to.strip().partition(":")[2])


def _topic(text: str, files: Sequence[Attachment]) -> str:
    lines = text.strip().splitlines() or [files[0].name if files else ""]
    return lines[0].lstrip("# ").strip()[:80]
