"""The disk of the crypto store is full: nothing is taken that could not be kept, and nothing is lost or doubled."""

from __future__ import annotations

import os
import subprocess

import pytest

from channels.base import LinkState
from tests.integration.matrix_bot import Bot, bot_joined, call
from tests.integration.secret_peer import SecretPeer

SIZE = 2_000_000


@pytest.fixture
def small_disk(tmp_path):
    """A disk of two megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=0700", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("only root may mount a small disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk):
    """Take the last byte."""
    with (disk / "filler").open("wb", buffering=0) as file:
        for size in (100_000, 4096, 512, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass
    assert os.statvfs(disk).f_bavail == 0


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
        (small_disk / "filler").unlink()
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
