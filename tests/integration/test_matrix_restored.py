"""A homeserver that does not know the bot's position: brought back from a backup, or made anew."""

from __future__ import annotations

import shutil

from devservers import MatrixPeer, Synapse
from tests.integration.matrix_bot import Bot, call, joined_room


async def test_a_server_from_a_backup_loses_and_doubles_nothing_that_it_still_has(tmp_path):
    """
    Synapse forgets a day and goes on: what was answered is not asked again, what was said since is read.

    Its answer to a position from its own future is an empty one with an earlier position, so whoever
    believes it misses everything between the backup and the start.
    """
    with await call(Synapse.start, tmp_path / "hs") as server:
        alice = await call(MatrixPeer.of, server.url, await call(server.register, "alice", "alice-pw"))
        credentials = await call(server.register, "bot", "bot-pw")
        bot = Bot(credentials, server.url, tmp_path / "bot", allow_from=[alice.user_id])
        async with bot.up():
            room = await joined_room(alice, bot)
            await call(alice.send, room, "before the backup")
            await bot.inbox.until_accepted(1)
        await call(server.kill)
        files = list(server.folder.glob("homeserver.db*"))
        for path in files:
            shutil.copy(path, tmp_path / path.name)
        await call(server.restart)
        async with bot.up():
            for number in range(30):
                await call(alice.send, room, f"forgotten {number}")
            await bot.inbox.until_accepted(31)
        await call(server.kill)
        for path in server.folder.glob("homeserver.db*"):
            path.unlink()
        for path in files:
            shutil.copy(tmp_path / path.name, path)
        await call(server.restart)
        for number in range(5):
            await call(alice.send, room, f"since {number}")
        asked = len(bot.inbox.offered)
        async with bot.up():
            await bot.inbox.until_accepted(36)
            await call(alice.send, room, "and on")
            await bot.inbox.until_accepted(37)
            facts = {key: value for one in bot.inbox.facts for key, value in one.items()}

    assert bot.inbox.texts[31:] == [*(f"since {number}" for number in range(5)), "and on"]
    assert [message.text for message in bot.inbox.offered[asked:]] == bot.inbox.texts[31:]
    assert "backup" in facts["position_lost"]


async def test_a_position_that_is_refused_is_given_up(synapse, fresh_credentials, fresh_user, tmp_path):
    """A position that the server cannot read at all: the same, without the operator's help."""
    alice = await call(fresh_user, "alice")
    bot = Bot(fresh_credentials("bot"), synapse.url, tmp_path, allow_from=[alice.user_id])
    async with bot.up():
        room = await joined_room(alice, bot)
        await call(alice.send, room, "answered")
        await bot.inbox.until_accepted(1)
    bot.inbox.positions["next_batch"] = "from-another-server"
    await call(alice.send, room, "new")
    async with bot.up():
        await bot.inbox.until_accepted(2)

    assert [message.text for message in bot.inbox.offered] == ["answered", "new"]


async def test_without_the_age_of_what_was_read_old_messages_would_come_again(
    synapse, fresh_credentials, fresh_user, tmp_path
):
    """What the checks above look at: with nothing known of what was read, the whole timeline comes again."""
    alice = await call(fresh_user, "alice")
    bot = Bot(fresh_credentials("bot"), synapse.url, tmp_path, allow_from=[alice.user_id])
    async with bot.up():
        room = await joined_room(alice, bot)
        await call(alice.send, room, "answered")
        await bot.inbox.until_accepted(1)
    bot.inbox.positions |= {"next_batch": "from-another-server", "newest_ms": "1"}
    await call(alice.send, room, "new")
    async with bot.up():
        await bot.inbox.until_accepted(2)

    assert [message.text for message in bot.inbox.offered] == ["answered", "answered", "new"]
