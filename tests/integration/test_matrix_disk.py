"""The disk of the crypto store is full: nothing is taken that could not be kept, and nothing is lost or doubled."""

from __future__ import annotations

from channels.base import LinkState
from tests.home_damage import fill
from tests.integration.matrix_bot import Bot, bot_joined, call
from tests.integration.secret_peer import SecretPeer


async def test_a_full_disk_under_the_crypto_store(synapse, fresh_credentials, tmp_path, small_disk):
    """A key that cannot be kept is not taken; with room again the message is read, once, and answered readably."""
    nia = SecretPeer(synapse.url, fresh_credentials("nia"), tmp_path / "nia")
    bot = Bot(fresh_credentials("bot"), synapse.url, small_disk / "state", allow_from=[nia.user_id])
    async with bot.up() as channel:
        room = nia.create_room(bot.user_id)
        await call(bot_joined, nia.peer, room, bot.user_id)
        nia.send(room, "before", to=bot.user_id)
        await bot.inbox.until_accepted(1)
        fill(small_disk)
        device = bot.inbox.facts[-1]["device"]
        # A new key has to be kept for this one.
        nia.machine._olm.outbound_group_sessions[room].message_count = 100
        nia.send(room, "while full", to=bot.user_id)
        await bot.inbox.until(
            lambda inbox: inbox.state is LinkState.DOWN or channel.test_run.ended.is_set(), within_s=30
        )
        assert bot.inbox.texts == ["before"]
        assert (
            any("cannot be" in detail for detail in bot.inbox.details) or channel.test_run.error is not None
        )
        (small_disk / "ballast").unlink()
        if not channel.test_run.ended.is_set():
            await bot.inbox.until_accepted(2, within_s=60)
    async with bot.up() as channel:
        await bot.inbox.until_accepted(2, within_s=60)
        await channel.deliver(bot.message(room, "an answer"), uncertain=bot.mark)
        [(wire, content)] = nia.read(room)
        facts = bot.inbox.facts[-1]
    nia.close()

    assert bot.inbox.texts == ["before", "while full"]
    assert (wire, content["body"]) == ("m.room.encrypted", "an answer")
    assert facts["device"] == device  # it was no reason to give the device up
    assert facts["encryption"] == "signed"
