"""`KeyStore`: what is kept for how long, and how little of it is in memory."""

from __future__ import annotations

import gc
import sqlite3

import pytest
import vodozemac
from nio.crypto import InboundGroupSession

from channels.matrix.crypto.key_types import NotReadable
from channels.matrix.crypto.olm_machine import OlmMachine
from channels.matrix.crypto.olm_store import MAX_OF_A_DEVICE, UNUSED_DAYS, KeyStore
from tests.unit.channels.matrix.test_olm_machine import ROOM, Pair


@pytest.fixture
def store(tmp_path):
    made = KeyStore(tmp_path, "@bot:hs.test", "BOT", "key")
    made.folder = tmp_path
    yield made
    made.close()


def key(room=ROOM, device="a", group=None, index=None):
    """A room key of a device, perhaps one that reads only from ``index`` on."""
    group = group or vodozemac.GroupSession()
    session = InboundGroupSession(group.session_key.to_base64(), "f" * 43, device * 43, room)
    if index is not None:
        exported = session.export_session(index)
        session = InboundGroupSession.import_session(exported, "f" * 43, device * 43, room)
    return session


def add(store, *sessions):
    with store.changing():
        return [store.room_keys.add(session) for session in sessions]


def has(store, session, room=ROOM):
    return bool(store.room_keys.keys_of(room, session.id))


def live(store, days, **known):
    """So many days of running; ``known`` is what the store is told each day."""
    for _ in range(days):
        store.number = getattr(store, "number", 0) + 1
        store.upkeep(str(store.number), **{"waiting": [], "rooms": [ROOM], **known})


def test_a_superseded_key_goes_when_nobody_has_used_it_for_long(store):
    """Not a day earlier; and the newest of a device stays, however long nothing is said."""
    old, new = key(), key()
    add(store, old, new)
    live(store, UNUSED_DAYS)
    assert has(store, old)
    live(store, 400)

    assert not has(store, old)
    assert has(store, new)


def test_the_key_of_a_message_that_waits_stays(store):
    """Whatever its age: with it the message would become unreadable for good."""
    old = key()
    add(store, old, key())
    live(store, 400, waiting=[old.id])
    assert has(store, old)
    live(store, 1)

    assert not has(store, old)


def test_a_key_that_is_used_stays(store):
    """Reading a message counts from then on anew."""
    old = key()
    add(store, old, key())
    live(store, UNUSED_DAYS)
    store.room_keys.mark_used(old.id)
    live(store, UNUSED_DAYS)
    assert has(store, old)
    live(store, 2)

    assert not has(store, old)


def test_keys_of_rooms_that_were_left_go_too(store):
    """In a room that the bot is in, the newest key of each device stays; elsewhere no key stays for ever."""
    here, gone = key(), key("!gone:hs.test", "b")
    add(store, here, gone)
    live(store, UNUSED_DAYS + 2)

    assert has(store, here)
    assert not has(store, gone, "!gone:hs.test")


def test_a_clock_that_jumps_ages_nothing(store):
    """Only days on which the bot runs count: a wrong date, or years of them, is one day."""
    old = key()
    add(store, old, key())
    for date in ("2026-11-20", "2036-11-20", "1999-01-01", "2036-11-20"):
        store.upkeep(date, waiting=[], rooms=[ROOM])

    assert has(store, old)
    assert store.room_keys.day == 4


def test_one_device_cannot_fill_the_disk(store):
    """A flood of keys for made-up rooms pushes out the flooder's own, and nobody else's."""
    alices = key(device="b")
    add(store, alices)
    group = key()
    pickled = group.pickle("key")
    rows = [
        (f"!{number}:x", f"session {number}", "a" * 43, "f" * 43, pickled, 0)
        for number in range(MAX_OF_A_DEVICE + 500)
    ]
    with store.changing():
        for row in rows:
            store._database.execute_sql("INSERT INTO squidbot_room_keys VALUES (?, ?, ?, ?, ?, ?)", row)
    live(store, 1)

    assert len(store.room_keys) == MAX_OF_A_DEVICE + 1
    assert has(store, alices)


def test_ten_thousand_keys_are_not_in_memory(store):
    """2,000 rooms with five keys each: every one can be read, and a few hundred are objects at a time."""
    sample = key()
    pickled = sample.pickle("key")
    with store.changing():
        for number in range(10_000):
            row = (f"!{number % 2000}:x", f"session {number}", "a" * 43, "f" * 43, pickled, 0)
            store._database.execute_sql("INSERT INTO squidbot_room_keys VALUES (?, ?, ?, ?, ?, ?)", row)
    del sample
    for number in range(10_000):
        assert store.room_keys.keys_of(f"!{number % 2000}:x", f"session {number}")
    gc.collect()
    alive = sum(1 for one in gc.get_objects() if isinstance(one, InboundGroupSession))

    assert 0 < alive <= 600
    assert len(store.room_keys) == 10_000


def test_what_reads_less_never_replaces_what_reads_more(store):
    """The same key from a later point, sent again, changes nothing; from an earlier point it does."""
    group = vodozemac.GroupSession()
    assert add(store, key(group=group, index=3)) == [True]
    assert add(store, key(group=group, index=5), key(group=group, index=3)) == [False, False]
    assert add(store, key(group=group)) == [True]
    [kept] = store.room_keys.keys_of(ROOM, group.session_id)

    assert kept.first_known_index == 0


def test_a_key_that_another_has_sent_again_spoils_nothing(tmp_path):
    """Somebody in the room sends Alice's key as theirs: hers is still read as hers, theirs as nobody's."""
    pair = Pair(tmp_path)
    mallory = Pair.open(tmp_path, "mallory")
    Pair.introduce(pair.bot, mallory)
    event = pair.key_event()
    session = pair.alice._olm.outbound_group_sessions[ROOM]
    copied = InboundGroupSession(
        session.session_key, mallory.ed25519, mallory._olm.account.identity_keys["curve25519"], ROOM
    )
    with pair.bot.changing():
        pair.bot.room_keys.add(copied)
    assert pair.bot.receive([event]) == 1
    said = pair.say("it is me")

    assert pair.bot.decrypt(ROOM, said)["content"]["body"] == "it is me"
    with pytest.raises(NotReadable):
        pair.bot.decrypt(ROOM, {**said, "sender": "@carol:hs.test", "event_id": "$x"})
    mallory.close()
    pair.close()


def test_an_earlier_store_is_taken_over(tmp_path):
    """Keys that nio itself has kept are found after an update, once."""
    pair = Pair(tmp_path)
    pair.bot.receive([pair.key_event()])
    said = pair.say("from before")
    pair.bot.close()
    with sqlite3.connect(pair.bot.path) as file:
        file.execute(
            "INSERT INTO megolminboundsessions (sender_key, account_id, fp_key, room_id, session, session_id)"
            " SELECT sender_key, 1, fp_key, room_id, session, session_id FROM squidbot_room_keys"
        )
        file.execute("DROP TABLE squidbot_room_keys")
    file.close()
    pair.bot = OlmMachine(tmp_path, pair.bot.user_id, pair.bot.device_id, "key")

    assert pair.bot.decrypt(ROOM, said)["content"]["body"] == "from before"
    pair.close()


def test_a_transaction_that_failed_leaves_nothing_in_memory(store):
    """What was undone on disk is not read from memory."""
    session = key()
    with pytest.raises(KeyboardInterrupt), store.changing():
        store.room_keys.add(session)
        assert has(store, session)
        raise KeyboardInterrupt

    assert not has(store, session)


def test_sessions_between_devices_are_few(tmp_path):
    """A device that begins anew again and again has a handful of sessions; the newest works."""
    pair = Pair(tmp_path)
    keys = iter(pair.bot.upload["one_time_keys"].items())
    [device] = pair.alice.devices_of([pair.bot.user_id])
    for _ in range(20):
        key_id, value = next(keys)
        pair.alice.start_sessions({pair.bot.user_id: {pair.bot.device_id: {key_id: value}}})
    before = len(pair.alice._olm.session_store[device.curve25519])
    pair.alice.upkeep("1", waiting=[], rooms=[])

    assert before == 20
    assert len(pair.alice._olm.session_store[device.curve25519]) == 8
    assert pair.bot.receive([pair.key_event()]) == 1
    pair.close()
