"""A store of keys that is lost, old or garbled, and devices that were logged out: a new one that people can talk to."""

from __future__ import annotations

import shutil

import anyio
import pytest

from channels.base import ChannelAuthFailed, ChannelMisconfigured
from devservers import MatrixPeer
from tests.integration.matrix_bot import call
from tests.integration.secret_talk import secret_room, talks


def revoke_all(synapse, bot):
    """Every session of the bot ends, as by "log out everywhere"."""
    MatrixPeer.login(synapse.url, bot.user_id, bot.credentials.password).call("POST", "/logout/all", {})


@pytest.mark.parametrize(
    ("how", "version"),
    [("lost", "11"), ("lost", "12"), ("older", "11"), ("older", "12"), ("unreadable", "12")],
)
async def test_a_store_that_is_of_no_use_is_replaced(make_bot, nia, how, version, capsys):
    """
    Deleted, restored from an older copy or garbled: a new signed device takes over, once, and is understood; the
    operator is told once (M20).
    """
    bot = make_bot(allow_from=[nia.user_id])
    async with bot.up():
        room = await secret_room(nia, bot, version)
    [store] = bot.folder.glob("crypto-*.db")
    copy = shutil.copy(store, bot.folder / "copy")
    async with bot.up() as bot.test_channel:
        await talks(bot, nia, room, "before")
        [before] = nia.devices_of(bot.user_id)
    match how:
        case "lost":
            store.unlink()
        case "older":
            shutil.move(copy, store)
        case "unreadable":
            (bot.folder / "pickle_key").write_text("another one")
    for _ in range(2):
        async with bot.up() as bot.test_channel:
            await talks(bot, nia, room, "after")
            devices = nia.devices_of(bot.user_id)

    assert len(devices) == 1  # the old one was deleted, and the second start made no further one
    assert devices != {before}
    assert bot.inbox.facts[-1]["encryption"] == "signed"
    assert capsys.readouterr().out.count("matrix.device_abandoned") == 1


async def test_an_older_copy_would_be_deaf(make_bot, nia):
    """What the check above prevents: with the older copy taken for good, what is said is not understood."""
    bot = make_bot(allow_from=[nia.user_id])
    async with bot.up():
        room = await secret_room(nia, bot)
    [store] = bot.folder.glob("crypto-*.db")
    copy = shutil.copy(store, bot.folder / "copy")
    async with bot.up() as bot.test_channel:
        await talks(bot, nia, room, "before")
    shutil.move(copy, store)
    del bot.inbox.positions["crypto"]
    async with bot.up() as bot.test_channel:
        nia.send(room, "after?", to=bot.user_id)
        await bot.inbox.until(lambda inbox: inbox.facts[-1].get("waiting_for_keys") == 1)

    assert bot.inbox.texts == ["before?"]


async def test_all_sessions_revoked_while_running(make_bot, nia, synapse):
    """After "log out everywhere" the bot comes back as a new signed device and goes on (M16)."""
    bot = make_bot(allow_from=[nia.user_id])
    async with bot.up() as bot.test_channel:
        room = await secret_room(nia, bot)
        await talks(bot, nia, room, "before")
        [before] = nia.devices_of(bot.user_id)
        await call(revoke_all, synapse, bot)
        with anyio.fail_after(60):
            while not (devices := nia.devices_of(bot.user_id)) or devices == {before}:
                await anyio.sleep(0.1)
        await talks(bot, nia, room, "after")

    assert bot.inbox.facts[-1]["encryption"] == "signed"


async def test_a_revoked_token_without_a_password_ends_it(make_bot, nia, synapse):
    """With a configured token only there is nothing to log in with: it ends with a plain reason (M16)."""
    bot = make_bot(allow_from=[nia.user_id])
    given = {
        "password": None,
        "access_token": bot.credentials.access_token,
        "device_id": bot.credentials.device_id,
    }
    async with bot.up(**given) as channel:
        await call(revoke_all, synapse, bot)
        with anyio.fail_after(60):
            await channel.test_run.ended.wait()

    assert isinstance(channel.test_run.error, ChannelAuthFailed)


async def test_a_lost_store_of_a_given_token_is_explained(make_bot, nia):
    """With a token only, no new device can be made: the operator is told what to do."""
    bot = make_bot(allow_from=[nia.user_id])
    given = {
        "password": None,
        "access_token": bot.credentials.access_token,
        "device_id": bot.credentials.device_id,
    }
    async with bot.up(**given):
        pass
    next(bot.folder.glob("crypto-*.db")).unlink()
    with pytest.raises(ChannelMisconfigured, match="new access_token"):
        async with bot.up(**given):
            pass
