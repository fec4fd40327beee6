"""
Where the owner is reached: the configured target, else the owner's own direct conversation, kept in the
store. Only a direct conversation in which the owner's verified address has spoken counts, and only while
nobody else can read it, which the channel is asked each time (`channels.base.SupportsDirectMessages`). Matrix
is preferred to mail. A setting must name an address of the owner or a room with the owner alone. For a silent
owner `OwnerContact.begin` starts a conversation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field

import anyio
import structlog

from agent_core.messages import Audience, InboundMessage, SessionKey
from channels.base import Channel, ChannelError, ChannelUnavailable, SupportsDirectMessages
from channels.heartbeat.config import split_target
from gateway.routing.access import LOCAL_CHANNELS, Access, Role, contact_rank, normalise
from gateway.store.shared import SHARED
from gateway.store.stores import StateStore, StoreUnavailable
from gateway.store.wakeups import Wakeups

NO_TARGET = "the owner has no direct conversation yet"
_STATE = "owner.direct_conversation"
_ASK_LIMIT_S = 30.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """A conversation that can be written to. ``person`` is whose it is, where that is known."""

    channel: str
    account: str
    session: SessionKey
    person: str = ""


@dataclass(frozen=True, slots=True)
class ContactResult:
    """A target, or why there is none; ``later`` says that waiting can help."""

    target: Target | None = None
    why: str = ""
    later: bool = False


def is_preferred(new: Target, old: Target | None, kind: Callable[[str], str] = str) -> bool:
    """Return True if ``new`` replaces ``old``: same channel, or a preferred ``kind`` (`Access.kind`)."""
    if old is None or new.channel == old.channel:
        return new != old
    return contact_rank(kind(new.channel)) < contact_rank(kind(old.channel))


@dataclass(eq=False)
class OwnerContact:
    """
    Learns the owner's direct conversation, and finds where to write.

    ``setting`` is `agents.heartbeat.target`, "": the learned one; ``wakeups`` report its changes.
    """

    state: StateStore
    _: KW_ONLY
    setting: str = ""
    channels: Mapping[str, Channel] = field(default_factory=dict)
    access: Access | None = None
    wakeups: Wakeups | None = None

    def __post_init__(self) -> None:
        self._known: Target | None = None
        self._loaded = False

    async def get(self) -> Target | None:
        """Return the owner's direct conversation, None before the first. Raises `StoreUnavailable`."""
        if not self._loaded:
            self._known = _parsed_or_none(await self.state.read(_STATE))
            self._loaded = True
        return self._known

    async def channel(self) -> str:
        """Return the channel on which the owner is written to, as far as is known; empty: none."""
        known = await self.get()
        name = split_target(self.setting)[0] if self.setting else "" if known is None else known.channel
        if name in self.channels:
            return name
        able = [
            name
            for name, channel in self.channels.items()
            if name not in LOCAL_CHANNELS and isinstance(channel, SupportsDirectMessages)
        ]
        return min(able, key=lambda name: (contact_rank(self._kind(name)), name), default="")

    def is_owner(self, channel: str, person: str) -> bool:
        """Return True if this address is one of the owner's now."""
        return self.access is None or self.access.role(channel, person, verified=True) is Role.OWNER

    async def is_owner_session(self, session: SessionKey) -> bool:
        """Return True if a session is the owner's own: their email thread, or their last conversation."""
        if session == SHARED:
            return True
        person = session.thread or ""
        if "@" in person and self.is_owner(session.channel, person):
            return True
        try:
            known = await self.get()
        except StoreUnavailable:
            return False
        return known is not None and known.session == session

    async def reach(self, *, topic: str = "") -> ContactResult:
        """Return where the owner reads alone; ``topic`` selects a thread. Raises StoreUnavailable."""
        try:
            with anyio.fail_after(_ASK_LIMIT_S):
                return await (self._set(topic) if self.setting else self._learned(topic))
        except (ChannelUnavailable, TimeoutError):
            return ContactResult(why="the target's channel does not answer at the moment", later=True)
        except ChannelError as error:
            return ContactResult(why=f"messages to the target are not possible: {error}")

    async def find_other_place(self, *, topic: str = "", without: Collection[str] = ()) -> ContactResult:
        """Return another place where the owner reads alone. Raises `StoreUnavailable`."""
        try:
            with anyio.fail_after(_ASK_LIMIT_S):
                return await self._start_conversation(topic, without=without, keep=False)
        except TimeoutError:
            return ContactResult(why=NO_TARGET, later=True)

    async def reach_on(self, name: str, *, topic: str = "", person: str = "") -> ContactResult:
        """Return where the owner reads alone here (at ``person``), on demand. Raises StoreUnavailable."""
        known = await self.get()
        try:
            with anyio.fail_after(_ASK_LIMIT_S):
                same = known is not None and person in ("", normalise(known.person))
                if known is not None and known.channel == name and same:
                    return await self._checked(known, self.channels[name], topic)
                elsewhere = self.channels.keys() - {name}
                return await self._start_conversation(topic, without=elsewhere, keep=False, person=person)
        except (ChannelUnavailable, TimeoutError):
            return ContactResult(why="the owner's channel does not answer at the moment", later=True)
        except ChannelError as error:
            return ContactResult(why=f"messages to the owner are not possible there: {error}")

    async def _set(self, topic: str) -> ContactResult:
        name, place = split_target(self.setting)
        channel = self.channels.get(name)
        if channel is None:
            return ContactResult(why=f"the channel of the target, {name}, does not exist")
        if not isinstance(channel, SupportsDirectMessages):
            return ContactResult(why=f"the channel {name} cannot start a conversation")
        if self.access is not None and self.access.is_room(name, place):
            session = SessionKey(name, place)
            for address in self.access.owner_addresses_on(name):
                if await channel.alone_with(session, address):
                    return ContactResult(Target(name, channel.account, session, address))
            return ContactResult(
                why="somebody else can read along in the target's room, or the owner is not in it"
            )
        if self.access is None or not self.is_owner(name, place):
            return ContactResult(why="the target is not one of the owner's addresses")
        session = await channel.direct_session(place, topic=topic)
        return ContactResult(Target(name, channel.account, session, place))

    async def _learned(self, topic: str) -> ContactResult:
        known = await self.get()
        if known is None:
            return await self._start_conversation(topic)
        channel = self.channels.get(known.channel)
        if channel is None:
            return ContactResult(why=f"the owner's channel, {known.channel}, is switched off")
        return await self._checked(known, channel, topic)

    async def begin(self) -> bool:
        """Start a conversation with the owner; return True if that is settled. Raises `StoreUnavailable`."""
        if self.setting or await self.get() is not None:
            return True
        reached = await self.reach()
        return reached.target is not None or not reached.later

    async def _start_conversation(
        self, topic: str, *, without: Collection[str] = (), keep: bool = True, person: str = ""
    ) -> ContactResult:
        """The conversation that the bot begins with an owner who has never written, or not there."""
        missed: ContactResult = ContactResult(why=NO_TARGET)
        for name in sorted(self.channels, key=lambda name: contact_rank(self._kind(name))):
            channel = self.channels[name]
            if self.access is None or name in without or not isinstance(channel, SupportsDirectMessages):
                continue
            for address in self.access.owner_addresses_on(name):
                if person not in ("", address):
                    continue
                try:
                    session = await channel.direct_session(address, topic=topic)
                except ChannelUnavailable:
                    missed = ContactResult(
                        why="the owner's channel does not answer at the moment", later=True
                    )
                    continue
                except ChannelError as error:
                    _log.warning("owner_contact.not_started", channel=name, error=str(error))
                    continue
                seen = Target(name, channel.account, session, address)
                if keep and not channel.capabilities.email_style:
                    await self._keep(seen)
                return ContactResult(seen)
        return missed

    async def _checked(self, known: Target, channel: Channel, topic: str) -> ContactResult:
        """Return the learned contact, as far as it is still valid."""
        if not known.person:
            return ContactResult(known)
        if not self.is_owner(known.channel, known.person):
            return ContactResult(why="the person who wrote in the known conversation is no longer the owner")
        if not isinstance(channel, SupportsDirectMessages):
            return ContactResult(known)
        if channel.capabilities.email_style and topic:
            return ContactResult(
                Target(
                    known.channel,
                    known.account,
                    await channel.direct_session(known.person, topic=topic),
                    known.person,
                )
            )
        if not await channel.alone_with(known.session, known.person):
            return ContactResult(why="somebody else can read along in the owner's conversation")
        return ContactResult(known)

    async def learn(self, message: InboundMessage) -> None:
        """Note where the owner may have written directly. Forget it as soon as others are there."""
        channel = self.channels.get(message.channel)
        is_reachable = channel is None or isinstance(channel, SupportsDirectMessages)
        if message.kind != "message" or message.channel in LOCAL_CHANNELS or not is_reachable:
            return
        if message.audience is Audience.GROUP:
            known = await self.get()
            if known is not None and message.session == known.session:
                await self._keep(None)
                _log.info("owner_contact.forgotten", channel=message.channel)
            return
        if not message.sender.verified or not self.is_owner(message.channel, message.sender.address):
            return
        known = await self.get()
        seen = Target(message.channel, message.account, message.session, message.sender.address)
        gone = known is not None and bool(self.channels) and known.channel not in self.channels
        if gone or is_preferred(seen, known, self._kind):
            await self._keep(seen)

    def _kind(self, channel: str) -> str:
        return channel if self.access is None else self.access.kind(channel)

    async def _keep(self, seen: Target | None) -> None:
        kept = (
            {}
            if seen is None
            else {
                "channel": seen.channel,
                "account": seen.account,
                "session": str(seen.session),
                "person": seen.person,
            }
        )
        await self.state.write(_STATE, json.dumps(kept) if kept else "")
        self._known = seen
        if self.wakeups is not None:
            self.wakeups.owner.fire("" if seen is None else seen.channel)


def _parsed_or_none(text: str | None) -> Target | None:
    """Parse the record of `OwnerContact.learn`; the owner's next message repairs an unreadable one."""
    if not text:
        return None
    try:
        kept = json.loads(text)
        person = kept.get("person", "")
        session = SessionKey.parse(kept["session"])
        return Target(str(kept["channel"]), str(kept["account"]), session, str(person))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _log.error("owner_contact.unreadable", error=type(error).__name__)
        return None
