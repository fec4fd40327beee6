"""Turns the messages of an archive into what the gateway takes over: messages, changes, and bounces."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from squidbot_api.channel import (
    Amendment,
    Audience,
    ChannelServices,
    InboundMessage,
    Inbox,
    MessageContext,
    Sender,
    SessionKey,
)
from squidbot_xmpp import XmppAddresses, XmppConfig, room_place
from squidbot_xmpp import stanzas as xml
from squidbot_xmpp.files import FileRefused, Files

_REMEMBERED = 1000
_ENCRYPTED = "I cannot read encrypted messages (OMEMO). Please turn encryption off here and say it again."
_THROUGH_A_ROOM = "I do not talk in private through a room. Please write to my own address."


class Search(Protocol):
    """Finds a message again."""

    async def __call__(self, place: str, sender: str, key: str) -> str:
        """The id in the archive of ``place`` of the message that a sender named ``key``; empty: not found."""
        ...


@dataclass(frozen=True)
class XmppRoute:
    """What an answer needs of its question."""

    id: str = ""
    """The question's own id, if its sender wants to know that it is seen (XEP-0333)."""
    nick: str = ""
    """Who has asked in a room."""


@dataclass(slots=True)
class Batch:
    """What a page of an archive says. ``receipts``: to whom which message is confirmed (XEP-0184)."""

    inbox: Inbox
    messages: list[InboundMessage] = field(default_factory=list)
    amendments: list[Amendment] = field(default_factory=list)
    receipts: list[tuple[str, str]] = field(default_factory=list)


class Reader:
    """
    Reads for one account.

    ``search`` is asked for what a correction or withdrawal is about, if it was not read lately.
    """

    def __init__(self, config: XmppConfig, services: ChannelServices, search: Search) -> None:
        self._config, self._services, self._search = config, services, search
        self._files, self._addresses = Files(config, services), XmppAddresses()
        self._known: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def read(
        self, place: str, entries: Sequence[xml.Entry], inbox: Inbox, *, shows_addresses: bool
    ) -> Batch:
        """Understand messages of the account's archive, or of a room's. Raises `ChannelUnavailable`."""
        batch = Batch(inbox)
        for entry in entries:
            said = xml.read_stanza(entry.stanza)
            sender = self._sender(place, entry, shows_addresses=shows_addresses)
            if said is None or sender is None:
                continue
            if said.kind == "bounce":
                batch.amendments += await self._bounced(entry, said, inbox)
            elif said.kind == "message":
                await self._take(batch, place, entry, said, sender)
            else:
                await self._change(batch, place, entry, said, sender)
        return batch

    def _sender(self, place: str, entry: xml.Entry, *, shows_addresses: bool) -> Sender | None:
        """Who has said it; None: the bot, or nobody that could be answered."""
        address, me = xml.bare(entry.sender).lower(), self._config.jid
        nick = xml.resource(entry.sender)
        if place != me:
            real = xml.real_address(entry.stanza) if shows_addresses else ""
            if not nick or address != place or real == me or (not real and nick == self._config.nick):
                return None
            known = self._addresses.parse(real)
            return Sender(address=known or f"{place}/{nick}", name=nick, verified=known is not None)
        if address == me or entry.stanza.get("type") == "groupchat":
            return None
        if address in self._config.rooms:
            return Sender(address=entry.sender, name=nick)
        known = self._addresses.parse(address)
        return Sender(address=known, name=known.partition("@")[0], verified=True) if known else None

    async def _take(self, batch: Batch, place: str, entry: xml.Entry, said: xml.Said, sender: Sender) -> None:
        message = self._message(place, entry, said, sender)
        if said.file and self._files.may_fetch(said.file) and self._may_send_files(message):
            message = await self._with_file(message, said.file)
        self._remember(entry, message.native_id)
        batch.messages.append(message)
        wanted = entry.stanza.find(f"{xml.RECEIPTS}request") is not None
        if (
            wanted
            and place == self._config.jid
            and sender.verified
            and self._services.may_talk(sender.address)
        ):
            batch.receipts.append((entry.sender, entry.stanza.get("id", "")))

    def _message(self, place: str, entry: xml.Entry, said: xml.Said, sender: Sender) -> InboundMessage:
        in_room, private = place != self._config.jid, sender.verified
        text, called = xml.without_call(said.text, self._config.nick) if in_room else (said.text, True)
        context = MessageContext(
            names=(self._config.nick,) if in_room else (), unreadable=_ENCRYPTED if said.encrypted else ""
        )
        if in_room:
            context = context.with_route(XmppRoute(nick=xml.resource(entry.sender)))
        elif not private:
            context = MessageContext(unreadable=_THROUGH_A_ROOM)
        elif entry.stanza.find(f"{xml.MARKERS}markable") is not None:
            context = context.with_route(XmppRoute(id=entry.stanza.get("id", "")))
        return InboundMessage(
            channel=self._services.name,
            account=self._config.jid,
            native_id=f"{place}:{entry.id}" if in_room else entry.id,
            session=SessionKey(self._services.name, room_place(place) if in_room else sender.address),
            sender=sender,
            text="" if said.encrypted else text,
            received_at=min(entry.at, self._services.clock.now()),
            audience=Audience.GROUP if in_room else Audience.DIRECT,
            addressed=called,
            context=context,
        )

    def _may_send_files(self, message: InboundMessage) -> bool:
        sender = message.sender
        return message.addressed and sender.verified and self._services.may_talk(sender.address)

    async def _with_file(self, message: InboundMessage, url: str) -> InboundMessage:
        try:
            attachment = await self._files.fetch(url, message)
        except FileRefused as error:
            return message.model_copy(
                update={"text": f"{message.text}\n[this file could not be fetched: {error}]"}
            )
        return message.model_copy(update={"text": "", "attachments": (attachment,)})

    async def _change(
        self, batch: Batch, place: str, entry: xml.Entry, said: xml.Said, sender: Sender
    ) -> None:
        """A correction or withdrawal, by the sender of the message. A correction of nothing is a message."""
        found = await self._find(place, entry, said)
        if said.kind == "withdraw":
            if found:
                batch.amendments.append(Amendment(kind="withdraw", native_id=found, sender=sender.address))
            return
        message = self._message(place, entry, said, sender)
        if not found or (message.addressed and await self._was_ignored(found, message, batch)):
            self._remember(entry, message.native_id, key=said.target)
            batch.messages.append(message)
            return
        batch.amendments.append(
            Amendment(
                kind="replace",
                native_id=found,
                sender=sender.address,
                text=message.text,
                names_bot=message.addressed and place != self._config.jid,
            )
        )

    async def _was_ignored(self, found: str, message: InboundMessage, batch: Batch) -> bool:
        """Return True if what is corrected was said to others."""
        if any(each.native_id == found and not each.addressed for each in batch.messages):
            return True
        return await batch.inbox.ignored_session(found, message.sender.address) is not None

    async def _find(self, place: str, entry: xml.Entry, said: xml.Said) -> str:
        """The native id of what is changed; empty: nothing of this sender."""
        who = self._who(entry)
        if (known := self._known.get((who, said.target))) is not None:
            return known
        found = await self._search(place, who, said.target) if said.target else ""
        return f"{place}:{found}" if found and place != self._config.jid else found

    def _who(self, entry: xml.Entry) -> str:
        """An occupant is one with their nick, other people with any of their clients."""
        return entry.sender if xml.bare(entry.sender) in self._config.rooms else xml.bare(entry.sender)

    def _remember(self, entry: xml.Entry, native_id: str, key: str = "") -> None:
        names = {key or entry.stanza.get("id", ""), entry.id} - {""}
        for name in names:
            self._known[self._who(entry), name] = native_id
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    async def _bounced(self, entry: xml.Entry, said: xml.Said, inbox: Inbox) -> list[Amendment]:
        """Only who was written to can say that it did not arrive."""
        outbound_id = await inbox.delivered_id(said.target) if said.target else None
        sent = await inbox.find_sent_message(outbound_id) if outbound_id else None
        if sent is None or sent.session.conversation != xml.bare(entry.sender).lower():
            return []
        return [Amendment(kind="bounce", native_id=said.target, text=said.text)]
