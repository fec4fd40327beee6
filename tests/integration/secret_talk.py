"""People with encryption, a room of theirs with the bot, and what is said in it."""

from __future__ import annotations

import secrets
from contextlib import contextmanager

import anyio

from tests.integration.matrix_bot import bot_joined, call
from tests.integration.secret_peer import SecretPeer


@contextmanager
def secret_peers(synapse, fresh_credentials, folder):
    """Makes people with encryption, and closes what they have open."""
    made = []

    def make(credentials=None):
        own = folder / f"peer-{secrets.token_hex(4)}"
        made.append(SecretPeer(synapse.url, credentials or fresh_credentials("nia"), own))
        return made[-1]

    try:
        yield make
    finally:
        for peer in made:
            peer.close()


async def secret_room(nia, bot, version=None):
    room = nia.create_room(bot.user_id, version=version)
    await call(bot_joined, nia.peer, room, bot.user_id)
    return room


async def seen(nia, room, count, within_s=60):
    """What the bot has said, once it is that much."""
    with anyio.fail_after(within_s):
        while len(found := nia.read(room)) < count:
            await anyio.sleep(0.1)
    return found


GARBAGE = [
    {"algorithm": "m.olm.v1.curve25519-aes-sha2", "sender_key": "x", "ciphertext": "no object"},
    {"algorithm": "m.olm.v1.curve25519-aes-sha2"},
    {},
]


async def talks(bot, nia, room, text):
    """A question and its answer, both encrypted."""
    already, heard = len(bot.inbox.accepted), len(nia.read(room))
    nia.send(room, f"{text}?", to=bot.user_id)
    await bot.inbox.until_accepted(already + 1)
    await bot.test_channel.deliver(bot.message(room, f"{text}!"), uncertain=bot.mark)
    found = await seen(nia, room, heard + 1)
    assert bot.inbox.texts[-1] == f"{text}?"
    assert (found[-1][0], found[-1][1]["body"]) == ("m.room.encrypted", f"{text}!")
