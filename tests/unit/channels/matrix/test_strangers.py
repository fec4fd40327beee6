"""
What strangers can do to the bot, on virtual time and in numbers of requests, commits and objects: 10,000 messages,
1,000 invitations, 200 poisoned events for its device. How long it takes is measured by ``make bench``.
"""

from __future__ import annotations

import gc
import json

import anyio
import pytest

from agent_core.messages import InboundMessage, OutboundMessage, SessionKey
from channels.base import DeliveryFailed
from channels.matrix.client.homeserver import HttpAnswer
from channels.matrix.client.matrix_login import MatrixLogin
from channels.matrix.config import MatrixConfig
from channels.matrix.crypto.encryption_engine import EncryptionEngine
from channels.matrix.crypto.key_types import Device
from tests.clock import EPOCH, LoopClock
from tests.doubles.accounts import scripted_channel
from tests.doubles.homeserver import ScriptedHomeserver, member, text
from tests.doubles.inbox import MemoryInbox, running

pytestmark = pytest.mark.virtual_time
BOT, ALICE, STRANGER = "@bot:hs.test", "@alice:hs.test", "@stranger:hs.test"
DIRECT, SHARED = "!direct:hs.test", "!shared:hs.test"


@pytest.fixture
def server():
    made = ScriptedHomeserver()
    made.on("POST", "/leave$", HttpAnswer(200, {}))
    made.on("POST", "/join$", HttpAnswer(200, {}))
    return made


@pytest.fixture
def channel(server, tmp_path):
    return scripted_channel(server, tmp_path, settings={"allow_from": [ALICE]})


@pytest.fixture
def inbox():
    inbox = MemoryInbox()
    inbox.positions["next_batch"] = "s0"
    return inbox


def known_rooms():
    """The first answer of a run: a direct room with the owner, and one that a stranger is in, too."""
    return {
        "account_data": {"events": [{"type": "m.direct", "content": {ALICE: [DIRECT]}}]},
        "rooms": {
            "join": {
                DIRECT: {
                    "state": {"events": [member(BOT), member(ALICE)]},
                    "summary": {"m.joined_member_count": 2, "m.invited_member_count": 0},
                },
                SHARED: {
                    "state": {"events": [member(BOT), member(ALICE), member(STRANGER)]},
                    "summary": {"m.joined_member_count": 3, "m.invited_member_count": 0},
                },
            }
        },
    }


def said(*events, room):
    return {"join": {room: {"timeline": {"events": list(events)}}}}


def alive(kind):
    gc.collect()
    return sum(1 for one in gc.get_objects() if isinstance(one, kind))


class Forgetful(MemoryInbox):
    """Keeps the owner's messages only, as a database that is no memory, and counts."""

    def __init__(self):
        super().__init__()
        self.positions["next_batch"] = "s0"
        self.commits = 0
        self.taken = 0

    async def accept(self, messages, positions=None, amendments=()):
        self.commits += 1
        self.taken += len(messages)
        await super().accept([one for one in messages if one.sender.address == ALICE], positions, amendments)
        self.offered.clear()


async def test_three_thousand_messages_of_a_stranger(server, channel):
    """Nothing is asked of the server for them, nothing of them stays in memory, and the owner's question is taken."""
    inbox = Forgetful()
    server.sync_body(**known_rooms())
    for batch in range(60):
        flood = [text(f"$f{batch}-{number}", "spam " * 50, sender=STRANGER) for number in range(50)]
        server.sync_body(rooms=said(*flood, room=SHARED))
        if batch == 30:
            server.sync_body(rooms=said(text("$question"), room=DIRECT))
    async with running(channel, inbox):
        await inbox.until_accepted(1)
        at_the_question = len(server.sync_requests)
        with anyio.fail_after(60):
            while server.syncs:
                await anyio.sleep(0.1)
        await anyio.sleep(1)
        requests = len(server.calls)
        kept = alive(InboundMessage)

    assert at_the_question <= 34  # it did not wait for the end
    assert inbox.commits <= 65
    assert requests < 100
    assert kept < 300


def invitation(number, sender=STRANGER):
    event = {
        "type": "m.room.member",
        "state_key": BOT,
        "sender": sender,
        "content": {"membership": "invite"},
    }
    return {f"!invited{number}": {"invite_state": {"events": [event]}}}


async def test_a_thousand_invitations_of_strangers(server, channel, inbox):
    """A friend's is followed at once; theirs are refused at a pace that leaves the server time, with few commits."""
    server.sync_body(**known_rooms())
    many = {}
    for number in range(1000):
        many |= invitation(number)
    server.sync_body(rooms={"invite": many})
    server.sync_body(rooms={"invite": invitation("friend", ALICE)})
    server.sync_body(rooms=said(text("$question"), room=DIRECT))
    server.on("GET", "invitedfriend/state/m.room.member/", HttpAnswer(200, {"membership": "join"}))
    before = len(server.calls)
    async with running(channel, inbox):
        await inbox.until_accepted(1)
        with anyio.fail_after(1):
            while not server.asked("POST", "invitedfriend/join"):
                await anyio.sleep(0.01)
        refused_by_then = len(server.asked("POST", "/leave$"))
        began = anyio.current_time()
        with anyio.fail_after(600):
            while any(
                not each["kept_at"] for each in json.loads(inbox.positions.get("invites", '[{"kept_at": 0}]'))
            ):
                await anyio.sleep(0.5)
        took_s = anyio.current_time() - began
    refused = len(server.asked("POST", "/leave$"))

    assert refused_by_then < 50
    assert refused == 497  # beyond that they are left lying, and three of one inviter wait for the owner
    assert took_s > 25  # virtual seconds: not as fast as the server can
    assert len(server.calls) - before < 560


async def test_two_hundred_poisoned_events(tmp_path):
    """Each is undone by itself: the key among them arrives, and nothing of them stays."""
    from tests.unit.channels.matrix.test_olm_machine import Pair

    pair = Pair(tmp_path)
    curve = pair.bot._olm.account.identity_keys["curve25519"]
    poison = [
        {
            "type": "m.room.encrypted",
            "sender": STRANGER,
            "content": {
                "algorithm": "m.olm.v1.curve25519-aes-sha2",
                "sender_key": f"{number:043d}",
                "ciphertext": {curve: {"type": number % 3, "body": "AAAA" if number % 2 else "!!!"}},
            },
        }
        for number in range(200)
    ]
    before = pair.bot.generation
    found = pair.bot.receive([*poison[:100], pair.key_event(), *poison[100:]])
    clear = pair.bot.decrypt("!room:hs.test", pair.say("hello"))
    wedged = pair.bot.broken_devices()
    pair.close()

    assert found == 1
    assert clear["content"]["body"] == "hello"
    assert pair.bot.generation <= before + 2  # one transaction, not two hundred
    assert wedged == []


class Wedged:
    """The keys of a device, of which somebody else's session is broken for good."""

    room_keys = ()

    def __init__(self):
        self.learned = 0

    def new_keys(self, _count):
        return None

    def broken_devices(self):
        return [Device(STRANGER, "DEVICE", "curve")]

    def start_sessions(self, _keys):
        self.learned += 1

    def take_outgoing(self):
        return {}

    def upkeep(self, _today, **_):
        return 0


class SlowClaims(ScriptedHomeserver):
    """Waits for another server, which does not answer, before it gives away its keys."""

    async def request(self, method, path, *args, **options):
        if path.endswith("/keys/claim"):
            self.calls.append(path)
            await anyio.sleep(25)
            return HttpAnswer(200, {"one_time_keys": {}})
        return await super().request(method, path, *args, **options)


async def test_a_broken_session_with_a_slow_server_does_not_hold_up_what_is_received(tmp_path):
    """A session is begun anew beside the receiving loop, which waits for nothing, and not tried each time."""
    config = MatrixConfig(homeserver="http://hs", user_id=BOT, password="pw")
    server, clock = SlowClaims(), LoopClock()
    login = MatrixLogin(config, server, tmp_path, clock)
    crypto = EncryptionEngine(server, login, tmp_path, lambda _: None, clock)
    crypto._machine = Wedged()
    begun = anyio.current_time()
    async with anyio.create_task_group() as group:
        group.start_soon(crypto.repair)
        await anyio.sleep(0.1)
        for _ in range(10):
            await crypto.maintain()
            await crypto.repair()
        assert anyio.current_time() - begun < 0.2
    assert len(server.calls) == 1
    await anyio.sleep(120)
    await crypto.repair()
    assert len(server.calls) == 2


async def test_what_was_encrypted_once_stays_so(server, channel, inbox):
    """A server that says nothing of it any more, when asked neither, gets no clear text: it is known over restarts."""
    secret = {"type": "m.room.encryption", "state_key": "", "content": {}}
    server.sync_body(next_batch="s1", rooms={"join": {DIRECT: {"state": {"events": [secret]}}}})
    server.on("PUT", "/send/", HttpAnswer(200, {"event_id": "$e"}))
    async with running(channel, inbox):
        await inbox.until(lambda one: "encrypted_rooms" in one.positions)
    assert json.loads(inbox.positions["encrypted_rooms"]) == [DIRECT]
    server.sync_body(next_batch="s2", rooms={"join": {each: {} for each in (DIRECT, SHARED)}})
    message = OutboundMessage(
        id="row",
        channel="matrix",
        account=BOT,
        session=SessionKey("matrix", DIRECT),
        text="hi",
        created_at=EPOCH,
    )
    async with running(channel, inbox):
        await inbox.until_up()
        with pytest.raises(DeliveryFailed, match="encryption is not available"):
            await channel.deliver(message, uncertain=anyio.lowlevel.checkpoint)
        elsewhere = message.model_copy(update={"session": SessionKey("matrix", SHARED)})
        await channel.deliver(elsewhere, uncertain=anyio.lowlevel.checkpoint)

    assert len(server.asked("PUT", "/send/")) == 1
