"""
What must hold in rooms of version 11 and 12, in clear and encrypted, and depends on the server: absences longer
than a timeline, connections that are cut, long answers, lost logins.

One room of each kind goes through all of it, because each start costs seconds. Details have tests of their own.
"""

from __future__ import annotations

import re

import anyio
import pytest

from channels.base import DeliveryUncertain
from devservers import MatrixPeer
from tests.integration.matrix_bot import Bot, call
from tests.integration.matrix_person import KINDS, Person, room_of_kind
from tests.integration.proxy import Fault, FaultProxy
from tests.integration.secret_peer import SecretPeer

AWAY = 60
"""How many messages of an absence: more than a timeline holds."""
CODE = "\n".join(f"print({number})  # <{'y' * 50}>" for number in range(700))
ROWS = "\n".join(f"| {number} | {'x' * 60} & more |" for number in range(700))
LONG = f"Intro\n\n| a | b |\n| --- | --- |\n{ROWS}\n\n```python\n{CODE}\n```\n\n" + "Some words. " * 8000


@pytest.mark.parametrize(("version", "encrypted"), KINDS)
async def test_in_every_kind_of_room(synapse, fresh_credentials, tmp_path, version, encrypted):
    """M9, M15, M16, M26 and M30: nothing lost, doubled or in clear, whatever the room is."""
    secret = SecretPeer(synapse.url, fresh_credentials("nia"), tmp_path / "nia")
    async with FaultProxy.in_front_of(synapse.url) as proxy:
        bot = Bot(fresh_credentials("bot"), proxy.url, tmp_path / "bot", allow_from=[secret.user_id])
        async with bot.up() as channel:
            room = await room_of_kind(secret, bot.user_id, version, encrypted=encrypted)
            person = Person(secret, room, bot.user_id, encrypted=encrypted)
            await person.say("first")
            await bot.inbox.until_accepted(1)
            await is_cut_off_and_said_once(bot, channel, proxy, person)
            await is_long_and_whole(bot, channel, person)
            device = bot.inbox.facts[-1]["device"]

        # M9b: more than a timeline holds, each once and in order
        texts = [f"while away {number}" for number in range(AWAY)]
        for text in texts:
            await person.say(text)
        async with bot.up() as channel:
            await bot.inbox.until_accepted(1 + AWAY, within_s=60)
            # M16: every session ends while it runs; it goes on as a new device
            everywhere = await call(MatrixPeer.login, synapse.url, bot.user_id, bot.credentials.password)
            await call(everywhere.call, "POST", "/logout/all", {})
            await bot.inbox.until(
                lambda inbox: inbox.facts[-1].get("device") not in (None, device), within_s=60
            )
            await person.say("still there?")
            await bot.inbox.until_accepted(2 + AWAY, within_s=60)
            await channel.deliver(bot.message(room, "still here"), uncertain=bot.mark)
            # What an earlier device has said cannot be judged any more by a peer that has forgotten it.
            with anyio.fail_after(60):
                while (said := await call(secret.read, room))[-1][1]["body"] != "still here":
                    await anyio.sleep(0.1)

    secret.close()
    assert bot.inbox.texts == ["first", *texts, "still there?"]
    assert {kind for kind, _ in said} == {"m.room.encrypted" if encrypted else "m.room.message"}


async def is_cut_off_and_said_once(bot, channel, proxy, person):
    """M15: the connection ends after the server has accepted, three times: one event."""
    answer = bot.message(person.room, "exactly once")
    rule = proxy.add(r"/send/m\.room\.(message|encrypted)/", Fault.CUT_AFTER)
    for _ in range(3):
        with pytest.raises(DeliveryUncertain):
            await channel.deliver(answer, uncertain=bot.mark)
    assert rule.applied >= 3
    proxy.remove(rule)
    await channel.deliver(answer, uncertain=bot.mark)
    assert [text for _, _, text in await person.until_heard(1)] == ["exactly once"]


async def is_long_and_whole(bot, channel, person):
    """M26: several events, none refused as too large, none cut open, all there and in order."""
    await channel.deliver(bot.message(person.room, LONG), uncertain=bot.mark)
    with anyio.fail_after(60):
        while "Some words." not in (said := await person.heard())[-1][2] or len(said) < 5:
            await anyio.sleep(0.2)
    bodies = [text for _, _, text in said[1:]]
    assert all(body.count("```") % 2 == 0 for body in bodies)
    numbers = [int(found) for body in bodies for found in re.findall(r"print\((\d+)\)", body)]
    assert numbers == list(range(700))
    rows = [int(found) for body in bodies for found in re.findall(r"^\| (\d+) \|", body, re.MULTILINE)]
    assert rows == list(range(700))
    words = sum(body.count("Some words.") for body in bodies)
    assert words == 8000
