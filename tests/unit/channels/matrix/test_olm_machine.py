"""`Machine`: what of nio's parts for encryption is different here, each with the reason why."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from peewee import OperationalError

from channels.matrix.crypto.key_types import NoKey, NotReadable, StoreBroken
from channels.matrix.crypto.olm_machine import OlmMachine
from tests.open_files import opened

ROOM = "!room:hs.test"


class Pair:
    """Two machines and what a server would pass between them."""

    def __init__(self, tmp_path):
        self.alice = self.open(tmp_path, "alice")
        self.bot = self.open(tmp_path, "bot")
        self.numbers = iter(range(1000))
        self.introduce(self.alice, self.bot)
        self.introduce(self.bot, self.alice)

    @staticmethod
    def open(tmp_path, name):
        machine = OlmMachine(tmp_path, f"@{name}:hs.test", name.upper(), "key")
        machine.upload = machine.new_keys(None)
        machine.note_upload()
        return machine

    @staticmethod
    def introduce(one, other):
        one.learn_devices(other.user_id, {other.device_id: other.upload["device_keys"]})

    def meet(self):
        key_id, key = next(iter(self.bot.upload["one_time_keys"].items()))
        self.alice.start_sessions({self.bot.user_id: {self.bot.device_id: {key_id: key}}})

    def key_event(self):
        """The to-device event with which alice gives her room key to the bot."""
        [device] = self.alice.devices_of([self.bot.user_id])
        if self.alice.strangers([device]):
            self.meet()
        [body] = self.alice.room_key_for(ROOM, {device}).values()
        self.alice.note_key_delivery(ROOM, [device])
        return {"type": "m.room.encrypted", "sender": self.alice.user_id, "content": body}

    def say(self, text, **content):
        covered = self.alice.encrypt(ROOM, "m.room.message", {"msgtype": "m.text", "body": text, **content})
        return {
            "type": "m.room.encrypted",
            "sender": self.alice.user_id,
            "event_id": f"$event{next(self.numbers)}",
            "origin_server_ts": 1,
            "content": covered,
        }

    def close(self):
        self.alice.close()
        self.bot.close()


@pytest.fixture
def pair(tmp_path):
    made = Pair(tmp_path)
    yield made
    made.close()


def test_devices_that_come_again_are_not_written_again(pair):
    """The same list costs no transaction; any other one does, also one that was known before."""
    [(device_id, device)] = {pair.alice.device_id: pair.alice.upload["device_keys"]}.items()
    named = device | {"unsigned": {"device_display_name": "laptop"}}
    generations = [pair.bot.generation]
    for devices in ({device_id: device}, {device_id: named}, {device_id: dict(named)}, {}, {}):
        pair.bot.learn_devices(pair.alice.user_id, devices)
        generations.append(pair.bot.generation)

    assert [after - before for before, after in pairwise(generations)] == [0, 1, 0, 1, 0]
    assert not pair.bot.devices_of([pair.alice.user_id])


def test_devices_that_could_not_be_written_are_learned_when_they_come_again(pair, monkeypatch):
    """What was undone does not count as learned."""
    devices = {"OTHER": {}}
    monkeypatch.setattr(pair.bot._olm, "_handle_key_query", _refused)
    with pytest.raises(OSError, match="cannot be written"):
        pair.bot.learn_devices(pair.alice.user_id, devices)
    monkeypatch.undo()
    before = pair.bot.generation
    pair.bot.learn_devices(pair.alice.user_id, devices)

    assert pair.bot.generation == before + 1


def test_devices_that_are_nested_too_deeply_keep_nobody_from_learning_the_others(pair, tmp_path):
    """Anybody's server can name them."""
    deep = []
    for _ in range(100_000):
        deep = [deep]
    carol = pair.open(tmp_path, "carol")
    pair.bot.learn_devices(carol.user_id, {"CAROL": carol.upload["device_keys"], "DEEP": {"keys": deep}})
    carol.close()

    assert [one.device_id for one in pair.bot.devices_of([carol.user_id])] == ["CAROL"]


def _refused(_):
    raise OperationalError("disk I/O error")


def test_what_was_encrypted_can_be_read(pair):
    """A message becomes what it was; what relates it to others travels outside and is put back."""
    pair.bot.receive([pair.key_event()])
    event = pair.say("hello", **{"m.relates_to": {"rel_type": "m.thread", "event_id": "$root"}})
    clear = pair.bot.decrypt(ROOM, event)

    assert clear["type"] == "m.room.message"
    assert clear["content"]["body"] == "hello"
    assert clear["content"]["m.relates_to"]["event_id"] == "$root"
    assert "hello" not in json.dumps(event)
    assert event["content"]["m.relates_to"]["event_id"] == "$root"


def test_events_without_the_senders_key_are_read(pair):
    """``sender_key`` and ``device_id`` are deprecated and may be missing; nio makes a bad event of those."""
    pair.bot.receive([pair.key_event()])
    event = pair.say("hello")
    del event["content"]["sender_key"], event["content"]["device_id"]

    assert pair.bot.decrypt(ROOM, event)["content"]["body"] == "hello"


def test_without_its_key_a_message_is_not_lost_but_waits(pair):
    """A missing key is told apart from what can never be read."""
    kept = pair.key_event()
    event = pair.say("hello")
    with pytest.raises(NoKey) as missing:
        pair.bot.decrypt(ROOM, event)
    assert not pair.bot.has_key(ROOM, missing.value.session_id)
    assert pair.bot.receive([kept]) == 1

    assert pair.bot.decrypt(ROOM, event)["content"]["body"] == "hello"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"algorithm": "m.other"}, "algorithm"),
        ({"session_id": 5}, "malformed"),
        ({"ciphertext": None}, "malformed"),
        ({"ciphertext": "!!!"}, "DecodeException"),
    ],
)
def test_what_can_never_be_read_says_why(pair, change, reason):
    """Malformed events give a reason, whatever is in them."""
    pair.bot.receive([pair.key_event()])
    event = pair.say("hello")
    event["content"] |= change
    with pytest.raises(NotReadable, match=reason):
        pair.bot.decrypt(ROOM, event)


def test_a_message_in_another_room_is_not_read(pair):
    """The room is inside what is encrypted: a server cannot move words to where they were not said."""
    pair.bot.receive([pair.key_event()])
    event = pair.say("yes, do that")
    pair.bot._database.execute_sql("UPDATE squidbot_room_keys SET room_id = '!other:hs.test'")
    pair.bot.room_keys.forget()
    with pytest.raises(NotReadable, match="room_mismatched"):
        pair.bot.decrypt("!other:hs.test", event)


def test_a_message_under_somebody_elses_name_is_not_read(pair):
    """A key belongs to whose device sent it: the same words with another sender are refused."""
    pair.bot.receive([pair.key_event()])
    event = {**pair.say("I am the owner"), "sender": "@owner:hs.test"}
    with pytest.raises(NotReadable, match="sender_mismatched"):
        pair.bot.decrypt(ROOM, event)


def test_a_repeated_ciphertext_is_not_read_twice(pair):
    """The same event may come again; the same ciphertext as another event may not."""
    pair.bot.receive([pair.key_event()])
    event = pair.say("pay")
    for _ in range(2):
        assert pair.bot.decrypt(ROOM, event)["content"]["body"] == "pay"
    with pytest.raises(NotReadable, match="replayed"):
        pair.bot.decrypt(ROOM, {**event, "event_id": "$another"})


GARBAGE = [
    {"type": "m.room.encrypted"},
    {"type": "m.room.encrypted", "sender": 5, "content": []},
    {
        "type": "m.room.encrypted",
        "sender": "@x:hs.test",
        "content": {"algorithm": "m.olm.v1.curve25519-aes-sha2"},
    },
]


def test_garbage_takes_nothing_along(pair):
    """Malformed to-device events are counted; the key between them arrives (B19)."""
    curve = pair.bot._olm.account.identity_keys["curve25519"]
    garbage = [
        {
            "type": "m.room.encrypted",
            "sender": "@stranger:hs.test",
            "content": {
                "algorithm": "m.olm.v1.curve25519-aes-sha2",
                "sender_key": "A" * 43,
                "ciphertext": {curve: {"type": kind, "body": body}},
            },
        }
        for kind, body in [(0, "!!!"), (0, "AAAA"), (1, "AAAA")]
    ]
    with pytest.raises(Exception):  # noqa: B017 - what plain nio does, whatever it is called
        from nio.events import OlmEvent

        pair.bot._olm.handle_to_device_event(OlmEvent.from_dict(garbage[0]))

    assert pair.bot.receive([*GARBAGE, *garbage[:2], pair.key_event(), garbage[2]]) == 1
    assert pair.bot.undigested >= 2


def test_one_answer_is_one_transaction(pair, tmp_path):
    """Killed while an answer is digested, everything of it comes again: no one-time key is used up for nothing."""
    kept = pair.key_event()
    before = pair.bot.generation
    with pytest.raises(KeyboardInterrupt), pair.bot.changing():
        pair.bot.receive([kept])
        raise KeyboardInterrupt
    pair.bot.close()
    again = OlmMachine(tmp_path, pair.bot.user_id, pair.bot.device_id, "key")
    pair.bot = again

    assert again.generation == before
    assert again.receive([kept]) == 1


def test_keys_and_generation_survive_a_restart(pair, tmp_path):
    """What was received is there after a restart, and the generation only grows."""
    pair.bot.receive([pair.key_event()])
    event = pair.say("hello")
    before, fingerprint = pair.bot.generation, pair.bot.ed25519
    pair.bot.close()
    pair.bot = OlmMachine(tmp_path, pair.bot.user_id, pair.bot.device_id, "key")

    assert pair.bot.generation == before > 0
    assert (pair.bot.ed25519, pair.bot.shared) == (fingerprint, True)
    assert pair.bot.decrypt(ROOM, event)["content"]["body"] == "hello"
    assert pair.bot.path.stat().st_mode & 0o777 == 0o600


def test_a_store_with_another_key_is_lost_not_replaced(pair, tmp_path):
    """A store that cannot be decrypted is reported as such."""
    pair.bot.close()
    with pytest.raises(StoreBroken):
        OlmMachine(tmp_path, pair.bot.user_id, pair.bot.device_id, "wrong")
    pair.bot.path.write_bytes(b"no database at all" * 500)
    with pytest.raises(StoreBroken):
        OlmMachine(tmp_path, pair.bot.user_id, pair.bot.device_id, "key")
    assert not opened(pair.bot.path)


def test_one_time_keys_are_refilled_from_none(pair):
    """A server with none left gets a full set (nio takes 0 for "no news", B18); with enough, nothing is uploaded."""
    assert pair.bot.new_keys(None) is None
    assert pair.bot.new_keys(40) is None
    body = pair.bot.new_keys(0)
    pair.bot.note_upload()

    assert len(body["one_time_keys"]) == 50
    assert "device_keys" not in body


def test_new_one_time_keys_are_saved_before_they_are_uploaded(pair, tmp_path):
    """Killed between upload and answer, the keys on the server are still ours to use."""
    body = pair.bot.new_keys(0)
    pair.bot.close()
    pair.bot = OlmMachine(tmp_path, pair.bot.user_id, pair.bot.device_id, "key")
    pair.bot.upload = {"one_time_keys": body["one_time_keys"]}
    pair.introduce(pair.bot, pair.alice)

    assert pair.bot.receive([pair.key_event()]) == 1


def test_who_is_gone_gets_no_further_key(pair):
    """The room's key is given once per device; when a device is gone, there is another key."""
    first = pair.key_event()
    [device] = pair.alice.devices_of([pair.bot.user_id])
    assert pair.alice.room_key_for(ROOM, {device}) == {}
    session = pair.say("one")["content"]["session_id"]
    assert pair.alice.room_key_for(ROOM, set()) == {}

    assert pair.say("two")["content"]["session_id"] != session
    assert first is not None


def test_a_malformed_device_does_not_hide_the_others(pair):
    """One device that is none is left out; the account's others are learnt."""
    good = pair.bot.upload["device_keys"]
    pair.alice.learn_devices(
        pair.bot.user_id,
        {"BAD": {"keys": 5}, "WORSE": {**good, "keys": {"ed25519:WORSE": "x"}}, pair.bot.device_id: good},
    )

    assert {device.device_id for device in pair.alice.devices_of([pair.bot.user_id])} == {"BOT"}


def test_a_new_device_takes_over_the_room_keys(pair, tmp_path):
    """What was said to the device before stays readable."""
    pair.bot.receive([pair.key_event()])
    event = pair.say("hello")
    new = OlmMachine(tmp_path, pair.bot.user_id, "NEW", "key")
    new.learn_devices(pair.alice.user_id, {"ALICE": pair.alice.upload["device_keys"]})
    with pytest.raises(NoKey):
        new.decrypt(ROOM, event)
    new.adopt(pair.bot)

    assert new.decrypt(ROOM, event)["content"]["body"] == "hello"
    new.close()
