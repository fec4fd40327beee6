"""
Somebody in an encrypted room who has no keys took an old message of another, word for word as it was encrypted, and
sent it as their own, as an answer to the bot. Where the bot did not know the device that had made its key (it was new,
or nothing had been sent to the room yet) and had been restarted since, it read the words of the one as the other's
question, and answered about them.
"""

from __future__ import annotations

import pytest

from channels.matrix.crypto.key_types import NoKey, NotReadable
from tests.unit.channels.matrix.test_olm_machine import ROOM, Pair


class Strangers(Pair):
    """The bot has never asked for Alice's devices."""

    def __init__(self, tmp_path):
        self.alice = self.open(tmp_path, "alice")
        self.bot = self.open(tmp_path, "bot")
        self.numbers = iter(range(1000))
        self.introduce(self.alice, self.bot)


@pytest.fixture
def pair(tmp_path):
    made = Strangers(tmp_path)
    yield made
    made.close()


def restarted(pair, tmp_path):
    upload = pair.bot.upload
    pair.bot.close()
    pair.bot = Pair.open(tmp_path, "bot")
    pair.bot.upload = upload


@pytest.mark.parametrize("adopted", [False, True])
def test_nobody_has_the_bot_read_what_another_has_encrypted(pair, tmp_path, adopted):
    """The key is Alice's whether her device is known or not, after a restart and on the bot's next device."""
    pair.bot.receive([pair.key_event()])
    event = pair.say("the code is 1234")
    restarted(pair, tmp_path)
    if adopted:
        old, pair.bot = pair.bot, Pair.open(tmp_path, "other")
        pair.bot.adopt(old)
        old.close()
    again = {**event, "event_id": "$again", "sender": "@mallory:hs.test"}

    with pytest.raises(NotReadable, match="sender_mismatched"):
        pair.bot.decrypt(ROOM, again)
    assert pair.bot.decrypt(ROOM, event)["content"]["body"] == "the code is 1234"


def test_who_has_sent_a_key_is_forgotten_with_it(pair):
    """Nothing piles up."""
    pair.bot.receive([pair.key_event()])
    pair.bot._database.execute_sql("DELETE FROM squidbot_room_keys")
    pair.bot.upkeep("today", waiting=(), rooms=())

    assert pair.bot._database.execute_sql("SELECT COUNT(*) FROM squidbot_key_owners").fetchone() == (0,)


def test_a_key_that_another_has_passed_on_does_not_spend_the_message(pair):
    """Mallory, who is in the room, sends Alice's key before her: Alice's message waits for hers."""
    from_alice = pair.key_event()
    event = pair.say("the code is 1234")
    pair.bot.receive([from_alice])
    pair.bot._database.execute_sql("UPDATE squidbot_key_owners SET user_id = '@mallory:hs.test'")
    pair.bot._database.execute_sql("UPDATE squidbot_room_keys SET sender_key = 'of mallory'")
    pair.bot._database.execute_sql("UPDATE squidbot_key_owners SET sender_key = 'of mallory'")
    pair.bot.room_keys.forget()

    with pytest.raises(NoKey):
        pair.bot.decrypt(ROOM, event)
