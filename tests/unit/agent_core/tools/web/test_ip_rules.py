"""Which IP addresses may be reached: the table of what must not be, each beside one that may."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from agent_core.tools.web.ip_rules import AddressReach, allowed_network, embedded_ipv4
from tests.rows import rows

REFUSED = """
0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.255 100.100.100.200 127.0.0.1 127.1.2.3
169.254.0.1 169.254.169.254 168.63.129.16 172.16.0.1 172.31.255.255 192.0.0.8 192.0.0.192 192.0.2.1
192.88.99.1 192.168.0.1 198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.9 224.0.0.1 239.255.255.255
240.0.0.1 255.255.255.255
:: ::1 ::127.0.0.1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:0:127.0.0.1
64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b::c0a8:101 64:ff9b:1::1 64:ff9b:1::808:808 100::1
2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:2::1 2001:10::1 2001:20::1 2001:db8::1
2002:7f00:1:: 2002:808:808:: 3ffe::1 3fff::1 4000::1 5f00::1 8000::1 fc00::1 fd00:ec2::254 fe80::1 fec0::1
ff02::1 ff0e::1
""".split()
PUBLIC = """
1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.1 100.63.255.255 100.128.0.1 126.255.255.255 128.0.0.1 169.253.255.255
172.15.255.255 172.32.0.1 192.0.1.1 192.167.255.255 192.169.0.1 198.17.255.255 198.20.0.1 223.255.255.255
2001:200::1 2001:4860:4860::8888 2606:4700:4700::1111 2a00:1450:4001:81b::200e
::ffff:8.8.8.8 64:ff9b::808:808
""".split()


@rows("text", REFUSED)
def test_what_is_not_the_public_internet_is_refused(text):
    assert AddressReach().refusal(ip_address(text), 443)


@rows("text", PUBLIC)
def test_the_public_internet_is_reached(text):
    assert AddressReach().refusal(ip_address(text), 443) is None


@rows(
    ("text", "inner"),
    [
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("64:ff9b::a01:203", "10.1.2.3"),
        ("64:ff9b:1::a01:203", "10.1.2.3"),
        ("2002:a01:203::1", "10.1.2.3"),
        ("::10.1.2.3", "10.1.2.3"),
        ("2001:0:808:808:0:0:f5fe:fdfc", "10.1.2.3"),
        ("2606:4700::1", None),
        ("10.1.2.3", None),
    ],
)
def test_an_ipv4_address_inside_an_ipv6_address_is_found(text, inner):
    assert embedded_ipv4(ip_address(text)) == (None if inner is None else ip_address(inner))


def test_an_allowed_network_opens_exactly_itself_on_any_port():
    reach = AddressReach(allow_private=(ip_network("192.168.1.0/24"),))
    assert reach.refusal(ip_address("192.168.1.7"), 8123) is None
    assert reach.refusal(ip_address("::ffff:192.168.1.7"), 8123) is None
    assert reach.refusal(ip_address("192.168.2.7"), 8123)
    assert reach.refusal(ip_address("192.168.0.255"), 80)


@rows("text", ["169.254.169.254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "fd00:ec2::254"])
def test_no_setting_opens_the_addresses_where_clouds_keep_keys(text):
    networks = ("169.254.0.0/16", "fc00::/7", "64:ff9b::/96", "::ffff:0:0/96")
    reach = AddressReach(allow_private=tuple(map(ip_network, networks)))
    assert "keys" in (reach.refusal(ip_address(text), 80) or "")
    assert reach.refusal(ip_address("169.254.1.1"), 80) is None  # so the networks are open


def test_an_allowed_tunnel_does_not_open_what_is_behind_it():
    reach = AddressReach(allow_private=(ip_network("2002::/16"),))
    assert reach.refusal(ip_address("2002:808:808::1"), 80) is None
    assert reach.refusal(ip_address("2002:7f00:1::1"), 80)


def test_public_addresses_of_this_machine_and_other_ports_are_refused():
    own = ip_address("8.8.4.4")
    reach = AddressReach(is_own=own.__eq__)
    assert "this machine" in (reach.refusal(own, 443) or "")
    assert "8443" in (reach.refusal(ip_address("8.8.8.8"), 8443) or "")
    assert AddressReach(ports=(443, 8443)).refusal(ip_address("8.8.8.8"), 8443) is None


@rows("text", ["0.0.0.0/0", "::/0", "0.0.0.0/1", "2000::/3", "192.168.1.7/24", "home", ""])
def test_networks_that_can_only_be_mistakes_are_refused(text):
    with pytest.raises(ValueError):
        allowed_network(text)


@rows("text", ["10.0.0.0/8", "192.168.1.7", "198.18.0.0/15", "fd12::/64", "fc00::/7"])
def test_networks_of_a_home_are_taken(text):
    assert allowed_network(text) == ip_network(text)
