"""
What concerns a whole account, seen in rooms of version 11 and 12, in clear and encrypted: one bot is in all of them.

Strangers' invitations, poison and drained keys; a bot that cannot encrypt; which of two rooms is the private one;
a server that wants pauses.
"""

from __future__ import annotations

import json
import secrets
from urllib.parse import quote

import anyio
import pytest

from agent_core.messages import Audience
from channels.base import ChannelUnavailable, DeliveryFailed
from devservers import MatrixPeer
from devservers.rest import request_json
from tests.integration.matrix_bot import Bot, call
from tests.integration.matrix_person import KINDS, Person, room_of_each_kind, room_of_kind
from tests.integration.matrix_talk import STREAMING, answer_to, stream
from tests.integration.secret_talk import GARBAGE

MEGOLM = {"algorithm": "m.megolm.v1.aes-sha2"}


@pytest.fixture
def make_bot(synapse, fresh_credentials, tmp_path):
    def make(*friends, **settings):
        settings = {"allow_from": [friend.user_id for friend in friends], **settings}
        return Bot(fresh_credentials("bot"), synapse.url, tmp_path / secrets.token_hex(4), **settings)

    return make


async def answer_each(bot, channel, people, text):
    """The bot says something in each room; it must arrive there as that kind of room has it."""
    for person in people:
        before = len(await person.heard())
        await channel.deliver(bot.message(person.room, text), uncertain=bot.mark)
        wire, _, heard = (await person.until_heard(before + 1))[-1]
        assert (wire, heard) == (person.wire, text)


async def test_invitations_of_strangers_are_refused(make_bot, make_peer):
    """M8: whatever room it is: three of one person wait for the owner, the next are declined, nothing is said."""
    bot, mallory = make_bot(), make_peer()
    rooms = []
    async with bot.up():
        for number, (version, encrypted) in enumerate(KINDS):
            direct = number % 2 == 0
            room = await call(mallory.peer.create_room, [bot.user_id], is_direct=direct, room_version=version)
            if encrypted:
                path = f"/rooms/{quote(room)}/state/m.room.encryption/"
                await call(mallory.peer.call, "PUT", path, MEGOLM)
            rooms.append(room)
        await bot.inbox.until(lambda inbox: len(json.loads(inbox.positions.get("invites", "[]"))) == 3)
        with anyio.fail_after(60):
            while sorted([await membership(mallory, room, bot) for room in rooms]) != [
                *["invite"] * 3,
                "leave",
            ]:
                await anyio.sleep(0.05)
        said = [
            event["type"]
            for room in rooms
            for event in (await call(mallory.peer.call, "GET", f"/rooms/{quote(room)}/messages?dir=b"))[
                "chunk"
            ]
            if event["sender"] == bot.user_id
        ]

    assert said == ["m.room.member"]  # that it does not come
    assert set(bot.inbox.texts) == {"(invites me into a room)"}


async def membership(person, room, bot):
    state = f"/rooms/{quote(room)}/state/m.room.member/{quote(bot.user_id)}"
    return (await call(person.peer.call, "GET", state))["membership"]


async def test_poison_and_drained_keys_cost_no_question(make_bot, make_peer, synapse, fresh_credentials):
    """
    M11 and M12: a stranger's garbage and all one-time keys taken while the bot is away. What was said meanwhile is
    read in each room, and so is what a new device says there, which reads the answers too.
    """
    account = fresh_credentials("nia")
    nia, stranger = make_peer(account), make_peer()
    bot = make_bot(nia)
    async with bot.up() as channel:
        people = await room_of_each_kind(nia, bot.user_id)
        for person in people:
            await person.say("hello")
        await bot.inbox.until_accepted(len(people))
        await answer_each(bot, channel, people, "hello yourself")
    [device] = stranger.devices_of(bot.user_id)
    for kind, body in [(0, "!!!"), (0, "AAAA"), (1, "AAAA"), (1, "*"), (7, "AAAA"), ("x", 5)]:
        ciphertext = {device.curve25519: {"type": kind, "body": body}}
        content = {"algorithm": GARBAGE[0]["algorithm"], "sender_key": "A" * 43, "ciphertext": ciphertext}
        stranger.to_device("m.room.encrypted", bot.user_id, device.device_id, content)
    for content in GARBAGE:
        stranger.to_device("m.room.encrypted", bot.user_id, device.device_id, content)
    taken = 0
    while stranger.claim([device]).get(bot.user_id):
        taken += 1
    for person in people:
        await person.say("are you there?")
    new = make_peer(await call(MatrixPeer.login, synapse.url, nia.user_id, account.password))
    assert new.claim([device]) == {}  # nobody could begin a session now
    async with bot.up() as channel:
        await bot.inbox.until_accepted(2 * len(people))
        with anyio.fail_after(60):
            while not (claimed := new.claim([device])).get(bot.user_id):
                await anyio.sleep(0.1)
        new.devices_of(bot.user_id)
        new.machine.start_sessions(claimed)
        moved = [Person(new, one.room, bot.user_id, encrypted=one.encrypted) for one in people]
        for person in moved:
            await person.say("and here?")
        await bot.inbox.until_accepted(3 * len(people))
        for person in moved:
            await channel.deliver(bot.message(person.room, "yes"), uncertain=bot.mark)
            with anyio.fail_after(60):
                while "yes" not in (heard := await readable(person)):
                    await anyio.sleep(0.1)
            assert heard == (["yes"] if person.encrypted else ["hello yourself", "yes"])

    assert taken >= 40
    assert sorted(bot.inbox.texts) == sorted(["hello", "are you there?", "and here?"] * len(people))


async def readable(person):
    """What a device can read of what the bot has said; what was said before it was there it cannot."""
    found = await call(person.secret.read, person.room)
    return [content["body"] for wire, content in found if wire == person.wire and "<" not in content["body"]]


async def test_without_encryption_nothing_is_said_where_it_would_be_read(make_bot, make_peer):
    """M21: a bot that cannot encrypt refuses in the encrypted rooms, for good and in plain words; in others it speaks."""
    nia = make_peer()
    bot = make_bot(nia)
    async with bot.up():
        people = await room_of_each_kind(nia, bot.user_id)
    messages = {person.room: bot.message(person.room, "secret") for person in people}
    async with bot.up(encryption=False) as channel:
        for person in people:
            message = messages[person.room]
            if person.encrypted:
                with pytest.raises(DeliveryFailed, match="encryption is not available"):
                    await channel.deliver(message, uncertain=bot.mark)
            else:
                await channel.deliver(message, uncertain=bot.mark)
        for person in people:
            assert len(await person.heard()) == (not person.encrypted)
    async with bot.up() as channel:
        for person in people:
            await channel.deliver(messages[person.room], uncertain=bot.mark)
            [(wire, _, text)] = await person.until_heard(1)
            assert (wire, text) == (person.wire, "secret")


async def test_two_rooms_with_the_same_two_people(make_bot, make_peer):
    """M24: only the one that is called direct is private, also after a restart; the other is a group of its own."""
    nia = make_peer()
    bot = make_bot(nia)
    async with bot.up():
        private = await room_of_each_kind(nia, bot.user_id)
        shared = await room_of_each_kind(nia, bot.user_id, direct=False)
        for person in (*private, *shared):
            await person.say("before")
        await bot.inbox.until_accepted(2 * len(KINDS))
    for person in (*private, *shared):
        await person.say("after")
    async with bot.up():
        await bot.inbox.until_accepted(4 * len(KINDS))

    found = {room: set() for room in (one.room for one in (*private, *shared))}
    for message in bot.inbox.accepted:
        found[message.session.conversation].add(message.audience)
    assert {room: found[room] for room in (one.room for one in private)} == {
        one.room: {Audience.DIRECT} for one in private
    }
    assert {room: found[room] for room in (one.room for one in shared)} == {
        one.room: {Audience.GROUP} for one in shared
    }
    assert len({message.session for message in bot.inbox.accepted}) == 2 * len(KINDS)


async def test_a_server_that_asks_for_pauses_gets_them(make_bot, make_peer, synapse):
    """
    With one message a second and no more, the stream slows down and the whole answer is still there soon: in a room of
    each kind, each with a bot of its own, all at the same time (M18).

    However slow this machine is: before the bot says something, its account says so much elsewhere that the server
    refuses more, until the bot was refused once.
    """
    nia = make_peer()
    admin = await call(synapse.register, f"admin-{secrets.token_hex(4)}", "pw", admin=True)
    body = {"messages_per_second": 1, "burst_count": 2}
    found = {}

    async def one(version, encrypted):
        bot = make_bot(nia, streaming={**STREAMING, "max_edits": 30})
        path = f"{synapse.url}/_synapse/admin/v1/users/{bot.user_id}/override_ratelimit"
        await call(request_json, "POST", path, body, token=admin.access_token)
        async with bot.up() as channel:
            whole, refused = channel._homeserver.request, []

            made = await whole("POST", "/_matrix/client/v3/createRoom", {})
            elsewhere = f"/_matrix/client/v3/rooms/{quote(made.body['room_id'])}/send/m.room.message/"

            async def use_up():
                answers = []

                async def say():
                    content = {"msgtype": "m.text", "body": "x"}
                    answers.append((await whole("PUT", elsewhere + secrets.token_hex(8), content)).status)

                with anyio.fail_after(60):
                    while 429 not in answers:
                        async with anyio.create_task_group() as tasks:
                            for _ in range(4):
                                tasks.start_soon(say)

            async def request(method, path, *args, **options):
                if "/send/" in path and not refused:
                    await use_up()
                answer = await whole(method, path, *args, **options)
                if answer.status == 429 and "/send/" in path:
                    refused.append(path)
                return answer

            channel._homeserver.request = request
            async with alone:  # what a person's client does is one thing after the other
                room = await room_of_kind(nia, bot.user_id, version, encrypted=encrypted)
                person = Person(nia, room, bot.user_id, encrypted=encrypted)
                await person.say("Count!")
            [question] = await bot.inbox.until_accepted(1)
            text = await stream(channel, question, [str(number) for number in range(100)])
            waited_s = 0.0
            while True:
                try:
                    await channel.deliver(answer_to(bot, question, text), uncertain=bot.mark)
                    break
                except ChannelUnavailable as error:
                    waited_s += error.retry_after_s
                    await anyio.sleep(error.retry_after_s)
            async with alone:
                found[version, encrypted] = waited_s, len(refused), text, person, await person.heard()

    alone = anyio.Lock()
    async with anyio.create_task_group() as group:
        for version, encrypted in KINDS:
            group.start_soon(one, version, encrypted)

    assert len(found) == len(KINDS)
    for waited_s, refused, text, person, heard in found.values():
        (first_wire, first_relation, _), *edits = heard
        assert {wire for wire, _, _ in heard} == {first_wire} == {person.wire}
        assert "rel_type" not in first_relation
        assert {relation["rel_type"] for _, relation, _ in edits} == {"m.replace"}
        assert heard[-1][2].removeprefix("* ") == text
        assert waited_s < 10
        assert 1 <= refused <= 8
        assert 3 <= len(heard) <= 9


async def test_a_key_that_never_comes_is_told_once(make_bot, make_peer):
    """M22: one notice that says why, encrypted, however many messages it is about, over a restart too."""
    nia = make_peer()
    bot = make_bot(nia)
    async with bot.up():
        people = [one for one in await room_of_each_kind(nia, bot.user_id) if one.encrypted]
        for person in people:
            for number in range(3):
                await call(nia.send, person.room, f"message {number}", to=bot.user_id, give_key=False)
        told = [(await person.until_heard(1))[0] for person in people]
    async with bot.up():
        await bot.inbox.until(lambda inbox: inbox.facts[-1].get("waiting_for_keys") == 6)
        await anyio.sleep(4)  # a second notice would come now
        counts = [len(await person.heard()) for person in people]

    assert len(people) == 2
    assert {wire for wire, _, _ in told} == {"m.room.encrypted"}
    assert all("the key has not arrived" in text for _, _, text in told)
    assert counts == [1, 1]
    assert bot.inbox.accepted == []
