"""The example of an XMPP channel keeps the contract, on a real prosody."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from pathlib import Path
from xml.etree.ElementTree import Element

import aiohttp
import pytest

pytest.importorskip("slixmpp")

from agent_core.messages import Audience, MessageContext, Sender, SessionKey
from agent_core.state_folder import DiskFolder
from channels.attachments import AttachmentStore
from channels.base import AckState, DeliveryFailed, LinkState
from channels.plugin import ChannelServices
from tests import xmpp_server
from tests.clock import ManualClock
from tests.contract import channel as contract
from tests.contract import channel_delivery as delivery
from tests.contract.far_side import Mark
from tests.doubles.inbox import running
from tests.xmpp_server import HIDING_ROOM, ROOM, CuttingRelay, XmppPerson, XmppServer

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "squidbot-xmpp"))
from squidbot_xmpp import XmppConfig, XmppPlugin
from squidbot_xmpp.link import PAGE, RESOURCE, Page

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
        return XmppPlugin().build(
            XmppConfig.model_validate({**self.server.account(port=self.relay.port), **self.more}), services
        )

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

    async def lose_answer(self):
        self.relay.cuts = True

    async def come_back(self):
        await self.server.start()
        self.up = True
        for person in self.people.values():
            await person.close()
        await self.arrive()

    async def refuse_login(self):
        self.more["password"] = "wrong"


@asynccontextmanager
async def far_side_in(folder, authority=None, certified="localhost", **more):
    server = XmppServer(folder, authority, certified)
    far = XmppFarSide(server, folder, **more)
    try:
        await server.start()
        async with CuttingRelay(server.port) as far.relay:
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


def element(name, text=None, **attributes):
    made = Element(name, attributes)
    made.text = text
    return made


async def accepted(far, count):
    return await far.inbox.until_accepted(count, within_s=far.patience_s)


async def until_up(far):
    await far.inbox.until_up(within_s=far.patience_s)


@asynccontextmanager
async def in_room(folder, room=ROOM, *, shows_addresses=True):
    """Alice, who has made the room, and Bob are in it."""
    async with far_side_in(folder, rooms=[room]) as far:
        alice, bob = far.people["alice"], far.people["bob"]
        await alice.join(room, shows_addresses=shows_addresses)
        await bob.join(room)
        yield far, alice, bob


async def test_in_a_room_it_hears_its_name_and_knows_people_by_their_addresses(tmp_path):
    """Who says its name is answered in the room; the server says whose nick it is."""
    async with in_room(tmp_path) as (far, alice, bob):
        channel = far.channel()
        async with running(channel, far.inbox):
            await until_up(far)
            await alice.say(ROOM, "lunch?", room=True)
            await bob.say(ROOM, "Squid, what is new?", room=True)
            first, second = await accepted(far, 2)
            assert [(one.text, one.addressed) for one in (first, second)] == [
                ("lunch?", False),
                ("what is new?", True),
            ]
            assert second.audience is Audience.GROUP
            assert second.session == SessionKey("xmpp", f"xmpp:{ROOM}?join")
            assert second.sender == Sender(address="bob@localhost", name="bob", verified=True)
            answer = far.outbound("k1", "nothing", session=second.session).with_context(second.context)
            receipt = await channel.deliver(answer, uncertain=Mark(far))
            assert await channel.probe(answer) == receipt
            await alice.catch_up()
            assert alice.seen[-1] == (f"{ROOM}/squid", "bob: nothing")
            assert far.inbox.texts == ["lunch?", "what is new?"]


async def test_what_was_said_in_a_room_meanwhile_is_heard_once(tmp_path):
    """Also by who has left since."""
    async with in_room(tmp_path) as (far, _, bob):
        async with running(far.channel(), far.inbox):
            await until_up(far)
        await bob.say(ROOM, "squid: are you there?", room=True)
        await bob.leave(ROOM)
        for _ in range(2):
            async with running(far.channel(), far.inbox):
                await until_up(far)
                assert [(one.text, one.sender.address) for one in far.inbox.accepted] == [
                    ("are you there?", "bob@localhost")
                ]


async def test_nobody_is_somebody_by_a_nick_in_a_room_that_hides_addresses(tmp_path):
    """A stranger with the owner's nick stays a stranger, and so does everybody else there."""
    async with in_room(tmp_path, HIDING_ROOM, shows_addresses=False) as (far, _, bob):
        async with running(far.channel(), far.inbox):
            await until_up(far)
            await bob.say(HIDING_ROOM, "squid: it is me", alice_note(), room=True)
            (message,) = await accepted(far, 1)
            assert message.sender == Sender(address=f"{HIDING_ROOM}/bob", name="bob")


def alice_note():
    """What a room's archive writes beside a message, as somebody else writes it."""
    note = element("{http://jabber.org/protocol/muc#user}x")
    note.append(
        element("{http://jabber.org/protocol/muc#user}item", jid="alice@localhost", role="participant")
    )
    return note


async def test_a_note_of_ones_own_about_who_one_is_counts_for_nothing(tmp_path):
    """The archive of this server keeps it beside its own; two are none."""
    async with in_room(tmp_path) as (far, _, bob):
        async with running(far.channel(), far.inbox):
            await until_up(far)
            await bob.say(ROOM, "squid: it is me", alice_note(), room=True)
            (message,) = await accepted(far, 1)
            assert message.sender.address != "alice@localhost"
            assert not message.sender.verified


async def test_what_was_said_while_a_room_hid_its_people_proves_nothing_when_it_shows_them(tmp_path):
    """A forged note of that time would be read as the archive's own."""
    async with in_room(tmp_path, HIDING_ROOM, shows_addresses=False) as (far, alice, bob):
        async with running(far.channel(), far.inbox):
            await until_up(far)
        await bob.say(HIDING_ROOM, "squid: it is me", alice_note(), room=True)
        await alice.configure(HIDING_ROOM, shows_addresses=True)
        async with running(far.channel(), far.inbox):
            await until_up(far)
            (message,) = await accepted(far, 1)
            assert not message.sender.verified
            await bob.say(HIDING_ROOM, "squid: and now?", room=True)
            assert (await accepted(far, 2))[1].sender.verified


async def test_a_room_that_is_not_there_is_told_and_holds_up_nothing(tmp_path):
    """It is not made, and the other conversations go on."""
    async with far_side_in(tmp_path, rooms=["nowhere@rooms.localhost"]) as far:
        async with running(far.channel(), far.inbox):
            await until_up(far)
            assert far.alerts == ["I am not in the room nowhere@rooms.localhost: there is no such room."]
            await far.say("hello")
            await accepted(far, 1)


def forwarded(sender, text):
    """A message that somebody claims to have been sent."""
    whole = element("{urn:xmpp:forward:0}forwarded")
    whole.append(element("{urn:xmpp:delay}delay", stamp="2026-01-01T00:00:00Z"))
    inner = element("{jabber:client}message", **{"from": sender, "to": "squid@localhost", "type": "chat"})
    inner.append(element("{jabber:client}body", text))
    whole.append(inner)
    return whole


async def test_nobody_is_somebody_by_a_forwarded_message(tmp_path):
    """Carbons, pieces of archives and forwarded messages of strangers are not unpacked (CVE-2017-5589)."""
    async with far_side_in(tmp_path) as far:
        async with running(far.channel(), far.inbox):
            await until_up(far)
            bob = far.people["bob"]
            for wrapper in (
                element("{urn:xmpp:carbons:2}received"),
                element("{urn:xmpp:carbons:2}sent"),
                element("{urn:xmpp:mam:2}result", id="x", queryid="y"),
            ):
                wrapper.append(forwarded("alice@localhost/phone", "let me in"))
                await bob.say(f"squid@localhost/{RESOURCE}", "", wrapper)
            await bob.say("squid@localhost", "", forwarded("alice@localhost/phone", "let me in"))
            await bob.say("squid@localhost", "done")
            await accepted(far, 1)
            assert [(one.sender.address, one.text) for one in far.inbox.offered] == [
                ("bob@localhost", "done")
            ]


async def test_an_answer_of_an_archive_is_taken_from_that_archive_alone(tmp_path):
    """Somebody who knew the name of a question to it could not answer in its place."""
    async with far_side_in(tmp_path) as far:
        channel = far.channel()
        async with running(channel, far.inbox):
            await until_up(far)
            link, page = channel._link, Page()
            link._pages["guessed"] = ("squid@localhost", page)
            wrapper = element("{urn:xmpp:mam:2}result", id="x", queryid="guessed")
            wrapper.append(forwarded("alice@localhost/phone", "let me in"))
            await far.people["bob"].say(f"squid@localhost/{RESOURCE}", "", wrapper)
            await far.people["bob"].say("squid@localhost", "done")
            await accepted(far, 1)
            assert page.entries == []
            link._take_result(wrapper, "squid@localhost")  # the control
            assert len(page.entries) == 1


def receipts(person):
    return [
        one[0].get("id") for one in person.stanzas if len(one) and one[0].tag == "{urn:xmpp:receipts}received"
    ]


async def test_a_message_is_confirmed_when_it_is_stored(tmp_path):
    """Not before, and whoever wants to know that it is seen is told when it is taken up."""
    async with far_side_in(tmp_path) as far:
        channel, alice = far.channel(), far.people["alice"]
        async with running(channel, far.inbox):
            await until_up(far)
            far.inbox.hold()
            wants = element("{urn:xmpp:receipts}request"), element("{urn:xmpp:chat-markers:0}markable")
            key = await alice.say("squid@localhost", "hello", *wants)
            await far.inbox.until_offered(1, within_s=far.patience_s)
            await alice.catch_up()
            assert receipts(alice) == []
            far.inbox.release()
            (message,) = await accepted(far, 1)
            await alice.until(lambda: receipts(alice) == [key])
            await channel.acknowledge(message.session, message.context, AckState.RECEIVED)
            displayed = "{urn:xmpp:chat-markers:0}displayed"
            await alice.until(
                lambda: [one[0].get("id") for one in alice.stanzas if one[0].tag == displayed] == [key]
            )


def correction(key):
    return element("{urn:xmpp:message-correct:0}replace", id=key)


async def test_a_correction_is_an_edit_of_the_message(tmp_path):
    """By its sender; found in the archive if it was said before a restart. A withdrawal likewise."""
    async with far_side_in(tmp_path) as far:
        alice, bob = far.people["alice"], far.people["bob"]
        async with running(far.channel(), far.inbox):
            await until_up(far)
            key = await alice.say("squid@localhost", "tomorow?")
            (message,) = await accepted(far, 1)
            await alice.say("squid@localhost", "tomorrow?", correction(key))
            await far.inbox.until(lambda inbox: len(inbox.amendments) == 1, within_s=far.patience_s)
        await alice.say("squid@localhost", "Tomorrow?", correction(key))
        kept = element("{urn:xmpp:hints}store")
        gone = element("{urn:xmpp:message-retract:1}retract", id=key)
        await alice.say("squid@localhost", "This is taken back.", gone, kept)
        await bob.say("squid@localhost", "never", correction(key))
        async with running(far.channel(), far.inbox):
            await until_up(far)
            assert [(one.kind, one.native_id, one.sender, one.text) for one in far.inbox.amendments] == [
                ("replace", message.native_id, "alice@localhost", "tomorrow?"),
                ("replace", message.native_id, "alice@localhost", "Tomorrow?"),
                ("withdraw", message.native_id, "alice@localhost", ""),
            ]
            assert [(one.text, one.sender.address) for one in far.inbox.accepted[1:]] == [
                ("never", "bob@localhost")
            ]


async def test_a_correction_in_a_room_can_be_what_names_the_bot(tmp_path):
    """Then it is a question, once."""
    async with in_room(tmp_path) as (far, _, bob):
        async with running(far.channel(), far.inbox):
            await until_up(far)
            key = await bob.say(ROOM, "what is new?", room=True)
            await bob.say(ROOM, "squid: what is new?", correction(key), room=True)
            first, second = await accepted(far, 2)
            assert [(one.text, one.addressed) for one in (first, second)] == [
                ("what is new?", False),
                ("what is new?", True),
            ]
            await bob.say(ROOM, "squid: what is old?", correction(key), room=True)
            await far.inbox.until(lambda inbox: len(inbox.amendments) == 1, within_s=far.patience_s)
            assert far.inbox.amendments[0].native_id == second.native_id


async def test_an_answer_can_be_corrected(tmp_path):
    """The correction names the message that it replaces."""
    async with far_side_in(tmp_path) as far:
        channel, alice = far.channel(), far.people["alice"]
        async with running(channel, far.inbox):
            await until_up(far)
            sent = await channel.deliver(far.outbound("k1", "fuor"), uncertain=Mark(far))
            better = far.outbound("k2", "four").with_context(MessageContext(edits=sent.provider_id))
            await channel.deliver(better, uncertain=Mark(far))
            await alice.catch_up()
            last = alice.stanzas[-1]
            assert last.find("{urn:xmpp:message-correct:0}replace").get("id") == sent.provider_id
            assert last.get("id") == last.find("{urn:xmpp:sid:0}origin-id").get("id") != sent.provider_id


async def test_files_come_and_go_by_the_servers_upload(tmp_path):
    """A file is kept before its message is accepted; ours is a message of its own, and sent once."""
    async with far_side_in(tmp_path) as far:
        channel, alice = far.channel(), far.people["alice"]
        async with running(channel, far.inbox):
            await until_up(far)
            url = await alice.upload("notes.txt", b"milk and eggs")
            await alice.say("squid@localhost", url, oob(url))
            (message,) = await accepted(far, 1)
            (attachment,) = message.attachments
            assert (message.text, attachment.name, attachment.size_bytes) == ("", "notes.txt", 13)
            answer = far.outbound("k1", "here").model_copy(update={"attachments": (attachment,)})
            receipt = await channel.deliver(answer, uncertain=Mark(far))
            assert await channel.probe(answer) == receipt
            await channel.deliver(answer, uncertain=Mark(far))
            await alice.catch_up()
            (_, text), (_, got) = alice.seen
            assert text == "here"
            async with aiohttp.ClientSession() as http, http.get(got) as file:
                assert await file.read() == b"milk and eggs"
            assert alice.stanzas[-1].findtext("{jabber:x:oob}x/{jabber:x:oob}url") == got


def oob(url):
    whole = element("{jabber:x:oob}x")
    whole.append(element("{jabber:x:oob}url", url))
    return whole


async def test_no_file_is_fetched_from_where_its_sender_likes(tmp_path):
    """An address of another server stays text: nobody makes the bot ask what is inside a network."""
    async with far_side_in(tmp_path) as far:
        async with running(far.channel(), far.inbox):
            await until_up(far)
            url = f"http://127.0.0.1:{far.server.http_port}/secret.txt"
            await far.people["alice"].say("squid@localhost", url, oob(url))
            (message,) = await accepted(far, 1)
            assert (message.text, message.attachments) == (url, ())


async def test_an_encrypted_message_is_said_to_be_unreadable(tmp_path):
    """Its sender hears what to do, and the text that stands beside it for other programs is no question."""
    async with far_side_in(tmp_path) as far:
        async with running(far.channel(), far.inbox):
            await until_up(far)
            sealed = element("{eu.siacs.conversations.axolotl}encrypted")
            await far.people["alice"].say("squid@localhost", "I sent you an OMEMO encrypted message", sealed)
            (message,) = await accepted(far, 1)
            assert message.text == ""
            assert "turn encryption off" in message.context.unreadable


async def test_what_shall_be_kept_nowhere_is_heard_all_the_same(tmp_path):
    """It is in no archive, so it is taken as it comes."""
    async with far_side_in(tmp_path) as far:
        async with running(far.channel(), far.inbox):
            await until_up(far)
            await far.people["alice"].say("squid@localhost", "psst", element("{urn:xmpp:hints}no-store"))
            await accepted(far, 1)
            assert far.inbox.texts == ["psst"]


async def test_who_does_not_exist_gets_nothing_for_good(tmp_path):
    """The server says so at once; and characters that XML has not do no harm."""
    async with far_side_in(tmp_path) as far:
        channel = far.channel()
        async with running(channel, far.inbox):
            await until_up(far)
            nobody = far.outbound("k1", "hello", session=SessionKey("xmpp", "nobody@localhost"))
            with pytest.raises(DeliveryFailed):
                await channel.deliver(nobody, uncertain=Mark(far))
            await channel.deliver(far.outbound("k2", "a\x00b\x0b\ud800<&>"), uncertain=Mark(far))
            assert await far.seen() == ["ab<&>"]


async def test_an_archive_that_has_forgotten_the_last_message_is_read_from_its_beginning(tmp_path):
    """Then nothing is missed, and nothing that was accepted counts again."""
    async with far_side_in(tmp_path) as far:
        async with running(far.channel(), far.inbox):
            await until_up(far)
            await far.say("one")
            await accepted(far, 1)
        await far.say("two")
        far.inbox.positions["archive squid@localhost"] = "gone"
        async with running(far.channel(), far.inbox):
            await until_up(far)
            assert far.inbox.texts == ["one", "two"]


async def test_only_who_was_written_to_says_that_nothing_arrived(tmp_path):
    """A bounce that comes later is told; one of somebody else is not."""
    async with far_side_in(tmp_path) as far:
        far.inbox.delivered["key"], far.inbox.outbound["k1"] = "k1", far.outbound("k1", "hello")
        error = element("{jabber:client}error", type="cancel")
        error.append(element("{urn:ietf:params:xml:ns:xmpp-stanzas}service-unavailable"))
        async with running(far.channel(), far.inbox):
            await until_up(far)
            for name in ("bob", "alice"):
                await far.people[name].say(f"squid@localhost/{RESOURCE}", "", error, key="key", kind="error")
                await far.people[name].say("squid@localhost", "done")
            await accepted(far, 2)
            assert [(one.kind, one.native_id, one.text) for one in far.inbox.amendments] == [
                ("bounce", "key", "service-unavailable")
            ]


async def test_a_room_whose_rules_change_is_looked_at_again(tmp_path):
    """From then on nobody there is known any more, and the bot stays connected."""
    async with in_room(tmp_path) as (far, alice, bob):
        async with running(far.channel(), far.inbox):
            await until_up(far)
            await bob.say(ROOM, "squid: one", room=True)
            await accepted(far, 1)
            await alice.configure(ROOM, shows_addresses=False)
            await bob.say(ROOM, "squid: two", room=True)
            await accepted(far, 2)
            assert [one.sender.verified for one in far.inbox.accepted] == [True, False]
            assert LinkState.DOWN not in far.inbox.states


async def test_a_room_on_a_server_that_is_gone_holds_up_nobody(tmp_path):
    """People alone with the bot are answered meanwhile."""
    async with far_side_in(tmp_path, rooms=["team@rooms.example.invalid"]) as far:
        channel = far.channel()
        async with running(channel, far.inbox):
            await far.say("hello")
            await accepted(far, 1)
            await far.inbox.until(lambda _: channel._link is not None)
            await channel.deliver(far.outbound("k1", "hi"), uncertain=Mark(far))
            assert await far.until_seen(1) == ["hi"]


async def test_who_is_the_first_to_speak_when_a_room_shows_its_people_is_known(tmp_path):
    """Nothing was said before, so nothing is in doubt."""
    async with in_room(tmp_path, HIDING_ROOM, shows_addresses=False) as (far, alice, bob):
        async with running(far.channel(), far.inbox):
            await until_up(far)
        await alice.configure(HIDING_ROOM, shows_addresses=True)
        async with running(far.channel(), far.inbox):
            await until_up(far)
            await bob.say(HIDING_ROOM, "squid: hello", room=True)
            (message,) = await accepted(far, 1)
            assert message.sender.verified


async def test_a_room_that_hides_its_people_for_a_moment_makes_nobody_of_them_known(tmp_path):
    """Also if it shows them again before the bot has read what was said; later words are known again."""
    async with in_room(tmp_path) as (far, alice, bob):
        async with running(far.channel(), far.inbox):
            await until_up(far)
            await alice.configure(ROOM, shows_addresses=False)
            await bob.say(ROOM, "squid: it is me", alice_note(), room=True)
            await alice.configure(ROOM, shows_addresses=True)
            (message,) = await accepted(far, 1)
            assert not message.sender.verified
            for count in range(2, 100):
                await bob.say(ROOM, "squid: and now?", room=True)
                if (await accepted(far, count))[-1].sender.address == "bob@localhost":
                    break
            assert far.inbox.accepted[-1].sender.verified


async def test_a_flood_and_a_huge_message_are_read_page_by_page(tmp_path):
    """As much as the server takes, said while the bot was away: each once, in its order, and others are heard."""
    async with far_side_in(tmp_path) as far:
        await far.say("x" * 200_000)
        for number in range(2 * PAGE + 1):
            await far.say(f"flood {number}")
        await far.people["bob"].say("squid@localhost", "and me")
        async with running(far.channel(), far.inbox):
            found = await accepted(far, 2 * PAGE + 3)
        texts = [one.text for one in found]
        assert len(texts[0]) == 200_000
        assert texts[1:] == [*(f"flood {number}" for number in range(2 * PAGE + 1)), "and me"]
