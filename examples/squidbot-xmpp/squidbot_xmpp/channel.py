"""
One account on one XMPP server.

Everything that people say is read from the archives (XEP-0313) of the account and of its rooms, behind the
last message that the gateway has taken over; a connection only says when there is something new. So nothing
is lost while nobody is connected, and nothing counts twice. An answer carries an id that derives from its row
of the outbox, by which it is found again in the archive if nobody has heard whether it was taken.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from xml.etree.ElementTree import Element

import anyio

from squidbot_api.channel import (
    Capabilities,
    ChannelAuthFailed,
    ChannelError,
    ChannelMisconfigured,
    ChannelServices,
    ChannelUnavailable,
    DeliveryFailed,
    DeliveryUncertain,
    Inbox,
    LinkState,
    MessageContext,
    OutboundMessage,
    Receipt,
    Redelivery,
    SessionKey,
)
from squidbot_xmpp import XmppAddresses, XmppConfig, room_of
from squidbot_xmpp import stanzas as xml
from squidbot_xmpp.files import FileRefused, Files
from squidbot_xmpp.link import PAGE, RESOURCE, Link, Refused
from squidbot_xmpp.reader import Reader, XmppRoute

CHECK_EVERY_S = 120.0
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_EMPTY = "-"  # the position in an archive in which there is nothing yet
_FIRST_LOOK = timedelta(days=1)
_SEARCHED_BACK = timedelta(days=7)
_SENT_PAGES, _CHANGED_PAGES = 40, 4
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Part:
    """A stanza of a message: its id and text; ``file``: the text is the address of a file."""

    key: str
    text: str
    file: bool = False


class XmppChannel:
    """An account. In doubt the archive knows whether an answer was sent (PROBE)."""

    capabilities = Capabilities(
        redelivery=Redelivery.PROBE, typing=True, acknowledgements=True, edits=True, attachments=True
    )

    def __init__(self, config: XmppConfig, services: ChannelServices) -> None:
        self.name, self.account = services.name, config.jid
        self._config, self._services = config, services
        self._files = Files(config, services)
        self._reader = Reader(config, services, self._search)
        self._link: Link | None = None
        self._unarchived: deque[tuple[str, Element]] = deque()

    # ── receiving ──

    async def run(self, inbox: Inbox) -> None:
        """Receive until cancelled. Everything that goes wrong leaves as a `ChannelError`."""
        inbox.report(LinkState.CONNECTING)
        link = Link(self._config, self._unarchived)
        try:
            await link.open()
            inbox.report(LinkState.CATCHING_UP)
            self._link = link
            await self._follow_all(link, inbox)
        except (ChannelAuthFailed, ChannelMisconfigured) as error:
            inbox.report(LinkState.FAILED, str(error))
            raise
        except (ChannelUnavailable, Refused) as error:
            if link.is_replaced:
                told = f"another program has logged in to {self.account} as {RESOURCE}; only one may answer"
                inbox.report(LinkState.FAILED, told)
                raise ChannelMisconfigured(told) from error
            inbox.report(LinkState.DOWN, str(error))
            raise ChannelUnavailable(str(error)) from error
        finally:
            self._link = None
            await link.close()

    async def _follow_all(self, link: Link, inbox: Inbox) -> None:
        """Read each archive at its own pace: a server that is slow or gone holds up its own rooms alone."""
        places, failures = {self.account, *self._config.rooms}, list[Exception]()
        waiting = set(places)

        def caught_up(place: str) -> None:
            if place in waiting:
                waiting.discard(place)
                if not waiting:
                    inbox.report(LinkState.UP)

        async def follow(place: str) -> None:
            try:
                await self._follow(link, inbox, place, caught_up)
            except Exception as error:  # noqa: BLE001 - raised below, and not wrapped in a group
                failures.append(error)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for place in sorted(places):
                group.start_soon(follow, place)
        raise failures[0]

    async def _follow(self, link: Link, inbox: Inbox, place: str, caught_up: Callable[[str], None]) -> None:
        """Take over what is new in one archive until the connection is lost; try a refused room again."""
        while True:
            try:
                if place in link.changed:
                    link.changed.discard(place)
                    link.joined.pop(place, None)
                    await inbox.accept([], {f"shown {place}": "no"})
                if place != self.account and place not in link.joined:
                    await link.join(place, self._config.nick)
                await self._read_archive(link, inbox, place)
            except Refused as error:
                if place == self.account:
                    raise
                link.joined.pop(place, None)
                self._services.alert(f"xmpp {place}", f"I am not in the room {place}: {error.condition}.")
            if place == self.account:
                await self._read_rest(link, inbox)
            caught_up(place)
            await link.wait_for_news(place, CHECK_EVERY_S)

    async def _read_rest(self, link: Link, inbox: Inbox) -> None:
        """What is in no archive: messages that shall not be kept, and requests to see the bot's presence."""
        while link.unarchived:
            await self._read_unarchived(inbox, *link.unarchived[0])
            link.unarchived.popleft()
        while link.subscriptions:
            person = XmppAddresses().parse(link.subscriptions.popleft())
            if person is not None and self._services.may_talk(person):
                link.confirm_subscription(person)

    async def _read_archive(self, link: Link, inbox: Inbox, place: str) -> None:
        """Take over all that came behind the last position."""
        position = await inbox.position(f"archive {place}")
        shows = "yes" if link.joined.get(place) else "no"
        # What was said while a room hid its addresses is not believed when it shows them.
        shown = await inbox.position(f"shown {place}") or "no"
        believed = shows == shown == "yes"
        if position is None and place != self.account:
            end = await self._end_of(link, place)
            await inbox.accept([], {f"archive {place}": end, f"shown {place}": shows})
            return
        first = (self._services.clock.now() - _FIRST_LOOK).strftime(_TIME) if position is None else ""
        while True:
            after = position if position and position != _EMPTY else ""
            try:
                page = await link.page(place, after=after, start=first)
            except Refused as error:
                if error.condition != "item-not-found" or not after:
                    raise
                _log.warning(
                    "%s has forgotten the last message; its archive is read from the beginning", place
                )
                position = _EMPTY
                continue
            done = page.whole or not page.entries
            if page.entries or position is None or (done and shown != shows):
                position = page.entries[-1].id if page.entries else position or _EMPTY
                batch = await self._reader.read(place, page.entries, inbox, shows_addresses=believed)
                positions = {
                    f"archive {place}": position,
                    f"shown {place}": shows if done else min(shows, shown),
                }
                await inbox.accept(batch.messages, positions, batch.amendments)
                for to, key in batch.receipts:
                    link.send_hint(to, f"{xml.RECEIPTS}received", id=key)
            if done:
                return

    async def _end_of(self, link: Link, place: str) -> str:
        page = await link.page(place, before="", most=1)
        return page.entries[-1].id if page.entries else _EMPTY

    async def _read_unarchived(self, inbox: Inbox, key: str, stanza: Element) -> None:
        """What its sender wants to be kept nowhere is known only now."""
        entry = xml.Entry(key, self._services.clock.now(), stanza)
        batch = await self._reader.read(self.account, [entry], inbox, shows_addresses=False)
        await inbox.accept(batch.messages, None, batch.amendments)

    async def _search(self, place: str, sender: str, key: str) -> str:
        """See `Search`."""
        link = self._connected()

        def fits(entry: xml.Entry) -> bool:
            who = entry.sender if place != self.account else xml.bare(entry.sender)
            return who == sender and key in (entry.stanza.get("id"), entry.id)

        peer = sender if place == self.account else ""
        try:
            found = await self._look_back(link, place, peer, fits, _CHANGED_PAGES, count=1)
        except Refused:
            return ""
        return found[0].id if found else ""

    async def _look_back(
        self,
        link: Link,
        place: str,
        peer: str,
        fits: Callable[[xml.Entry], bool],
        pages: int,
        *,
        count: int,
        start: str = "",
    ) -> list[xml.Entry] | None:
        """The newest messages that fit; None: after ``pages`` there are more, and ``count`` was not found."""
        found: list[xml.Entry] = []
        before = ""
        for _ in range(pages):
            page = await link.page(place, peer=peer, before=before, start=start, most=PAGE)
            found += [each for each in reversed(page.entries) if fits(each)]
            if len(found) >= count or page.whole or not page.entries:
                return found
            before = page.entries[0].id
        return None

    # ── sending ──

    def _connected(self) -> Link:
        if self._link is None or self._link.lost.done():
            raise ChannelUnavailable("there is no connection")
        return self._link

    def _target(self, message: OutboundMessage, link: Link) -> tuple[str, str]:
        """Where to, and the bot's nick if it is a room. Raises `ChannelUnavailable`: not in the room."""
        room = room_of(message.session.conversation)
        if room and room not in link.joined:
            raise ChannelUnavailable(f"the bot is not in {room}")
        return (room, self._config.nick) if room else (message.session.conversation, "")

    async def deliver(self, message: OutboundMessage, *, uncertain: Callable[[], Awaitable[None]]) -> Receipt:
        """Send a message, and each of its files as a message of its own."""
        link = self._connected()
        to, nick = self._target(message, link)
        parts = await self._parts(link, message)
        # Of several parts an earlier try may have left some behind.
        there = await self._sent(link, message, _keys(message)) if message.attachments else set()
        await uncertain()  # from here on the server may have it
        try:
            for number, part in enumerate(parts):
                if part.key not in there:
                    edits = message.context.edits if number == 0 else ""
                    await link.send_message(
                        to, part.text, part.key, group_nick=nick, edits=edits, file=part.file
                    )
        except ChannelUnavailable as error:
            raise DeliveryUncertain(str(error)) from error
        except Refused as error:
            if nick and error.condition.startswith("not-acceptable"):
                link.join_again(to)
                raise ChannelUnavailable(f"the bot is not in {to}") from error
            if error.temporary:
                raise ChannelUnavailable(error.condition) from error
            raise DeliveryFailed(error.condition) from error
        return Receipt(provider_id=parts[0].key)

    async def _parts(self, link: Link, message: OutboundMessage) -> list[_Part]:
        text_key, *file_keys = _keys(message)
        lines, files = [message.text], []
        for key, attachment in zip(file_keys, message.attachments, strict=True):
            try:
                files.append(_Part(key, await self._files.send(link, attachment), file=True))
            except FileRefused as error:
                lines.append(f"[{attachment.name} could not be sent: {error}]")
        nick = message.context.read_route(XmppRoute).nick if room_of(message.session.conversation) else ""
        text = xml.clean("\n".join(line for line in lines if line))
        if files and not text:
            return files
        return [_Part(text_key, f"{nick}: {text}" if nick else text), *files]

    async def probe(self, message: OutboundMessage) -> Receipt | None:
        """Look into the archive. If a part is missing, the next delivery sends only that."""
        text_key, *file_keys = _keys(message)
        keys = file_keys if file_keys and not message.text else [text_key, *file_keys]
        there = await self._sent(self._connected(), message, keys)
        return Receipt(provider_id=keys[0]) if there >= set(keys) else None

    async def _sent(self, link: Link, message: OutboundMessage, keys: list[str]) -> set[str]:
        """Those of the ids that are in the archive as the bot's. Raises `ChannelUnavailable`."""
        to, nick = self._target(message, link)
        place, me = (to, f"{to}/{nick}") if nick else (self.account, self.account)

        def fits(entry: xml.Entry) -> bool:
            ours = entry.sender == me if nick else xml.bare(entry.sender) == me
            if nick and link.joined.get(to):
                ours = ours and xml.real_address(entry.stanza) in ("", self.account)
            return ours and entry.stanza.get("id") in keys

        start = (message.created_at - _SEARCHED_BACK).strftime(_TIME)
        peer = "" if nick else to
        try:
            found = await self._look_back(link, place, peer, fits, _SENT_PAGES, count=len(keys), start=start)
        except Refused as error:
            raise ChannelUnavailable(f"the archive does not answer: {error.condition}") from error
        if found is None:
            raise ChannelUnavailable("the archive is too long to be searched")
        return {entry.stanza.get("id", "") for entry in found}

    # ── people, and hints ──

    async def direct_session(self, person: str, *, topic: str = "") -> SessionKey:
        """The conversation with a person alone: the owner can be written to."""
        address = XmppAddresses().parse(person)
        if address is None:
            raise ChannelError(f"{person!r} is no address")
        return SessionKey(self.name, address)

    async def alone_with(self, session: SessionKey, person: str) -> bool:
        """A direct message goes to one address, and to all clients of its person."""
        return session.conversation == XmppAddresses().parse(person)

    async def typing(self, session: SessionKey, *, on: bool) -> None:
        """Show it to a person (XEP-0085); rooms are not bothered."""
        if self._link is not None and not room_of(session.conversation):
            self._link.send_hint(session.conversation, f"{xml.STATES}{'composing' if on else 'active'}")

    async def acknowledge(self, session: SessionKey, context: MessageContext, stage: str) -> None:
        """Tell who wants to know that a message is seen, when it is taken up (XEP-0333)."""
        key = context.read_route(XmppRoute).id if isinstance(context, MessageContext) else ""
        if stage == "received" and key and self._link is not None:
            self._link.send_hint(session.conversation, f"{xml.MARKERS}displayed", id=key)

    async def preview(self, session: SessionKey, text: str) -> None:
        """XMPP cannot show that without a message for each piece."""

    async def aclose(self) -> None:
        """The connection ends with `run`."""


def _keys(message: OutboundMessage) -> list[str]:
    """The ids of the stanzas of its text and its files: the same in every try, and nobody can guess them."""
    return [
        hashlib.sha256(f"{message.id} {number}".encode()).hexdigest()[:32]
        for number in range(len(message.attachments) + 1)
    ]
