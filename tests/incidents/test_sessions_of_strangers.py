"""
Any account of any homeserver can begin encrypted sessions with the bot, as many as it likes. All were kept, in memory
and on the disk, for at least a day; each cost a write of the account, which is the longer the more one-time keys were
asked for and never used; of whatever made no sense an empty place was kept for ever, and so was each device that a
homeserver had ever named.
"""

from __future__ import annotations

import base64
import json
from importlib import import_module

import pytest
import vodozemac
from hypothesis import given
from hypothesis import strategies as some

from channels.matrix.crypto.cross_signing import Identities
from channels.matrix.crypto.key_types import excess_items
from tests.incidents.test_thousands_of_devices import BOT, OWNER, ROOM, Person, private_olm, signed

private_identities = import_module("channels.matrix.crypto.cross_signing")
private_store = import_module("channels.matrix.crypto.olm_store")
EVIL = "@evil:evil.test"


@pytest.fixture
def bot(tmp_path):
    machine = private_olm.OlmMachine(tmp_path, BOT, "DEV", "key")
    yield machine
    machine.close()


class Writer:
    """A device that sends room keys; each in a session of its own, or all in one."""

    def __init__(self, user_id, bot):
        self.user_id, self.bot, self.account = user_id, bot, vodozemac.Account()
        self.ours = bot._olm.account.identity_keys
        self.session = None

    def begin(self):
        body = self.bot.new_keys(0)
        self.bot.note_upload()
        key = next(iter(body["one_time_keys"].values()))["key"]
        theirs = [vodozemac.Curve25519PublicKey.from_base64(one) for one in (self.ours["curve25519"], key)]
        self.session = self.account.create_outbound_session(*theirs)
        return self

    def key(self, group=None):
        group = group or vodozemac.GroupSession()
        content = {"algorithm": "m.megolm.v1.aes-sha2", "room_id": ROOM, "session_id": group.session_id}
        inner = {
            "sender": self.user_id,
            "sender_device": "X",
            "keys": {"ed25519": self.account.ed25519_key.to_base64()},
            "recipient": BOT,
            "recipient_keys": {"ed25519": self.ours["ed25519"]},
            "type": "m.room_key",
            "content": content | {"session_key": group.session_key.to_base64()},
        }
        kind, body = self.session.encrypt(json.dumps(inner).encode()).to_parts()
        ciphertext = {
            self.ours["curve25519"]: {"type": kind, "body": base64.b64encode(body).decode().rstrip("=")}
        }
        covered = {
            "algorithm": "m.olm.v1.curve25519-aes-sha2",
            "sender_key": self.curve,
            "ciphertext": ciphertext,
        }
        return {"type": "m.room.encrypted", "sender": self.user_id, "content": covered}

    @property
    def curve(self):
        return self.account.curve25519_key.to_base64()

    @property
    def devices(self):
        keys = {"ed25519:X": self.account.ed25519_key.to_base64(), "curve25519:X": self.curve}
        value = {"user_id": self.user_id, "device_id": "X", "algorithms": [], "keys": keys}
        return {"X": signed(self.account, self.user_id, "X", value)}


def kept(bot):
    """Curve25519 keys with which there are sessions, in memory and on the disk."""
    in_memory = {key for key, found in bot._olm.session_store.items() if found}
    rows = bot._database.execute_sql("SELECT DISTINCT sender_key FROM olmsessions").fetchall()
    assert {key for (key,) in rows} == in_memory
    return in_memory


def test_strangers_sessions_give_way_to_nobody_elses(bot, monkeypatch):
    """To neither those of a known device, nor those of a device that is still to be learned, of another server."""
    monkeypatch.setattr(private_store, "MAX_UNKNOWN", 20)
    known, new = Writer(OWNER, bot).begin(), Writer("@friend:hs.test", bot).begin()
    bot.learn_devices(OWNER, known.devices)
    bot.receive([known.key(), new.key()])
    crowd = [Writer(f"@evil{number}:evil.test", bot) for number in range(60)]
    for writer in crowd:
        bot.receive([writer.begin().key()])

    assert len(kept(bot)) <= 22
    assert {known.curve, new.curve, crowd[-1].curve} <= kept(bot)
    assert bot.receive([known.key(), new.key()]) == 2


def test_one_device_keeps_a_few_sessions(bot):
    """At any time, not only until the next day: each message is tried with all of them."""
    writer = Writer(EVIL, bot)
    for _ in range(20):
        bot.receive([writer.begin().key()])
    found = bot._olm.session_store[writer.curve]

    assert 1 < len(found) <= 8
    assert bot.receive([writer.key()]) == 1


def test_of_what_makes_no_sense_nothing_is_kept(bot):
    """Whoever it is from, and whatever key it names."""
    before = len(bot._olm.session_store._entries), len(bot._olm.device_store._entries)
    event = Writer(EVIL, bot).begin().key()
    [body] = event["content"]["ciphertext"].values()
    body["body"] = body["body"][::-1]
    for number in range(50):
        event["sender"] = f"@evil{number}:evil.test"
        event["content"]["sender_key"] = vodozemac.Account().curve25519_key.to_base64()
        assert bot.receive([event]) == 0

    assert (len(bot._olm.session_store._entries), len(bot._olm.device_store._entries)) == before


def test_the_account_is_written_once_for_all_that_came(bot, tmp_path, monkeypatch):
    """And is as it should be when it is opened again."""
    writers = [Writer(f"@person{number}:hs.test", bot).begin() for number in range(10)]
    saves = []
    save = bot._olm.store.save_account
    monkeypatch.setattr(
        bot._olm.store, "save_account", lambda account: [saves.append(account), save(account)]
    )
    assert bot.receive([one.key() for one in writers]) == 10
    assert len(saves) == 1
    assert bot.receive([one.key() for one in writers]) == 10
    assert len(saves) == 1
    bot.close()

    again = private_olm.OlmMachine(tmp_path, BOT, "DEV", "key")
    assert again.receive([one.key() for one in writers]) == 10
    again.close()


def test_room_keys_are_bounded(bot, monkeypatch):
    """Of whoever has most the oldest goes; somebody with one keeps it."""
    monkeypatch.setattr(private_store, "MAX_KEYS", 30)
    monkeypatch.setattr(private_store, "_COUNT_AFTER", 5)
    owner, group = Writer(OWNER, bot).begin(), vodozemac.GroupSession()
    bot.receive([owner.key(group)])
    evil = Writer(EVIL, bot).begin()
    for _ in range(20):
        bot.receive([evil.key() for _ in range(5)])

    assert len(bot.room_keys) <= 30 + 5
    assert bot.has_key(ROOM, group.session_id)


items = some.lists(some.sampled_from(["@a:x", "@b:x", "@c:y", "@d:z", "@e:z"]), max_size=40)


@given(items, some.integers(0, 45))
def test_shares_are_fair(people, at_most):
    """No more than there is room for; who has less than an equal share gives nothing away."""
    numbered = list(enumerate(people))
    gone = excess_items(numbered, at_most)
    left = [one for one in numbered if one not in gone]

    assert len(left) <= at_most or len(people) <= at_most
    servers = {name[-1] for name in people}
    for server in servers:
        of = [one for one in numbered if one[1][-1] == server]
        if len(of) * len(servers) <= at_most:
            assert [one for one in left if one[1][-1] == server] == of
    for one in gone:
        assert not any(other[1] == one[1] and other[0] < one[0] for other in left)


def test_devices_that_come_and_go_leave_nothing(bot, tmp_path, monkeypatch):
    """A list names other devices each time, with long names: what it names now is kept, without the names."""
    monkeypatch.setattr(private_store, "MAX_UNKNOWN", 10)
    owner = Person(OWNER, 1)
    bot.learn_devices(OWNER, owner.devices())
    for _ in range(6):
        crowd = Person(EVIL, 5)
        named = {
            name: {**one, "unsigned": {"device_display_name": "x" * 9999}}
            for name, one in crowd.devices().items()
        }
        bot.learn_devices(EVIL, named)
        bot.start_sessions({EVIL: crowd.claimed(named)})
        assert len(bot.devices_of([EVIL])) == 5
        assert bot.strangers(bot.devices_of([EVIL])) == []

    devices = list(bot._olm.device_store)
    assert len(devices) == 6
    assert not any(device.display_name for device in devices)
    assert len(kept(bot)) <= 5 + 10
    for table, rows in (("devicekeys", 6), ("keys", 12)):
        assert bot._database.execute_sql(f"SELECT COUNT(*) FROM {table}").fetchone() == (rows,)
    bot.close()
    again = private_olm.OlmMachine(tmp_path, BOT, "DEV", "key")
    assert len(again.devices_of([EVIL, OWNER])) == 6
    again.close()


async def test_a_crowd_does_not_make_the_owners_devices_unsigned(tmp_path, monkeypatch):
    """With ``trust_devices: signed`` the owner would not be read any more."""
    monkeypatch.setattr(private_identities, "_MOST", 5)
    identities = Identities(tmp_path, lambda *_: True)

    async def learn(user_id):
        keys = {"keys": {"ed25519:M": "M"}, "user_id": user_id, "signatures": {user_id: {"ed25519:M": "s"}}}
        own = {user_id: keys}
        answer = {"device_keys": {user_id: {"X": keys}}, "master_keys": own, "self_signing_keys": own}
        await identities.learn(user_id, answer, ["X"])

    await learn(OWNER)
    for number in range(20):
        await learn(f"@evil{number}:evil.test")

    assert identities.is_signed(OWNER, "X")
    assert identities.is_signed("@evil19:evil.test", "X")
    assert not identities.is_signed("@evil0:evil.test", "X")
