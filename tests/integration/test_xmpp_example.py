"""The example of an XMPP channel keeps the contract, on a real prosody."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytest.importorskip("slixmpp")

from agent_core.messages import SessionKey
from agent_core.state_folder import DiskFolder
from channels.attachments import AttachmentStore
from channels.plugin import ChannelServices
from tests import xmpp_server
from tests.clock import ManualClock
from tests.contract import channel as contract
from tests.contract import channel_delivery as delivery
from tests.xmpp_server import XmppPerson, XmppServer

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "squidbot-xmpp"))
from squidbot_xmpp import XmppConfig, XmppPlugin

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(xmpp_server.PROGRAM is None, reason=xmpp_server.MISSING),
]


class XmppFarSide(contract.FarSide):
    session, other_session = SessionKey("xmpp", "alice@localhost"), SessionKey("xmpp", "bob@localhost")
    patience_s = 60.0

    def __init__(self, server: XmppServer, home: Path, **more) -> None:
        super().__init__()
        self.server, self.home, self.more = server, home, more
        self.people: dict[str, XmppPerson] = {}
        self.alerts: list[str] = []

    async def arrive(self):
        for name in ("alice", "bob"):
            seen = self.people[name].seen if name in self.people else []
            self.people[name] = XmppPerson(self.server, name)
            self.people[name].seen = seen
            await self.people[name].connect()

    def channel(self):
        services = ChannelServices(
            name="xmpp",
            clock=ManualClock(),
            state=DiskFolder(self.home),
            attachments=AttachmentStore(self.home),
            may_talk=lambda address: True,
            is_owner=lambda address: False,
            owner_addresses=(),
            alert=lambda about, text, once="": self.alerts.append(text),
        )
        return XmppPlugin().build(XmppConfig.model_validate(self.server.account(**self.more)), services)

    async def say(self, text, *, session=None):
        await self.people[(session or self.session).conversation.partition("@")[0]].say(
            "squid@localhost", text
        )

    async def seen(self, session=None):
        person = self.people[(session or self.session).conversation.partition("@")[0]]
        if self.up:
            await person.catch_up()
        return [text for _, text in person.seen]

    up = True

    async def go_down(self):
        self.server.stop()
        self.up = False

    async def come_back(self):
        await self.server.start()
        self.up = True
        for person in self.people.values():
            await person.close()
        await self.arrive()

    async def refuse_login(self):
        self.more["password"] = "wrong"


@asynccontextmanager
async def far_side_in(folder, **more):
    server = XmppServer(folder)
    far = XmppFarSide(server, folder, **more)
    try:
        await server.start()
        await far.arrive()
        yield far
    finally:
        for person in far.people.values():
            await person.close()
        server.close()


class TestXmpp(
    contract.ReceivingContract,
    contract.DeliveryContract,
    delivery.ProbeContract,
    contract.LinkContract,
    contract.LoginContract,
    contract.PrivacyContract,
    contract.CloseContract,
):
    def far_side(self, **more):
        return far_side_in(self.folder, **more)

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = tmp_path
