"""Rooms that change under the bot, on a real Synapse: kicked out, left, replaced by another."""

from __future__ import annotations

import json
from urllib.parse import quote

import anyio
import pytest

from agent_core.messages import Audience, SessionKey
from channels.matrix.events.matrix_threads import SHARED
from devservers import MatrixPeer
from devservers.errors import RequestFailed
from tests.integration.matrix_bot import bodies, bot_joined, call, joined_room
from tests.integration.secret_peer import SecretPeer


async def upgrade(user, room, version="12"):
    """What a client does: the server makes the room, and invites nobody."""
    answer = await call(user.call, "POST", f"/rooms/{quote(room)}/upgrade", {"new_version": version})
    return answer["replacement_room"]


# ── leaving ──
@pytest.mark.parametrize("how", ["kick", "ban"])
@pytest.mark.parametrize("version", ["11", "12"])
async def test_who_is_put_out_gives_up_what_waits(make_bot, alice, how, version):
    """Kicked or banned while running: what waits or runs in the room is to be given up, at once (M29)."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up() as channel:
        # Not as a direct one: in those both have the same power, and nobody can be put out.
        room = await joined_room(alice, bot, version=version, direct=False)
        await call(alice.send, room, "a long task, please")
        await bot.inbox.until_accepted(1)
        assert await channel.is_in(SessionKey("matrix", room))
        await call(alice.call, "POST", f"/rooms/{quote(room)}/{how}", {"user_id": bot.user_id})
        await bot.inbox.until(lambda inbox: inbox.amendments)
        assert not await channel.is_in(SessionKey("matrix", room))

    [amendment] = bot.inbox.amendments
    assert (amendment.kind, amendment.session) == ("leave", SessionKey("matrix", room))


async def test_who_was_put_out_while_away_gives_it_up_too(make_bot, alice):
    """The same when it happened while the bot was down."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up():
        room = await joined_room(alice, bot, direct=False)
    await call(alice.call, "POST", f"/rooms/{quote(room)}/kick", {"user_id": bot.user_id})
    async with bot.up():
        await bot.inbox.until(lambda inbox: inbox.amendments)

    assert [amendment.session.conversation for amendment in bot.inbox.amendments] == [room]


@pytest.mark.smoke
async def test_a_room_that_everybody_has_left_is_left_by_the_bot_too(make_bot, alice, fresh_user):
    """As soon as nobody else is there, and not while somebody still is; what waits there is given up."""
    bot = make_bot(allow_from=[alice.user_id])
    other = await call(fresh_user, "other")
    async with bot.up() as channel:
        room = await joined_room(alice, bot, direct=False)
        await call(alice.call, "POST", f"/rooms/{quote(room)}/invite", {"user_id": other.user_id})
        await call(other.call, "POST", f"/join/{quote(room)}", {})
        await call(alice.call, "POST", f"/rooms/{quote(room)}/leave", {})
        await call(other.send, room, "I am still here")
        with anyio.fail_after(60):
            while alice.user_id in channel.member_names(room):
                await anyio.sleep(0.1)
        assert bot.inbox.amendments == []
        assert await channel.is_in(SessionKey("matrix", room))
        await call(other.call, "POST", f"/rooms/{quote(room)}/leave", {})
        await bot.inbox.until(lambda inbox: inbox.amendments)
        assert not await channel.is_in(SessionKey("matrix", room))
    assert [(one.kind, one.session.conversation) for one in bot.inbox.amendments] == [("leave", room)]


async def test_a_refused_invitation_is_no_leaving(make_bot, alice, fresh_user):
    """Refusing strangers costs the store nothing: only rooms that the bot was in are left."""
    bot = make_bot(allow_from=[alice.user_id])
    stranger = await call(fresh_user, "stranger")
    async with bot.up():
        await call(stranger.create_room, [bot.user_id])
        room = await joined_room(alice, bot)
        await bot.inbox.until(lambda inbox: len(json.loads(inbox.positions.get("invites", "[]"))) == 1)
        await call(alice.send, room, "hello")
        await bot.inbox.until(lambda inbox: "hello" in inbox.texts)

    assert bot.inbox.amendments == []
    assert "(invites me into a room)" in bot.inbox.texts, "it waits for the owner's word"


@pytest.mark.parametrize("how", ["in front of it", "instead of it"])
async def test_an_invitation_in_the_name_of_somebody_else(make_bot, alice, fresh_user, how):
    """
    A foreign server writes into the stripped state that Alice has invited: the bot stays out, or leaves again when its
    own server says who it was. Alice's own invitation makes a private room at the same time.
    """
    mallory = await call(fresh_user, "mallory")
    liar = await call(mallory.create_room, [], is_direct=True)

    async def lied_to(config):
        from channels.matrix.client.nio_homeserver import NioHomeserver

        class LiedTo(NioHomeserver):
            async def sync(self, request):
                answer = await super().sync(request)
                invite = answer.body.get("rooms", {}).get("invite", {}).get(liar)
                if invite is not None:
                    events = invite["invite_state"]["events"]
                    true = next(one for one in events if one["state_key"] == config.user_id)
                    events.insert(0, {**true, "sender": alice.user_id})
                    if how == "instead of it":
                        events.remove(true)
                return answer

        return LiedTo(config.homeserver, config.user_id)

    bot = make_bot(allow_from=[alice.user_id], connect=lied_to)
    path = f"/rooms/{quote(liar)}/state/m.room.member/{quote(bot.user_id)}?format=event"
    async with bot.up():
        await call(
            mallory.call, "POST", f"/rooms/{quote(liar)}/invite", {"user_id": bot.user_id, "is_direct": True}
        )
        room = await joined_room(alice, bot)
        await call(alice.send, room, "hello")
        await bot.inbox.until_accepted(1)
        with anyio.fail_after(60):
            while (own := await call(mallory.call, "GET", path))["content"]["membership"] != "leave":
                await anyio.sleep(0.05)
        await bot.inbox.until(lambda inbox: json.loads(inbox.positions.get("invites", "[1]")) == [])
        address = f"/user/{quote(bot.user_id)}/account_data/m.direct"
        bots = await call(MatrixPeer.login, bot.url, bot.user_id, bot.credentials.password)
        direct = await call(bots.call, "GET", address)

    before = own["unsigned"]["prev_content"]["membership"]
    assert before == ("join" if how == "instead of it" else "invite")
    assert direct == {alice.user_id: [room]}
    assert bot.inbox.accepted[0].audience is Audience.DIRECT


async def test_what_waits_for_a_key_in_a_room_that_was_left_is_dropped(
    make_bot, synapse, fresh_credentials, tmp_path
):
    """The references to messages that cannot be read yet go with the room."""
    nia = SecretPeer(synapse.url, fresh_credentials("nia"), tmp_path / "nia")
    bot = make_bot(allow_from=[nia.user_id])
    async with bot.up():
        room = nia.peer.create_room([bot.user_id])
        secret = f"/rooms/{quote(room)}/state/m.room.encryption/"
        nia.peer.call("PUT", secret, {"algorithm": "m.megolm.v1.aes-sha2"})
        await call(bot_joined, nia.peer, room, bot.user_id)
        nia.send(room, "early", to=bot.user_id, give_key=False)
        await bot.inbox.until(lambda inbox: inbox.facts[-1].get("waiting_for_keys") == 1)
        nia.peer.call("POST", f"/rooms/{quote(room)}/kick", {"user_id": bot.user_id})
        await bot.inbox.until(lambda inbox: inbox.facts[-1].get("waiting_for_keys") == 0)
    nia.close()


# ── upgrades ──
@pytest.mark.parametrize(("before", "after"), [("10", "11"), ("11", "12"), ("12", "12")])
async def test_a_direct_conversation_goes_on_in_the_new_room(make_bot, alice, before, after):
    """Upgraded and invited: the same session, still private, answers in the new room; over a restart, too (M29)."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up():
        old = await joined_room(alice, bot, version=before)
        await call(alice.send, old, "before")
        await bot.inbox.until_accepted(1)
        new = await upgrade(alice, old, after)
        await call(alice.invite, new, bot.user_id)
        await call(bot_joined, alice, new, bot.user_id)
        await bot.inbox.until(lambda inbox: json.loads(inbox.positions.get("upgrades", "{}")) == {new: old})
        await call(alice.send, new, "after")
        await bot.inbox.until_accepted(2)
    async with bot.up() as channel:
        await call(alice.send, new, "and after a restart")
        await bot.inbox.until_accepted(3)
        asked = bot.inbox.accepted[-1]
        answer = bot.message(old, "the answer", context=asked.context)
        await channel.deliver(answer, uncertain=bot.mark)

    assert {message.session for message in bot.inbox.accepted} == {SessionKey("matrix", old)}
    assert {message.audience for message in bot.inbox.accepted} == {Audience.DIRECT}
    assert await bodies(alice, new, bot.user_id) == ["the answer"]
    assert await bodies(alice, old, bot.user_id) == []


async def test_an_open_room_is_joined_without_an_invitation(make_bot, alice):
    """Where anybody may join, the bot does so by itself, on the word of somebody who may invite it."""
    bot = make_bot(allow_from=[alice.user_id], group_policy="open")
    async with bot.up():
        old = await joined_room(alice, bot, direct=False, version="11")
        rules = f"/rooms/{quote(old)}/state/m.room.join_rules/"
        await call(alice.call, "PUT", rules, {"join_rule": "public"})
        new = await upgrade(alice, old)
        await call(bot_joined, alice, new, bot.user_id)
        await call(alice.send, new, "here we are")
        await bot.inbox.until_accepted(1)

    assert bot.inbox.accepted[0].session == SessionKey("matrix", old, SHARED)


async def test_an_upgrade_while_away_is_followed(make_bot, alice):
    """What happened to the room while the bot was down is seen at the next start."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up():
        old = await joined_room(alice, bot, version="11")
    new = await upgrade(alice, old)
    await call(alice.invite, new, bot.user_id)
    async with bot.up():
        await call(bot_joined, alice, new, bot.user_id)
        await bot.inbox.until(lambda inbox: json.loads(inbox.positions.get("upgrades", "{}")) == {new: old})


async def test_a_member_without_power_leads_nobody_away(make_bot, alice, fresh_user):
    """A room that lets anybody write state: a plain member's tombstone is not believed, its room not joined."""
    carol = await call(fresh_user, "carol")
    bot = make_bot(allow_from=[alice.user_id, carol.user_id], group_policy="open")
    async with bot.up():
        room = await joined_room(alice, bot, direct=False)
        powers = f"/rooms/{quote(room)}/state/m.room.power_levels/"
        content = await call(alice.call, "GET", powers)
        content["events"]["m.room.tombstone"] = 0
        await call(alice.call, "PUT", powers, {**content, "state_default": 0})
        await call(alice.invite, room, carol.user_id)
        await call(carol.join, room)
        trap = await call(carol.create_room, [])
        rules = f"/rooms/{quote(trap)}/state/m.room.join_rules/"
        await call(carol.call, "PUT", rules, {"join_rule": "public"})
        stone = f"/rooms/{quote(room)}/state/m.room.tombstone/"
        await call(carol.call, "PUT", stone, {"body": "moved", "replacement_room": trap})
        await call(alice.send, room, "still here?")
        await bot.inbox.until_accepted(1)
        await anyio.sleep(0.5)

    assert bot.user_id not in await call(carol.members, trap)
    assert "upgrades" not in bot.inbox.positions


async def test_a_room_that_is_no_successor_is_left_again(make_bot, alice):
    """An admin's tombstone that names a room which does not know of it: joined, looked at, left."""
    bot = make_bot(allow_from=[alice.user_id], group_policy="open")
    async with bot.up():
        room = await joined_room(alice, bot, direct=False)
        other = await call(alice.create_room, [])
        rules = f"/rooms/{quote(other)}/state/m.room.join_rules/"
        await call(alice.call, "PUT", rules, {"join_rule": "public"})
        stone = f"/rooms/{quote(room)}/state/m.room.tombstone/"
        await call(alice.call, "PUT", stone, {"body": "moved", "replacement_room": other})
        member = f"/rooms/{quote(other)}/state/m.room.member/{quote(bot.user_id)}"
        with anyio.fail_after(60):
            while (await _or_none(alice, member)).get("membership") != "leave":
                await anyio.sleep(0.1)

    assert "upgrades" not in bot.inbox.positions


async def _or_none(user, path):
    try:
        return await call(user.call, "GET", path)
    except RequestFailed:
        return {}


async def test_a_room_has_the_name_that_people_see(make_bot, alice):
    """As it is now, also after a start; none where nobody has given one."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up() as channel:
        room = await call(alice.create_room, [bot.user_id], name="Herons\n of the\u202e delta")
        plain = await call(alice.create_room, [bot.user_id])
        await call(bot_joined, alice, room, bot.user_id)
        await call(bot_joined, alice, plain, bot.user_id)
        with anyio.fail_after(60):
            while channel.room_name(room) != "Herons of the delta":
                await anyio.sleep(0.1)
        assert channel.room_name(plain) == ""
        path = f"/rooms/{quote(room)}/state/m.room.name/"
        await call(alice.call, "PUT", path, {"name": "Storks"})
        with anyio.fail_after(60):
            while channel.room_name(room) != "Storks":
                await anyio.sleep(0.1)
    async with bot.up() as channel:
        with anyio.fail_after(60):
            while channel.room_name(room) != "Storks":
                await anyio.sleep(0.1)
