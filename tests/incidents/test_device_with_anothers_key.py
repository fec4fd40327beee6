"""
Anybody's homeserver can name a device with the Curve25519 key of somebody else's: a list of devices proves only who has
the Ed25519 keys in it. With the key of the owner's new device in theirs, a stranger had the bot drop what the owner wrote,
and encrypt its answers to the owner in a session that nobody can read.
"""

from __future__ import annotations

import pytest
import structlog
import structlog.testing
import vodozemac

from channels.base import ChannelClock
from channels.matrix.client.homeserver import HttpAnswer
from channels.matrix.crypto.encryption_engine import EncryptionEngine
from channels.matrix.crypto.key_types import ForeignKey
from tests.clock import ManualClock
from tests.doubles.homeserver import ScriptedHomeserver
from tests.incidents.test_thousands_of_devices import BOT, OWNER, ROOM, Person, private_olm, signed

EVIL = "@evil:evil.test"


class Client:
    """A person's device, with which they write to the bot and read it."""

    def __init__(self, folder, user_id, bot):
        self.user_id = user_id
        self.machine = private_olm.OlmMachine(folder, user_id, "PHONE", "key")
        self.bot = bot
        self.keys = self.machine.new_keys(None)
        self.machine.note_upload()
        self.count = 0

    @property
    def devices(self):
        return {"PHONE": self.keys["device_keys"]}

    def claimed(self, _names=()):
        [key] = [next(iter(self.keys["one_time_keys"].items()))]
        return {"PHONE": dict([key])}

    def writes(self):
        """A message in clear, as the bot reads it."""
        bots = self.bot.new_keys(0)
        self.bot.note_upload()
        if not self.machine.devices_of([BOT]):
            self.machine.learn_devices(BOT, {self.bot.device_id: self.bot.announced})
            [(name, key), *_] = bots["one_time_keys"].items()
            self.machine.start_sessions({BOT: {self.bot.device_id: {name: key}}})
        for body in self.machine.room_key_for(ROOM, self.machine.devices_of([BOT])).values():
            self.bot.receive([{"type": "m.room.encrypted", "sender": self.user_id, "content": body}])
        self.count += 1
        event = {
            "type": "m.room.encrypted",
            "sender": self.user_id,
            "event_id": f"${self.user_id}{self.count}",
        }
        event["content"] = self.machine.encrypt(ROOM, "m.room.message", {"body": "hi"})
        return self.bot.decrypt(ROOM, event)["content"]["body"]

    def reads(self, *members):
        """What the bot says to these people, as this device reads it; None if it cannot."""
        given = self.bot.room_key_for(ROOM, self.bot.devices_of([self.user_id, *members]))
        for device, body in given.items():
            if device.user_id == self.user_id:
                self.machine.receive([{"type": "m.room.encrypted", "sender": BOT, "content": body}])
        self.bot.note_key_delivery(ROOM, given)
        event = {"type": "m.room.encrypted", "sender": BOT, "event_id": "$answer"}
        event["content"] = self.bot.encrypt(ROOM, "m.room.message", {"body": "hello"})
        try:
            return self.machine.decrypt(ROOM, event)["content"]["body"]
        except private_olm.NoKey:
            return None


class Thief:
    """A stranger's device, with the Curve25519 key of another."""

    def __init__(self, of, name="COPY"):
        self.name, self.account = name, vodozemac.Account()
        keys = {f"ed25519:{name}": self.account.ed25519_key.to_base64(), f"curve25519:{name}": of}
        value = {"user_id": EVIL, "device_id": name, "algorithms": [], "keys": keys}
        self.devices = {name: signed(self.account, EVIL, name, value)}

    def claimed(self):
        self.account.generate_one_time_keys(1)
        [(key_id, key)] = self.account.one_time_keys.items()
        value = signed(self.account, EVIL, self.name, {"key": key.to_base64()})
        return {EVIL: {self.name: {f"signed_curve25519:{key_id}": value}}}


@pytest.fixture
def bot(tmp_path):
    machine = private_olm.OlmMachine(tmp_path, BOT, "DEV", "key")
    machine.announced = machine.new_keys(None)["device_keys"]
    machine.note_upload()
    yield machine
    machine.close()


@pytest.fixture
def owner(tmp_path, bot):
    (tmp_path / "owner").mkdir()
    client = Client(tmp_path / "owner", OWNER, bot)
    yield client
    client.machine.close()


def curve_of(client):
    return client.machine._olm.account.identity_keys["curve25519"]


def test_the_bots_own_device_takes_no_key(bot):
    """Its key is its own, which is no news; another device of the account with it is."""
    mine = {bot.device_id: bot.announced}
    with structlog.testing.capture_logs() as logs:
        bot.learn_devices(BOT, mine)
    assert logs == []
    thief = Thief(bot._olm.account.identity_keys["curve25519"])
    with structlog.testing.capture_logs() as logs:
        bot.learn_devices(EVIL, thief.devices)
    assert [each["event"] for each in logs] == ["matrix.device_key_taken"]


def test_who_writes_first_from_a_new_device_is_read_and_answered(bot, owner):
    """Although somebody else's device had that key before, and a session had been begun with it."""
    thief = Thief(curve_of(owner))
    bot.learn_devices(EVIL, thief.devices)
    assert [one.user_id for one in bot.devices_of([EVIL, OWNER])] == [EVIL]
    bot.start_sessions(thief.claimed())
    bot.learn_devices(OWNER, owner.devices)

    assert owner.writes() == "hi"
    assert bot.robbed == {OWNER}
    bot.learn_devices(OWNER, owner.devices)
    assert [one.user_id for one in bot.devices_of([EVIL, OWNER])] == [OWNER]
    assert owner.reads(EVIL) == "hello"


@pytest.mark.parametrize("proved", [True, False])
def test_what_somebody_has_is_not_taken_from_them(bot, owner, proved):
    """Neither by a device list, nor by a session that is to be repaired, nor by keys that nobody has asked for."""
    bot.learn_devices(OWNER, owner.devices)
    if proved:
        owner.writes()
    else:
        bot.start_sessions({OWNER: owner.claimed()})
    thief = Thief(curve_of(owner))
    bot.learn_devices(EVIL, thief.devices)
    garbage = {"algorithm": "m.olm.v1.curve25519-aes-sha2", "sender_key": curve_of(owner)}
    garbage["ciphertext"] = {bot._olm.account.identity_keys["curve25519"]: {"type": 1, "body": "AAAA"}}
    bot.receive([{"type": "m.room.encrypted", "sender": EVIL, "content": garbage}])
    assert bot.broken_devices() == []
    bot.start_sessions(thief.claimed())

    assert bot.devices_of([EVIL]) == set()
    assert owner.reads(EVIL) == "hello"


def test_before_a_device_was_learned_its_word_counts(bot, owner):
    """The owner has written from a device of which the bot has no list yet: a copy of it is none."""
    owner.writes()
    bot.learn_devices(EVIL, Thief(curve_of(owner)).devices)
    bot.learn_devices(OWNER, owner.devices)

    assert [one.user_id for one in bot.devices_of([EVIL, OWNER])] == [OWNER]


def test_a_device_of_ones_own_counts(bot, owner):
    """The control: other people have keys, too; nobody's is the bot's own."""
    crowd = Person(EVIL, 2)
    bot.learn_devices(OWNER, owner.devices)
    bot.learn_devices(EVIL, crowd.devices() | Thief(bot._olm.account.identity_keys["curve25519"]).devices)

    assert {one.device_id for one in bot.devices_of([EVIL])} == {"D0", "D1"}


def test_the_same_ciphertext_by_somebody_else_is_still_not_read(bot, owner):
    """That a key is its sender's does not make it anybody's."""
    owner.writes()
    content = owner.machine.encrypt(ROOM, "m.room.message", {"body": "mine"})
    event = {"type": "m.room.encrypted", "event_id": "$1", "content": content}
    with pytest.raises(ForeignKey):
        bot.decrypt(ROOM, {**event, "sender": EVIL})

    assert bot.decrypt(ROOM, {**event, "sender": OWNER})["content"]["body"] == "mine"


def test_a_device_that_a_list_has_left_out_once_is_there_again(bot, owner):
    """nio takes it for deleted for good."""
    bot.learn_devices(OWNER, owner.devices)
    bot.learn_devices(OWNER, {})
    assert bot.devices_of([OWNER]) == set()
    bot.learn_devices(OWNER, owner.devices)

    assert len(bot.devices_of([OWNER])) == 1


async def test_whose_key_was_taken_is_asked_for_again(bot, owner, tmp_path):
    """At once, so that they read the next answer."""
    people = {EVIL: Thief(curve_of(owner)).devices, OWNER: owner.devices}
    server = ScriptedHomeserver()
    server.on(
        "POST",
        "/keys/query",
        lambda one: HttpAnswer(
            200, {"device_keys": {name: people[name] for name in one.body["device_keys"]}}
        ),
    )
    clock: ChannelClock = ManualClock()
    crypto = EncryptionEngine(server, None, tmp_path, lambda _device: bot, clock)
    crypto._machine = bot
    server.credentials = type(server.credentials)(BOT, "DEV", "token")
    await crypto.learn_devices([EVIL])
    await crypto.learn_devices([OWNER])
    assert bot.devices_of([OWNER]) == set()
    owner.writes()
    crypto.receive({})
    await crypto.learn_devices([OWNER])

    assert len(bot.devices_of([OWNER])) == 1
