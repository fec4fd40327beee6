"""
Who may talk to the bot, and as whom. Pure: by message, settings and admitted people (`Access.admit`). Only a
verified address counts, never a name. The owner is known by an alias of the channel; all others need an entry
in ``allow_from``. An alias of a kind means its first account and those that trust no further vouchers;
elsewhere an address may be another person. Addresses are compared by `normalise` (`AddressRules`), which must
never merge two people. Wildcards are ``*`` for verified addresses or a whole server; the settings refuse
others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from agent_core.messages import InboundMessage, SessionKey
from gateway.plugins import channel_kinds, normal_form
from gateway.routing.household import Household, PersonRules
from gateway.store.shared import SHARED

if TYPE_CHECKING:
    from gateway.store.wakeups import Work  # settings are read without what wakes

LOCAL_CHANNELS = frozenset({"terminal", "heartbeat"})
"""Channels that only somebody with access to this machine can speak on: the sender is the owner."""
LOCAL_ADDRESS = "local"
"""As whom the owner speaks on this machine."""
normalise = normal_form
_LAST = 1000
"""After every kind that says a rank."""


class Role(StrEnum):
    """The relation of a sender to the bot."""

    OWNER = "owner"
    ALLOWED = "allowed"
    STRANGER = "stranger"


@dataclass(frozen=True, slots=True)
class Alias:
    """The owner's address on one channel: a kind of them, or one account by its name."""

    channel: str
    address: str


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """The decision about a message; ``reason`` is a constant, stored with a refused message."""

    allowed: bool
    role: Role
    reason: str = ""


class Access:
    """
    Decides who may talk to the bot.

    Args:
        allow_from: Further allowed people by channel.
        kinds: Each channel's kind; default: its name.
        apart: Accounts where an address may be another person than on the kind's others.
        own: The bot's addresses, which no ``*`` admits, as two bots would not stop.
        household: What is set for single people.
    """

    def __init__(
        self,
        owner_aliases: Iterable[Alias],
        allow_from: Mapping[str, Iterable[str]],
        *,
        kinds: Mapping[str, str] | None = None,
        apart: Iterable[str] = (),
        own: Iterable[str] = (),
        household: Household = Household(),  # noqa: B008 - a frozen value
    ) -> None:
        self.household = self._listed = household
        self._kinds = dict(kinds or {})
        self._borrowing = {name for name, plugin in channel_kinds().items() if plugin.borrows_addresses}
        self._apart = frozenset(apart)
        self._own = frozenset(map(normalise, own))
        self._owner = frozenset((alias.channel, normalise(alias.address)) for alias in owner_aliases)
        self._exact: dict[str, frozenset[str]] = {}
        self._servers: dict[str, frozenset[tuple[str, str]]] = {}
        self._everybody: set[str] = set()
        self._let_in: dict[str, frozenset[str]] = {}
        for channel, entries in allow_from.items():
            self._add_entries(channel, tuple(entry.strip() for entry in entries))

    def channels(self) -> list[str]:
        """The channels with a list of people."""
        return sorted(self._exact)

    def is_own(self, address: str) -> bool:
        """Return True for the address of one of the bot's own accounts."""
        return normalise(address) in self._own

    def admit(self, channel: str, people: Iterable[str]) -> None:
        """Replace the people whom the owner has admitted in addition to the settings."""
        self._let_in[channel] = frozenset(map(normalise, people))

    def link(self, links: Mapping[str, str]) -> None:
        """Replace the links of people beside the settings: whose person each address is; never an owner's."""
        found = {address: main for address, main in links.items() if not self._is_of_owner(address, main)}
        self.household = self._listed.with_links(found)

    def _is_of_owner(self, *addresses: str) -> bool:
        return any(map(self.is_owner_anywhere, addresses))

    @property
    def owner(self) -> str:
        """One address of the owner's; empty: there is none."""
        return min((address for _, address in self._owner), default="")

    def decide(self, message: InboundMessage) -> AccessDecision:
        """
        Decide about ``message`` and the role of its sender.

        A channel may have a rule for the very room (``context.allowed_here``), which then replaces its
        general list; the owner is allowed everywhere.
        """
        role = self.role(message.channel, message.sender.address, verified=message.sender.verified)
        if role is Role.STRANGER and self.is_own(message.sender.address):
            return AccessDecision(allowed=False, role=role, reason="own_account")
        here = message.context.allowed_here
        if here is not None and message.sender.verified and role is not Role.OWNER:
            if here is True:
                return AccessDecision(allowed=True, role=Role.ALLOWED)
            return AccessDecision(allowed=False, role=Role.STRANGER, reason="not_allowed_here")
        if role is Role.STRANGER:
            reason = "sender_not_allowed" if message.sender.verified else "sender_not_verified"
            return AccessDecision(allowed=False, role=role, reason=reason)
        return AccessDecision(allowed=True, role=role)

    def role(self, channel: str, address: str, *, verified: bool) -> Role:
        """The role of the sender ``address`` on ``channel``."""
        if not verified or not address.strip():
            return Role.STRANGER
        if channel in LOCAL_CHANNELS:
            return Role.OWNER
        normal = normalise(address)
        if any((name, normal) in self._owner for name in self._names(channel)):
            return Role.OWNER
        if self.borrows(channel):
            lists = [each for each in self._exact if not (self.borrows(each) or self.is_apart(each))]
        else:
            lists = [channel]
        return Role.ALLOWED if any(self._is_allowed(each, normal) for each in lists) else Role.STRANGER

    def rules(self, message: InboundMessage) -> PersonRules | None:
        """Return the rules for the sender of a message; None: it is the owner, who has none."""
        if message.kind == "tick" or self.decide(message).role is Role.OWNER:
            return None
        proven = message.sender.verified and not is_admitted(message) and not self.is_apart(message.channel)
        return self.household.rules(normalise(message.sender.address), proven=proven)

    def memory_address(self, message: InboundMessage) -> str:
        """Return the address that names the memory of a sender: the first of theirs."""
        rules = self.rules(message)
        return message.sender.address if rules is None or not rules.addresses else rules.addresses[0]

    def _is_allowed(self, channel: str, normal: str) -> bool:
        if normal in self._exact.get(channel, ()) or normal in self._let_in.get(channel, ()):
            return True
        is_open = channel in self._everybody or _server_of(normal) in self._servers.get(channel, ())
        return is_open and normal not in self._own

    def may_show(self, session: SessionKey, address: str, *, verified: bool = True) -> bool:
        """
        Allow or refuse to show the owner the words of a row in a list across people.

        Args:
            session, address: The conversation and the person of the row; only the owner's own are shown.
        """
        if session == SHARED:
            return address == LOCAL_ADDRESS or self.is_owner_anywhere(address)
        return self.role(session.channel, address, verified=verified) is Role.OWNER

    def is_owner_work(self, work: Work) -> bool:
        """Return True for the owner's work, which is done before that of others."""
        return (
            work.kind not in ("job", "background_job")
            and self.role(work.channel, work.sender, verified=work.verified) is Role.OWNER
        )

    def owner_addresses_on(self, channel: str) -> list[str]:
        """The owner's addresses on this channel."""
        return sorted({address for name, address in self._owner if name in self._names(channel)})

    def is_owner_anywhere(self, address: str) -> bool:
        """Return True if an address is one of the owner's on some channel."""
        return normalise(address) in {mine for _, mine in self._owner}

    def allowed_addresses(self, channel: str) -> list[str]:
        """The other people whom the settings of this channel name by address."""
        return sorted(self._exact.get(channel, frozenset()) | self._let_in.get(channel, frozenset()))

    def people(self, channel: str) -> list[tuple[str, Role, bool]]:
        """Each who may write on this channel, the owner first, with True for those let in by hand."""
        exact, extra = self._exact.get(channel, frozenset()), self._let_in.get(channel, frozenset())
        names = ["everybody"] if channel in self._everybody else []
        names += sorted(f"everybody of {server}" for _, server in self._servers.get(channel, ()))
        mine = self.owner_addresses_on(channel)
        rows = [(address, Role.OWNER, False) for address in mine]
        rows += [(name, Role.ALLOWED, False) for name in names]
        return rows + [
            (address, Role.ALLOWED, address not in exact) for address in sorted((exact | extra) - set(mine))
        ]

    def server_group(self, channel: str, address: str) -> str:
        """Return the server whose people are allowed; "" for the owner and people listed by address."""
        normal = normalise(address)
        if (
            normal in self.allowed_addresses(channel)
            or self.role(channel, address, verified=True) is Role.OWNER
        ):
            return ""
        return "/".join((channel, *_server_of(normal)))

    def is_apart(self, channel: str) -> bool:
        """Return True if an address there may be another person than on other accounts of the kind."""
        return channel in self._apart

    def kind(self, channel: str) -> str:
        """The kind of the channel of this name, or its own name."""
        return self._kinds.get(channel, channel)

    def is_room(self, channel: str, place: str) -> bool:
        """Return True for the lasting name of a room there."""
        plugin = channel_kinds().get(self.kind(channel))
        return plugin is not None and plugin.addresses.is_room(place)

    def has_rooms(self, channel: str) -> bool:
        """Return False for a channel on which everything is sent to the bot itself, such as a mailbox."""
        plugin = channel_kinds().get(self.kind(channel))
        return plugin is None or plugin.has_rooms

    def borrows(self, channel: str) -> bool:
        """Return True for a channel whose senders are known by addresses of other channels."""
        return self.kind(channel) in self._borrowing

    def _names(self, channel: str) -> Collection[str]:
        if self.borrows(channel):
            return {name for name, _ in self._owner}
        return (channel,) if self.is_apart(channel) else (channel, self.kind(channel))

    def _add_entries(self, channel: str, entries: tuple[str, ...]) -> None:
        exact, servers = set(), set()
        for entry in entries:
            if entry == "*":
                self._everybody.add(channel)
            elif "*" in entry:
                for kind, plugin in channel_kinds().items():
                    if server := plugin.addresses.server_of_entry(entry):
                        servers.add((kind, server))
            elif entry:
                exact.add(normalise(entry))
        self._exact[channel], self._servers[channel] = frozenset(exact), frozenset(servers)


def is_admitted(message: InboundMessage) -> bool:
    """Return True if a person has released the message from quarantine; nothing proves its sender."""
    return message.notes.admitted


def kinds_of(address: str) -> list[str]:
    """The kinds of channels that have addresses of this form."""
    return [kind for kind, plugin in channel_kinds().items() if plugin.addresses.parse(address)]


def kind_of(address: str) -> str | None:
    """The first kind of channel that has addresses of this form; None if there is none."""
    return next(iter(kinds_of(address)), None)


def contact_rank(kind: str) -> int:
    """The place of a kind among those on which the owner can be written to; the lowest is first."""
    plugin = channel_kinds().get(kind)
    return _LAST if plugin is None else plugin.contact_rank


def _server_of(normal: str) -> tuple[str, str]:
    kind = kind_of(normal)
    return ("", normal) if kind is None else (kind, channel_kinds()[kind].addresses.server(normal))
