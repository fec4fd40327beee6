"""Emoji verification with an operator who looks: at the bot's side a person compares, too."""

from __future__ import annotations

import os
import subprocess
import sys

import anyio
import pytest

from channels.base import ChannelError
from channels.matrix.config import MatrixConfig
from tests.daemon import REPOSITORY, Daemon, matrix_settings
from tests.integration.secret_peer import SecretPeer
from tests.integration.test_matrix_element import account, asked, person, secret_room  # noqa: F401


async def emoji_shown(care):
    with anyio.fail_after(60):
        while (state := await care.verification())["stage"] != "emoji":
            await anyio.sleep(0.05)
    return state


class Later:
    """What somebody's client does meanwhile, and what came of it."""

    def __init__(self, group, work):
        self.outcome = None
        self.error = None
        group.start_soon(self._do, work)

    async def _do(self, work):
        try:
            self.outcome = await work()
        except Exception as error:
            self.error = error


@pytest.mark.parametrize("who", ["the person", "the operator"])
async def test_the_operator_has_the_last_word(make_bot, person, account, who):  # noqa: F811
    """Begun by either side: nothing is confirmed before the operator has said yes, then both trust each other."""
    bot = make_bot(allow_from=[account.user_id])
    async with bot.up() as channel, person(account) as uma, anyio.create_task_group() as group:
        await uma.do("bootstrap", password=account.password)
        room = await secret_room(uma, bot)
        await asked(uma, bot, room)
        care = channel.admin
        if who == "the person":
            await care.verify()
            client = Later(group, lambda: uma.do("verify", user=bot.user_id, room=room))
        else:
            client = Later(group, lambda: uma.do("asked", user=bot.user_id))
            await care.verify(account.user_id)
        shown = await emoji_shown(care)
        await anyio.sleep(1)
        assert client.outcome is None
        assert not await uma.do("trust", user=bot.user_id)
        assert await care.confirm_emoji(account.user_id, same=True)
        with anyio.fail_after(60):
            while client.outcome is None and client.error is None:
                await anyio.sleep(0.05)
            while not await uma.do("trust", user=bot.user_id):
                await anyio.sleep(0.1)
        after = await care.verification()
        devices = await care.devices(account.user_id)

    assert client.error is None
    assert client.outcome["emoji"] == shown["emoji"]
    assert after["stage"] == "done"
    assert [(one["signed"], one["verified"]) for one in devices] == [(True, True)]


async def test_different_emoji_verify_nobody(make_bot, person, account):  # noqa: F811
    """The operator says no: the person's client is told so, and neither side trusts the other."""
    bot = make_bot(allow_from=[account.user_id])
    async with bot.up() as channel, person(account) as uma, anyio.create_task_group() as group:
        await uma.do("bootstrap", password=account.password)
        room = await secret_room(uma, bot)
        await asked(uma, bot, room)
        await channel.admin.verify()
        client = Later(group, lambda: uma.do("verify", user=bot.user_id, room=room))
        await emoji_shown(channel.admin)
        await channel.admin.confirm_emoji(account.user_id, same=False)
        with anyio.fail_after(60):
            while client.error is None:
                assert client.outcome is None
                await anyio.sleep(0.05)
        trusted = await uma.do("trust", user=bot.user_id)
        [device] = await channel.admin.devices(account.user_id)

    assert not trusted
    assert not device["verified"]


async def test_devices_and_another_device(make_bot, synapse, fresh_credentials, tmp_path):
    """The bot's own device is signed; reset, another signed one has taken its place and reads on."""
    nia = SecretPeer(synapse.url, fresh_credentials("nia"), tmp_path / "nia")
    bot = make_bot(allow_from=[nia.user_id])
    async with bot.up() as channel:
        [before] = await channel.admin.devices()
        [unsigned] = await channel.admin.devices(nia.user_id)
        room = nia.create_room(bot.user_id)
        await bot.inbox.until(lambda inbox: inbox.facts[-1].get("rooms") == 1)
        new = await channel.admin.reset_device()
        [after] = await channel.admin.devices()
        nia.send(room, "still there?", to=bot.user_id)
        await bot.inbox.until_accepted(1)
        with pytest.raises(ChannelError, match="may not talk"):
            await channel.admin.verify("@stranger:hs.test")
    nia.close()

    assert (before["signed"], before["this"]) == (True, True)
    assert (unsigned["signed"], unsigned["verified"]) == (False, False)
    assert (after["signed"], after["this"], after["device"]) == (True, True, new)
    assert after["device"] != before["device"]


@pytest.mark.parametrize("devices", ["all", "signed"])
async def test_unsigned_devices_by_setting(make_bot, synapse, fresh_credentials, tmp_path, devices):
    """
    With `trust_devices: all` everybody's devices count. Otherwise an unsigned one is not heard: there is a notice,
    and its client is told why it cannot read it.
    """
    nia, told = SecretPeer(synapse.url, fresh_credentials("nia"), tmp_path / "nia"), []
    receive = nia.machine.receive
    nia.machine.receive = lambda events: (told.extend(events), receive(events))[1]
    bot = make_bot(allow_from=[nia.user_id], trust_devices=devices)
    async with bot.up() as channel:
        room = nia.create_room(bot.user_id)
        await bot.inbox.until(lambda inbox: inbox.facts[-1].get("rooms") == 1)
        nia.send(room, "hello", to=bot.user_id)
        if devices == "all":
            await bot.inbox.until_accepted(1)
        else:
            await bot.inbox.until(lambda inbox: inbox.facts[-1].get("waiting_for_keys") == 1)
            with anyio.fail_after(30):
                while not await anyio.to_thread.run_sync(nia.encrypted_by, room, bot.user_id):
                    await anyio.sleep(0.1)
        await channel.deliver(bot.message(room, "an answer"), uncertain=bot.mark)
        wire, content = nia.read(room)[-1]
        said = nia.encrypted_by(room, bot.user_id)
    nia.close()

    assert MatrixConfig.model_fields["trust_devices"].default == "signed"
    refused = [one["content"] for one in told if one["type"] == "m.room_key.withheld"]
    assert len(said) == (1 if devices == "all" else 2)
    assert [(one["code"], one["room_id"]) for one in refused] == [("m.unverified", room)] * (
        devices == "signed"
    )

    assert bot.inbox.texts == (["hello"] if devices == "all" else [])
    assert wire == "m.room.encrypted"
    assert (content["body"] == "an answer") is (devices == "all")


async def test_what_an_unsigned_device_said_is_read_once_it_is_signed(make_bot, person, account):  # noqa: F811
    """The person verifies the session that the notice is about, and need not say it again."""
    bot = make_bot(allow_from=[account.user_id], trust_devices="signed")
    async with bot.up(), person(account) as uma:
        room = await secret_room(uma, bot)
        await uma.do("send", room=room, text="hello")
        await bot.inbox.until(lambda inbox: inbox.facts[-1].get("waiting_for_keys") == 1)
        assert bot.inbox.texts == []
        await uma.do("bootstrap", password=account.password)
        await bot.inbox.until_accepted(1)

    assert bot.inbox.texts == ["hello"]


async def test_signed_devices_are_heard_and_answered(make_bot, person, account):  # noqa: F811
    """The strict setting takes nothing from a person whose devices are signed."""
    bot = make_bot(allow_from=[account.user_id], trust_devices="signed")
    async with bot.up() as channel, person(account) as uma:
        await uma.do("bootstrap", password=account.password)
        room = await secret_room(uma, bot)
        await asked(uma, bot, room)
        await channel.deliver(bot.message(room, "an answer"), uncertain=bot.mark)
        answer = await uma.answer("an answer")

    assert not answer["unreadable"]


def test_the_commands(synapse, fresh_credentials, tmp_path):
    """`squidbot matrix devices`, `reset-device` and `verify` speak with the running daemon, in plain words."""
    nia, bot = fresh_credentials("nia"), fresh_credentials("bot")
    given = matrix_settings(synapse, bot.user_id, bot.password, nia.user_id)
    settings = {"agents": {"heartbeat": {"enabled": False}}, "channels": {"matrix": given}}
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "deploy")])
    with Daemon(tmp_path / "home", settings) as daemon:

        def said(*words):
            command = [sys.executable, "-m", "gateway", "matrix", *words, "--home", str(daemon.home)]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL, timeout=50,
            )  # fmt: skip
            return done.returncode, done.stdout + done.stderr

        daemon.up()
        before = said("devices")
        refused = said("reset-device")
        reset = said("reset-device", "--yes")
        after = said("devices")
        stranger = said("verify", "--user", "@stranger:hs.test")
        alone = said("verify", "--wait", "1")

    assert (before[0], reset[0], after[0]) == (0, 0, 0)
    assert "signed by its owner, this one" in before[1]
    assert "NOT" not in before[1] + after[1]
    assert refused[0] == 1
    assert before[1].split()[1] != after[1].split()[1]
    assert after[1].split()[1] in reset[1]
    assert stranger[0] == 75
    assert "may not talk" in stranger[1]
    assert alone[0] == 1
    assert "begin in your client" in alone[1]
