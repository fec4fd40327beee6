"""The example of an XMPP channel shows its password to nobody whom a certificate does not prove."""

from __future__ import annotations

import pytest
import trustme

pytest.importorskip("slixmpp")

from channels.base import ChannelUnavailable, LinkState
from tests import xmpp_server
from tests.doubles.inbox import running
from tests.integration.test_xmpp_example import accepted, far_side_in

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(xmpp_server.PROGRAM is None, reason=xmpp_server.MISSING),
]


@pytest.fixture
def authority(tmp_path):
    made = trustme.CA()
    made.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    return made


async def test_the_servers_certificate_is_verified_and_it_may_start_again(tmp_path, authority):
    """With the file of its authority all goes on encrypted, also after the server was away."""
    async with far_side_in(tmp_path, authority, tls=True, ca_file=tmp_path / "ca.pem") as far:
        channel = far.channel()
        async with running(channel, far.inbox):
            await far.say("hello")
            await accepted(far, 1)
            await far.inbox.until(lambda _: channel._link is not None)
            assert channel._link._client.transport.get_extra_info("cipher")
        await far.go_down()
        await far.come_back()
        await far.say("again")
        async with running(far.channel(), far.inbox):
            await accepted(far, 2)


@pytest.mark.parametrize(
    ("certified", "trusted", "said"),
    [
        ("localhost", "other.pem", "is not trusted"),
        ("localhost", None, "is not trusted"),
        ("elsewhere.test", "ca.pem", "is not trusted"),
        (None, "ca.pem", "offers no encryption"),
    ],
)
async def test_whom_nothing_proves_gets_no_password(tmp_path, authority, certified, trusted, said):
    """Another authority, another name, or no encryption at all; the owner is told what to do."""
    file = trusted and tmp_path / trusted
    served = authority if certified else None
    async with far_side_in(tmp_path, served, certified or "", tls=True, ca_file=file) as far:
        with pytest.raises(ChannelUnavailable, match=said) as refused:
            await far.channel().run(far.inbox)
        assert "_ssl.c" not in str(refused.value)
        assert far.inbox.states[-1] is LinkState.DOWN
        assert "Authenticated as squid@" not in far.server.log()
        assert far.inbox.accepted == []
