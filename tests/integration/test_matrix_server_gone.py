"""
A homeserver that is ill, dies or ends tokens, seen in rooms of version 11 and 12, in clear and encrypted.

Each test has its faults once, and one bot that is in a room of each kind.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace

import anyio
import pytest

from channels.base import ChannelUnavailable, DeliveryUncertain, LinkState
from devservers import MatrixPeer, Synapse
from tests.integration.matrix_bot import Bot, call
from tests.integration.matrix_person import KINDS, Person, room_of_each_kind, room_of_kind
from tests.integration.proxy import Fault, FaultProxy, Relay
from tests.integration.secret_peer import SecretPeer


async def said_once(people, text):
    """Everybody has heard this, once, as that kind of room has it, and nothing else."""
    for person in people:
        assert [(wire, said) for wire, _, said in await person.until_heard(1)] == [(person.wire, text)]


async def test_a_storm_of_errors_is_sat_out(synapse, fresh_credentials, tmp_path):
    """M14: twelve seconds of 502 pages: fewer than ten requests, and a question in each room is taken afterwards."""
    nia = SecretPeer(synapse.url, fresh_credentials("nia"), tmp_path / "nia")
    async with FaultProxy.in_front_of(synapse.url) as proxy:
        bot = Bot(fresh_credentials("bot"), proxy.url, tmp_path / "bot", allow_from=[nia.user_id])
        async with bot.up() as channel:
            people = await room_of_each_kind(nia, bot.user_id)
            begun = time.monotonic()
            rule = proxy.add(r"/sync\?", Fault.STATUS, status=502)
            await people[0].say("wake up")  # ends the long poll
            await anyio.sleep(12)
            storm = proxy.count(r"/sync\?", since=begun)
            applied = rule.applied
            proxy.remove(rule)
            for person in people:
                await person.say("still there?")
            await bot.inbox.until_accepted(1 + len(people), within_s=60)
            await bot.inbox.until_up()
            for person in people:
                await channel.deliver(bot.message(person.room, "still here"), uncertain=bot.mark)
            assert not channel.test_run.ended.is_set()
        await said_once(people, "still here")
    nia.close()

    assert 1 <= applied
    assert storm < 10
    assert LinkState.DOWN in bot.inbox.states
    taken = {person.room: [] for person in people}
    for message in bot.inbox.accepted:
        taken[message.session.conversation].append(message.text)
    assert list(taken.values()) == [["wake up", "still there?"], *[["still there?"]] * (len(people) - 1)]


async def test_a_connection_on_which_nothing_comes_any_more(
    synapse, fresh_credentials, tmp_path, monkeypatch
):
    """
    Half-open TCP: the long poll and a send go nowhere, and nobody says so. Each ends by its own limit; what was asked
    meanwhile is taken, and what was being sent arrives once, in each room.
    """
    monkeypatch.setattr("channels.matrix.client.nio_homeserver.SYNC_SLACK_S", 5.0)
    nia = SecretPeer(synapse.url, fresh_credentials("nia"), tmp_path / "nia")

    async def impatient(config):
        """The real connection, with limits for which a test can wait."""
        from channels.matrix.client.nio_homeserver import NioHomeserver

        class Impatient(NioHomeserver):
            async def sync(self, request):
                return await super().sync(replace(request, wait_s=min(request.wait_s, 3.0)))

            async def request(self, method, path, body=None, **options):
                options["timeout_s"] = min(options.get("timeout_s", 30.0), 10.0)
                return await super().request(method, path, body, **options)

        return Impatient(config.homeserver, config.user_id)

    async with Relay.in_front_of(synapse.url) as relay:
        bot = Bot(
            fresh_credentials("bot"), relay.url, tmp_path / "bot", allow_from=[nia.user_id], connect=impatient
        )
        async with bot.up() as channel:
            people = await room_of_each_kind(nia, bot.user_id)
            answers = [bot.message(person.room, "patience") for person in people]
            relay.fall_silent()
            before = relay.connections
            for person in people:
                await person.say("are you there?")

            async def send(answer):
                while True:
                    try:
                        return await channel.deliver(answer, uncertain=bot.mark)
                    except (DeliveryUncertain, ChannelUnavailable):
                        await anyio.sleep(0.2)

            async with anyio.create_task_group() as group:
                for answer in answers:
                    group.start_soon(send, answer)
            await bot.inbox.until_accepted(len(people), within_s=60)
            assert not channel.test_run.ended.is_set()
        await said_once(people, "patience")
    nia.close()

    assert relay.connections > before
    assert bot.inbox.texts == ["are you there?"] * len(people)


async def test_soft_logout_keeps_the_device(tmp_path, capsys):
    """
    M17: a server whose tokens live for seconds: it goes on, on the same device with the same keys, and loses nothing.
    """
    lifetime = {"nonrefreshable_access_token_lifetime": "6s"}
    with await call(Synapse.start, tmp_path / "hs", overrides=lifetime) as server:
        nia = SecretPeer(server.url, await call(server.register, "nia", "nia-pw"), tmp_path / "nia")
        device = nia.peer.device_id

        async def again():
            """Her own token ends as well."""
            login = await call(MatrixPeer.login, server.url, nia.user_id, "nia-pw", device_id=device)
            nia.peer.access_token = login.access_token

        bot = Bot(
            await call(server.register, "bot", "bot-pw"),
            server.url,
            tmp_path / "bot",
            allow_from=[nia.user_id],
        )
        async with bot.up() as channel:
            session = json.loads((bot.folder / "session.json").read_text())
            people = []
            for version, encrypted in KINDS:
                await again()
                room = await room_of_kind(nia, bot.user_id, version, encrypted=encrypted)
                people.append(Person(nia, room, bot.user_id, encrypted=encrypted))
            await anyio.sleep(8)
            for person in people:
                await again()
                await person.say("hello")
            await bot.inbox.until_accepted(len(people), within_s=60)
            for person in people:
                await channel.deliver(bot.message(person.room, "hello back"), uncertain=bot.mark)
                await again()
                await said_once([person], "hello back")
        async with bot.up():
            renewed = json.loads((bot.folder / "session.json").read_text())
        nia.close()

    assert renewed["device_id"] == session["device_id"]
    assert renewed["access_token"] != session["access_token"]
    keys = re.findall(r"matrix.encryption_ready.*?fingerprint=(\S+)", capsys.readouterr().out)
    assert len(keys) >= 2
    assert len(set(keys)) == 1
    assert bot.inbox.texts == ["hello"] * len(KINDS)


async def test_a_homeserver_that_restarts(tmp_path):
    """M19: it dies under the long poll and comes back: what waits to be sent arrives once, questions too."""
    with await call(Synapse.start, tmp_path / "hs") as server:
        nia = SecretPeer(server.url, await call(server.register, "nia", "nia-pw"), tmp_path / "nia")
        credentials = await call(server.register, "bot", "bot-pw")
        bot = Bot(credentials, server.url, tmp_path / "bot", allow_from=[nia.user_id])
        async with bot.up() as channel:
            people = await room_of_each_kind(nia, bot.user_id)
            answers = [bot.message(person.room, "patience") for person in people]
            await call(server.kill)
            for answer in answers:
                with pytest.raises(ChannelUnavailable):
                    await channel.deliver(answer, uncertain=bot.mark)
            await bot.inbox.until(lambda inbox: inbox.state is LinkState.DOWN, within_s=30)
            await call(server.restart)
            for person in people:
                await person.say("are you back?")
            await bot.inbox.until_accepted(len(people), within_s=60)
            for answer in answers:
                await channel.deliver(answer, uncertain=bot.mark)
            assert not channel.test_run.ended.is_set()
        await said_once(people, "patience")
        nia.close()


async def test_a_homeserver_that_dies_in_the_middle_of_a_send(tmp_path):
    """M19: frozen with a request for each room on its way, and killed; repeated afterwards there is one event in each."""
    with await call(Synapse.start, tmp_path / "hs") as server:
        nia = SecretPeer(server.url, await call(server.register, "nia", "nia-pw"), tmp_path / "nia")
        credentials = await call(server.register, "bot", "bot-pw")
        bot = Bot(credentials, server.url, tmp_path / "bot", allow_from=[nia.user_id])
        async with bot.up() as channel:
            people = await room_of_each_kind(nia, bot.user_id)
            answers = [bot.message(person.room, "in the middle") for person in people]
            outcome, all_there = [], anyio.Event()

            async def freeze():
                """All of them stand at the point of no return; then the server does."""
                await bot.mark()
                if bot.marks == len(answers):
                    server.pause()
                    all_there.set()
                await all_there.wait()

            async def send(answer):
                try:
                    await channel.deliver(answer, uncertain=freeze)
                except (DeliveryUncertain, ChannelUnavailable) as error:
                    outcome.append(error)

            async with anyio.create_task_group() as group:
                for answer in answers:
                    group.start_soon(send, answer)
                with anyio.fail_after(60):
                    await all_there.wait()
                await anyio.sleep(0.3)
                await call(server.kill)
            assert len(outcome) == len(answers)
            await call(server.restart)
            for answer in answers:
                await channel.deliver(answer, uncertain=bot.mark)
            for person in people:
                await person.say("are you back?")
            await bot.inbox.until_accepted(len(people), within_s=60)
        await said_once(people, "in the middle")
        nia.close()
