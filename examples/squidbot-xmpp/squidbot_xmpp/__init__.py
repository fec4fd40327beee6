"""XMPP as a kind of channel: settings, addresses, and how an account is built. Loads quickly."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator

from squidbot_api.channel import AccountConfig, AddressRules, Channel, ChannelPlugin, ChannelServices, Server

_PART = r"[^\s\x00-\x1f\"&'/:<>@?]"
_DOMAIN = re.compile(rf"{_PART}{{1,255}}")
_JID = re.compile(rf"{_PART}{{1,255}}@{_PART}{{1,255}}")
_EVERYBODY_OF, _ROOM, _JOIN = "*@", "xmpp:", "?join"


def room_place(room: str) -> str:
    """The name of a room's conversation: no person has it."""
    return f"{_ROOM}{room}{_JOIN}"


def room_of(place: str) -> str:
    """The address of the room of a conversation; empty: it is a person's."""
    if not (place.startswith(_ROOM) and place.endswith(_JOIN)):
        return ""
    room = place[len(_ROOM) : -len(_JOIN)]
    return room if _JID.fullmatch(room) else ""


class XmppAddresses(AddressRules):
    """Bare addresses, such as ``alice@example.org``. A room's place is ``xmpp:ROOM?join``."""

    example = "alice@example.org"

    def parse(self, text: str) -> str | None:
        text = unicodedata.normalize("NFC", text).lower()
        return text if _JID.fullmatch(text) else None

    def server(self, address: str) -> str:
        return address.partition("@")[2]

    def server_of_entry(self, entry: str) -> str | None:
        server = entry.removeprefix(_EVERYBODY_OF)
        return server.lower() if server != entry and _DOMAIN.fullmatch(server) else None

    def is_room(self, place: str) -> bool:
        return bool(room_of(place))


class XmppConfig(AccountConfig):
    """One account on one server, which the bot has for itself."""

    jid: str
    """The account's address, such as ``squid@example.org``."""
    password: SecretStr
    server: str = ""
    """The host to connect to; empty: the one that the domain's SRV records name."""
    port: int = 5222
    """The port of ``server``; 5223 begins with TLS, others change to it."""
    tls: bool = True
    """``false`` only for a server on this machine: everything would be readable on the way."""
    ca_file: Path | None = None
    """The certificates that are believed, if not those of the system."""
    rooms: tuple[str, ...] = ()
    """
    The rooms to join, such as ``team@rooms.example.org``. In a room that shows its members' addresses, the
    room's server says who is who: join only rooms of servers that you believe.
    """
    nick: str = Field(default="squidbot", pattern=r"^\S{1,64}$")
    """The name in rooms, by which the bot is addressed there."""
    file_hosts: tuple[str, ...] = ()
    """The hosts from which files are fetched besides the account's own domain and its subdomains."""

    @field_validator("jid")
    @classmethod
    def _is_jid(cls, jid: str) -> str:
        read = XmppAddresses().parse(jid)
        if read is None:
            raise ValueError("is no address such as squid@example.org")
        return read

    @field_validator("rooms")
    @classmethod
    def _are_rooms(cls, rooms: tuple[str, ...]) -> tuple[str, ...]:
        read = tuple(each for each in map(XmppAddresses().parse, rooms) if each)
        if len(read) != len(rooms):
            raise ValueError("has an entry that is no address such as team@rooms.example.org")
        return read

    @property
    def domain(self) -> str:
        """The account's server."""
        return self.jid.partition("@")[2]


class XmppPlugin(ChannelPlugin[XmppConfig]):
    """XMPP accounts."""

    api = 1
    kind = "xmpp"
    config = XmppConfig
    addresses = XmppAddresses()
    address_key = "jid"
    description = "Accounts on XMPP servers."

    def build(self, config: XmppConfig, services: ChannelServices) -> Channel:
        from squidbot_xmpp.channel import XmppChannel  # not before it is used

        return XmppChannel(config, services)

    def servers(self, config: XmppConfig) -> list[Server]:
        if not config.server:
            return []  # the SRV records name it
        way: Literal["tls", "plain"] = "tls" if config.tls and config.port == 5223 else "plain"
        return [Server("server", config.server, config.port, way, ca_file=config.ca_file)]
