"""
Which IP addresses may be reached: the public Internet, and the networks that the owner allows. Pure. Python's
``is_global`` is not asked: by version it calls NAT64 and 6to4 forms of loopback, multicast and site local
addresses global. The tables here are those of IANA's special-purpose registries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network

_REFUSED_V4 = {
    "0.0.0.0/8": "this machine",
    "10.0.0.0/8": "a private network",
    "100.64.0.0/10": "a provider's internal network",
    "127.0.0.0/8": "this machine",
    "169.254.0.0/16": "a link-local network",
    "172.16.0.0/12": "a private network",
    "192.0.0.0/24": "a reserved network",
    "192.0.2.0/24": "a network for documentation",
    "192.88.99.0/24": "a reserved network",
    "192.168.0.0/16": "a private network",
    "198.18.0.0/15": "a network for tests",
    "198.51.100.0/24": "a network for documentation",
    "203.0.113.0/24": "a network for documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "a reserved network",
}
_REFUSED_V6 = {
    "::/127": "this machine",
    "fc00::/7": "a private network",
    "fe80::/10": "a link-local network",
    "fec0::/10": "a private network",
    "ff00::/8": "multicast",
    "2001::/23": "a reserved network",
    "2001:db8::/32": "a network for documentation",
    "2002::/16": "a reserved network",
    "3ffe::/16": "a reserved network",
    "3fff::/20": "a network for documentation",
}
_METADATA = frozenset(
    ip_address(text) for text in ("169.254.169.254", "168.63.129.16", "100.100.100.200", "fd00:ec2::254")
)
"""Where clouds hand their machines keys: AWS and most others, Azure, Alibaba."""
_PUBLIC_V6 = IPv6Network("2000::/3")
_MAPPED = IPv6Network("::ffff:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")
_COMPATIBLE = IPv6Network("::/96")
_REFUSED: tuple[tuple[IPNetwork, str], ...] = tuple(
    (ip_network(network), what) for table in (_REFUSED_V4, _REFUSED_V6) for network, what in table.items()
)
_WIDEST = {4: 8, 6: 7}


def allowed_network(text: str) -> IPNetwork:
    """Parse a network of ``allow_private``. Raises ValueError for host bits or too wide a range."""
    network = ip_network(text.strip())
    if network.prefixlen < _WIDEST[network.version]:
        raise ValueError(f"{text} is too wide; name the networks of your home, such as 192.168.1.0/24")
    return network


def embedded_ipv4(address: IPAddress) -> IPAddress | None:
    """The IPv4 address that an IPv6 address leads to, in any of the known ways; None if there is none."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64 or address in _NAT64_LOCAL or address in _MAPPED:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _COMPATIBLE and int(address) > 1:
        return IPv4Address(int(address))
    return None


@dataclass(frozen=True, slots=True)
class AddressReach:
    """
    The rule for addresses that may be reached.

    ``allow_private`` are non-public networks that are allowed, on every port. ``is_own`` returns True for a
    public address of this machine or its network. ``ports`` are those allowed on public addresses.
    """

    allow_private: Sequence[IPNetwork] = ()
    is_own: Callable[[IPAddress], bool] = lambda _: False
    ports: Sequence[int] = (80, 443)

    def refusal(self, address: IPAddress, port: int) -> str | None:
        """Return why a connection is refused; None if it is allowed."""
        inner = embedded_ipv4(address)
        if address in _METADATA or inner in _METADATA:
            return "it is where a cloud gives its machines their keys"
        if inner is not None:
            refused = self.refusal(inner, port)
            if refused is not None or address in _MAPPED or address in _NAT64:
                return refused
        if self._is_allowed(address):
            return None
        what = _special(address)
        if what is None and self.is_own(address):
            what = "it is this machine or its own network"
        if what is None and port not in self.ports:
            what = f"port {port} is not one of {', '.join(map(str, self.ports))}"
        return what

    def _is_allowed(self, address: IPAddress) -> bool:
        return any(
            address.version == network.version and address in network for network in self.allow_private
        )


def _special(address: IPAddress) -> str | None:
    for network, what in _REFUSED:
        if address.version == network.version and address in network:
            return f"it is {what}"
    public = isinstance(address, IPv4Address) or address in _PUBLIC_V6
    return None if public else "it is not a public address"
