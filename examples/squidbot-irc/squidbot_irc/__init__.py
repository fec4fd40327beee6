"""IRC as a kind of channel: settings, addresses, and how an account is built. Loads quickly."""

from __future__ import annotations

import re

from pydantic import SecretStr

from squidbot_api.channel import AccountConfig, AddressRules, Channel, ChannelPlugin, ChannelServices, Server
from squidbot_api.declare import Operation, operations_of

_NICK = re.compile(r"[A-Za-z\[\]\\`_^{|}][A-Za-z0-9\[\]\\`_^{|}-]{0,29}")
_ROOM = re.compile(r"[#&][^\s,:\x07]{1,49}")


class IrcConfig(AccountConfig):
    """One nick on one network."""

    server: str
    """The host name, as in the server's certificate."""
    port: int = 6697
    tls: bool = True
    """``false`` only for a server on this machine: everything would be readable on the way."""
    nick: str
    password: SecretStr | None = None
    """The server's password, if it has one."""
    rooms: tuple[str, ...] = ()
    """The rooms to join, such as ``#team``."""
    trust_nicks: bool = False
    """
    Whether a nick proves who somebody is. Only where nobody can take another person's nick: a server of your
    own that lets nobody else in. Without it, people count who are logged in to the network's services.
    """


class IrcAddresses(AddressRules):
    """Nicks and accounts, compared without regard to the case of their letters."""

    example = "alice"

    def parse(self, text: str) -> str | None:
        return text.lower() if _NICK.fullmatch(text) else None

    def is_room(self, place: str) -> bool:
        return _ROOM.fullmatch(place) is not None


class IrcPlugin(ChannelPlugin[IrcConfig]):
    """IRC networks."""

    api = 1
    kind = "irc"
    config = IrcConfig
    addresses = IrcAddresses()
    address_key = "nick"
    description = "Nicks on IRC networks."

    def build(self, config: IrcConfig, services: ChannelServices) -> Channel:
        from squidbot_irc.channel import IrcChannel  # not before it is used

        return IrcChannel(config, services)

    def servers(self, config: IrcConfig) -> list[Server]:
        return [Server("server", config.server, config.port, "tls" if config.tls else "plain")]

    def operations(self) -> list[Operation]:
        from squidbot_irc import operations  # not before it is used

        return operations_of(operations)
