"""The example of a channel in a package of its own keeps the contract, on a real IRC server."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from agent_core.messages import Audience, SessionKey
from agent_core.state_folder import DiskFolder
from channels.attachments import AttachmentStore
from channels.base import ChannelUnavailable
from channels.plugin import ChannelServices
from tests import irc_server
from tests.clock import ManualClock
from tests.contract import channel as contract
from tests.contract.far_side import Mark
from tests.doubles.inbox import running
from tests.irc_server import IrcPerson, IrcServer

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "squidbot-irc"))
from squidbot_irc import IrcConfig, IrcPlugin

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(irc_server.PROGRAM is None, reason=irc_server.MISSING),
]


class IrcFarSide(contract.FarSide):
    session, other_session = SessionKey("irc", "alice"), SessionKey("irc", "bob")

    def __init__(self, server: IrcServer, home: Path, **more) -> None:
        super().__init__()
        self.server, self.home, self.more = server, home, more
        self.password = irc_server.PASSWORD
        self.people: dict[str, IrcPerson] = {}

    async def arrive(self, *rooms):
        for nick in ("alice", "bob"):
            seen = []
            if nick in self.people:
                seen = self.people[nick].seen
                await self.people[nick].close()
            self.people[nick] = IrcPerson(self.server, nick)
            self.people[nick].seen = seen
            await self.people[nick].connect(*rooms)

    def channel(self):
        services = ChannelServices(
            name="irc",
            clock=ManualClock(),
            state=DiskFolder(self.home),
            attachments=AttachmentStore(self.home),
            may_talk=lambda address: True,
            is_owner=lambda address: False,
            owner_addresses=(),
            alert=lambda about, text, once="": None,
        )
        given = {
            "server": "127.0.0.1",
            "port": self.server.port,
            "tls": False,
            "nick": "bot",
            "trust_nicks": True,
        }
        config = IrcConfig.model_validate({**given, "password": self.password, **self.more})
        return IrcPlugin().build(config, services)

    async def say(self, text, *, session=None):
        person = self.people[(session or self.session).conversation]
        await person.until_online("bot")
        await person.say("bot", text)

    async def seen(self, session=None):
        person = self.people[(session or self.session).conversation]
        try:
            await person.catch_up()
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead):
            pass  # the server is down
        return [text for _, text in person.seen]

    async def go_down(self):
        self.server.stop()

    async def come_back(self):
        await self.server.start()
        await self.arrive()

    async def refuse_login(self):
        self.password = "wrong"


class TestIrc(
    contract.DeliveryContract,
    contract.LinkContract,
    contract.LoginContract,
    contract.PrivacyContract,
    contract.CloseContract,
):
    # An IRC server keeps nothing for who is not there.
    test_the_same_channel_runs_again_and_has_missed_nothing = None

    @asynccontextmanager
    async def far_side(self, **more):
        server = IrcServer(self.folder)
        try:
            await server.start()
            far = IrcFarSide(server, self.folder, **more)
            await far.arrive(*more.get("rooms", ()))
            yield far
            for person in far.people.values():
                await person.close()
        finally:
            server.close()

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = tmp_path

    async def test_in_a_room_it_hears_its_name(self):
        """Who says its name is answered in the room, and everybody there sees it."""
        async with self.far_side(rooms=["#team"]) as far:
            channel = far.channel()
            async with running(channel, far.inbox):
                await far.people["alice"].until_online("bot")
                await far.people["alice"].say("#team", "lunch?")
                await far.people["alice"].say("#team", "bot: what is new?")
                first, second = await far.inbox.until_accepted(2, within_s=far.patience_s)
                assert [(each.text, each.addressed) for each in (first, second)] == [
                    ("lunch?", False),
                    ("what is new?", True),
                ]
                assert second.audience is Audience.GROUP
                answer = far.outbound("k1", "nothing\nat all", session=second.session)
                await channel.deliver(answer, uncertain=Mark(far))
                assert await far.seen(SessionKey("irc", "bob")) == [
                    "lunch?",
                    "bot: what is new?",
                    "nothing",
                    "at all",
                ]

    async def test_nobody_is_somebody_by_a_nick_alone(self):
        """Without ``trust_nicks`` a nick proves nothing."""
        async with self.far_side(trust_nicks=False) as far:
            async with running(far.channel(), far.inbox):
                await far.say("it is me")
                (message,) = await far.inbox.until_accepted(1, within_s=far.patience_s)
                assert not message.sender.verified

    async def test_who_is_not_there_gets_it_later(self):
        """The server says that nobody has the nick; nothing is lost, and nothing uncertain."""
        async with self.far_side() as far:
            channel = far.channel()
            async with running(channel, far.inbox):
                await far.inbox.until_up(within_s=far.patience_s)
                message = far.outbound("k1", "hello", session=SessionKey("irc", "carol"))
                with pytest.raises(ChannelUnavailable):
                    await channel.deliver(message, uncertain=Mark(far))
                async with IrcPerson(far.server, "carol") as carol:
                    await channel.deliver(message, uncertain=Mark(far))
                    await carol.catch_up()
                    assert carol.seen == [("bot", "hello")]
