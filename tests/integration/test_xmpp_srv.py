"""
The example of an XMPP channel finds its server by the SRV records of its domain, with TLS from the first byte
(XEP-0368) or later, on a real prosody and a DNS server of its own.
"""

from __future__ import annotations

import pytest
import trustme

pytest.importorskip("slixmpp")

import aiodns

from channels.base import ChannelUnavailable
from tests import xmpp_server
from tests.command_line import free_port
from tests.doubles.inbox import running
from tests.integration.test_xmpp_example import accepted, far_side_in
from tests.name_server import name_server

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(xmpp_server.PROGRAM is None, reason=xmpp_server.MISSING),
]
DIRECT, LATER, HOST = "_xmpps-client._tcp.localhost", "_xmpp-client._tcp.localhost", "xmpp.test"


@pytest.fixture
def authority(tmp_path):
    made = trustme.CA()
    made.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return made


def ask_at(monkeypatch, names):
    """Have slixmpp ask this DNS server."""

    def resolver(loop):
        return aiodns.DNSResolver([f"127.0.0.1:{names.port}"], loop=loop, tries=2, timeout=10.0)

    monkeypatch.setattr("slixmpp.xmlstream.xmlstream.default_resolver", resolver)


def records(direct=(), later=()):
    """The SRV records of the domain, by their ports in order, and the address of the host that they name."""
    found = {(HOST, "A"): ["127.0.0.1"]}
    for name, ports in ((DIRECT, direct), (LATER, later)):
        if ports:
            found[name, "SRV"] = [f"{place} 1 {port} {HOST}." for place, port in enumerate(ports)]
    return found


@pytest.mark.parametrize("way", ["direct", "later", "second", "both"])
async def test_the_server_that_the_records_name(tmp_path, authority, monkeypatch, way):
    """Encrypted either way; the next record is tried where the first is of no use, whatever its kind."""
    async with far_side_in(tmp_path, authority, tls=True, ca_file=tmp_path / "ca.pem") as far:
        far.more["server"] = ""
        plain, direct, dead = far.server.port, far.server.tls_port, free_port()
        given = {
            "direct": records(direct=[direct]),
            "later": records(later=[plain]),
            "second": records(later=[dead, plain]),
            "both": {**records(direct=[dead]), (LATER, "SRV"): [f"5 1 {plain} {HOST}."]},
        }
        async with name_server({}, given[way]) as names:
            ask_at(monkeypatch, names)
            channel = far.channel()
            async with running(channel, far.inbox):
                await far.say("hello")
                await accepted(far, 1)
                transport = channel._link._client.transport
                assert transport.get_extra_info("cipher")
                assert transport.get_extra_info("peername")[1] == (direct if way == "direct" else plain)
            assert {DIRECT, LATER, HOST} <= set(names.asked)


@pytest.mark.parametrize("way", ["direct", "later"])
async def test_a_record_proves_nothing(tmp_path, authority, monkeypatch, way):
    """Whoever answers for DNS could name a host with a good certificate of its own: the domain's is wanted."""
    async with far_side_in(tmp_path, authority, HOST, tls=True, ca_file=tmp_path / "ca.pem") as far:
        far.more["server"] = ""
        port = far.server.tls_port if way == "direct" else far.server.port
        async with name_server({}, records(**{way: [port]})) as names:
            ask_at(monkeypatch, names)
            with pytest.raises(ChannelUnavailable, match="is not trusted for localhost"):
                await far.channel().run(far.inbox)
        assert "Authenticated as squid@" not in far.server.log()
