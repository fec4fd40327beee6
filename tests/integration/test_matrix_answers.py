"""How answers come out on a real homeserver: streamed, acknowledged, cut, and where nobody has asked."""

from __future__ import annotations

import secrets

import anyio
import pytest

from agent_core.messages import OutboundKind, SessionKey
from channels.base import AckState, ChannelUnavailable, DeliveryFailed
from channels.matrix.client.homeserver import LinkBroken
from channels.matrix.send.reactions import SIGNS
from tests.integration.matrix_bot import call, joined_room, wait_until
from tests.integration.matrix_talk import STREAMING, answer_to, asked, by_bot, shown, stream


# ── streaming ──
@pytest.mark.parametrize("direct", [True, False])
async def test_an_answer_can_be_read_while_it_is_written(make_bot, alice, direct):
    """One event, edited a few times; the last edit is the whole answer, formatted, and pings nobody again."""
    bot = make_bot(allow_from=[alice.user_id], group_policy="open", streaming={**STREAMING, "max_edits": 3})
    async with bot.up() as channel:
        room = await joined_room(alice, bot, direct=direct)
        question = await asked(bot, alice, room, "Count!")
        text = await stream(channel, question, [f"**{number}**" for number in range(30)])
        receipts = [
            await channel.deliver(answer_to(bot, question, text), uncertain=bot.mark) for _ in range(2)
        ]
        events = await by_bot(alice, room, bot)

    first, *edits = events
    assert shown(events) == [text]
    assert {receipt.provider_id for receipt in receipts} == {first.event_id}
    assert 2 <= len(edits) <= 4
    assert {edit.replaces for edit in edits} == {first.event_id}
    assert first.body.endswith(" …")
    assert all("<strong>" in edit.content["m.new_content"]["formatted_body"] for edit in edits)
    mentions = {} if direct else {"user_ids": [alice.user_id]}
    assert first.content["m.mentions"] == mentions
    assert all(edit.content["m.mentions"] == {} for edit in edits)
    assert all(edit.content["m.new_content"]["m.mentions"] == mentions for edit in edits)


async def test_an_answer_that_is_ready_at_once_is_one_event(make_bot, alice):
    """Without anything to show meanwhile there is no preview and no edit."""
    bot = make_bot(allow_from=[alice.user_id], streaming=STREAMING)
    async with bot.up() as channel:
        room = await joined_room(alice, bot)
        question = await asked(bot, alice, room, "Quick!")
        await stream(channel, question, ["Here"], every_s=0)
        await channel.deliver(answer_to(bot, question, "Here it is."), uncertain=bot.mark)
        events = await by_bot(alice, room, bot)

    assert [(event.body, event.replaces) for event in events] == [("Here it is.", None)]


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("when", ["before the answer", "after the answer", "no preview"])
async def test_a_crash_while_streaming_leaves_one_answer(make_bot, alice, when, encrypted):
    """Whatever the process knew is gone: the turn goes on in the same event, and the answer is there once."""
    bot = make_bot(allow_from=[alice.user_id], streaming=STREAMING)
    text = " ".join(str(number) for number in range(12))
    async with bot.up() as channel:
        room = await joined_room(alice, bot)
        if encrypted:
            content = {"algorithm": "m.megolm.v1.aes-sha2"}
            await call(alice.call, "PUT", f"/rooms/{room}/state/m.room.encryption", content)
        question = await asked(bot, alice, room, "Count!")
        if when != "no preview":
            await stream(channel, question, text.split())
        if when == "after the answer":
            await channel.deliver(answer_to(bot, question, text), uncertain=bot.mark)
    async with bot.up() as channel:
        if when == "before the answer":
            await stream(channel, question, text.split())
        for _ in range(2):
            receipt = await channel.deliver(answer_to(bot, question, text), uncertain=bot.mark)
    async with bot.up() as channel:
        again = await channel.deliver(answer_to(bot, question, text), uncertain=bot.mark)
        path = f"/rooms/{room}/messages?dir=b&limit=100"
        chunk = (await call(alice.call, "GET", path))["chunk"]
        homeserver = channel._homeserver
        body = (
            await homeserver.request("GET", f"/_matrix/client/v3/rooms/{room}/event/{again.provider_id}")
        ).body
        newest = body.get("unsigned", {}).get("m.relations", {}).get("m.replace", body)
        clear = channel._crypto.decrypt(room, newest) if encrypted else newest

    kinds = ("m.room.message", "m.room.encrypted")
    ours = [event for event in chunk if event["sender"] == bot.user_id and event["type"] in kinds]
    originals = [one for one in ours if one["content"].get("m.relates_to", {}).get("rel_type") != "m.replace"]
    assert len(originals) == 1
    assert receipt == again
    assert originals[0]["event_id"] == again.provider_id
    assert clear["content"].get("m.new_content", clear["content"])["body"] == text


@pytest.mark.parametrize("end", ["apology", "nothing"])
async def test_a_preview_without_an_answer_does_not_stay(make_bot, alice, end):
    """A turn that fails turns it into the apology; one that was taken back has it redacted."""
    bot = make_bot(allow_from=[alice.user_id], streaming=STREAMING)
    async with bot.up() as channel:
        room = await joined_room(alice, bot)
        question = await asked(bot, alice, room, "Count!")
        await stream(channel, question, [str(number) for number in range(8)])
        await channel.acknowledge(question.session, question.context, AckState.FAILED)
        if end == "apology":
            apology = answer_to(bot, question, "Sorry.", kind=OutboundKind.APOLOGY)
            await channel.deliver(apology, uncertain=bot.mark)
        else:
            with anyio.fail_after(60):
                while any(event.content for event in await by_bot(alice, room, bot)):
                    await anyio.sleep(0.2)
        events = [event for event in await by_bot(alice, room, bot) if not event.replaces]

    if end == "apology":
        assert len(events) == 1
        assert shown(await by_bot(alice, room, bot)) == ["Sorry."]
    else:
        assert len(events) >= 1
        assert all(event.content == {} for event in events)


# ── marks ──
@pytest.mark.parametrize("setting", [True, False])
async def test_reactions_show_how_far_a_question_is(make_bot, alice, setting):
    """Taken up, then done or failed, the first one taken back again; nothing without the setting (C5)."""
    bot = make_bot(allow_from=[alice.user_id], ack_reactions=setting)

    async def reactions(room, question):
        path = f"/_matrix/client/v1/rooms/{room}/relations/{question.native_id}/m.annotation"
        chunk = (await channel._homeserver.request("GET", path)).body["chunk"]
        return sorted(event["content"]["m.relates_to"]["key"] for event in chunk)

    async def until(room, question, wanted):
        with anyio.fail_after(60):
            while await reactions(room, question) != wanted:
                await anyio.sleep(0.05)

    async with bot.up() as channel:
        room = await joined_room(alice, bot)
        good, bad = [await asked(bot, alice, room, text) for text in ("good", "bad")]
        for question in (good, bad, good):
            await channel.acknowledge(question.session, question.context, AckState.RECEIVED)
        if setting:
            await until(room, good, [SIGNS[AckState.RECEIVED]])
            await until(room, bad, [SIGNS[AckState.RECEIVED]])
    async with bot.up() as channel:  # a new process knows nothing of the first marks
        await channel.acknowledge(good.session, good.context, AckState.DONE)
        await channel.acknowledge(bad.session, bad.context, AckState.FAILED)
        if setting:
            await until(room, good, [SIGNS[AckState.DONE]])
            await until(room, bad, [SIGNS[AckState.FAILED]])
        await asked(bot, alice, room, "the end")
        assert (await reactions(room, good) == []) is not setting


# ── texts ──
async def test_a_long_answer_is_cut_where_it_may_be(make_bot, alice):
    """200 kB with a table and code: several events in order, each with its formatting, none cut open (M26)."""
    rows = "\n".join(f"| {number} | {'x' * 60} & more |" for number in range(900))
    code = "\n".join(f"print({number})  # <{'y' * 50}>" for number in range(900))
    text = f"Intro\n\n| a | b |\n| --- | --- |\n{rows}\n\n```python\n{code}\n```\n\n" + "Some words. " * 4000
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up() as channel:
        room = await joined_room(alice, bot)
        await channel.deliver(bot.message(room, text), uncertain=bot.mark)
        events = await by_bot(alice, room, bot)

    assert len(events) > 3
    joined = "\n".join(event.body for event in events)
    assert all(f"| {number} |" in joined and f"print({number})" in joined for number in range(900))
    assert all(event.body.count("```") % 2 == 0 for event in events)
    assert all("<table>" in event.content["formatted_body"] for event in events if "| --- |" in event.body)
    assert all(event.content["m.mentions"] == {} for event in events)


async def test_notices_are_notices(make_bot, alice):
    """What only tells of a state does not ring; answers and apologies do."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up() as channel:
        room = await joined_room(alice, bot)
        for kind in OutboundKind:
            await channel.deliver(bot.message(room, kind.value, kind=kind), uncertain=bot.mark)
        found = {event.body: event.content["msgtype"] for event in await by_bot(alice, room, bot)}

    assert found.pop("notice") == "m.notice"
    assert set(found.values()) == {"m.text"}


# ── where nobody has asked ──
@pytest.mark.parametrize("encrypted", [True, False])
async def test_a_person_is_reached_in_a_room_of_two(make_bot, alice, encrypted):
    """The first message makes a direct room, encrypted by setting; later ones find it, over restarts too."""
    bot = make_bot(allow_from=[alice.user_id], encrypt_new_rooms=encrypted)
    target = {"kind": OutboundKind.ALERT, "session": SessionKey("matrix", alice.user_id)}
    async with bot.up() as channel:
        first = await channel.deliver(bot.message("-", "Hello!", **target), uncertain=bot.mark)
        room = await call(alice.wait_for_invite)
        with anyio.fail_after(60):
            while channel._rooms.get(room) is None or channel._rooms.get(room).member_count != 2:
                await anyio.sleep(0.05)  # the bot knows its new room by now, and that she has not come yet
        waiting = await channel.deliver(bot.message("-", "Are you there?", **target), uncertain=bot.mark)
        await call(alice.join, room)
        session = await channel.direct_session(alice.user_id)
        assert await channel.alone_with(session, alice.user_id)
        question = await asked(bot, alice, room, "Hello yourself")
    async with bot.up() as channel:
        second = await channel.deliver(bot.message("-", "Again!", **target), uncertain=bot.mark)
        directs = await channel._homeserver.request(
            "GET", f"/_matrix/client/v3/user/{bot.user_id}/account_data/m.direct"
        )
        state = await channel._homeserver.request(
            "GET", f"/_matrix/client/v3/rooms/{room}/state/m.room.encryption"
        )

    path = f"/rooms/{room}/event/"
    events = [await call(alice.call, "GET", path + one.provider_id) for one in (first, waiting, second)]
    kinds = {event["type"] for event in events}
    if not encrypted:
        assert [event["content"]["body"] for event in events] == ["Hello!", "Are you there?", "Again!"]
    assert kinds == {"m.room.encrypted" if encrypted else "m.room.message"}
    assert directs.body == {alice.user_id: [room]}
    assert session == question.session == SessionKey("matrix", room)
    assert question.context.route["direct"]
    assert state.is_success is encrypted


async def test_a_room_that_was_lost_on_the_way_is_found(make_bot, alice):
    """The answer to the creation is lost: the next try finds the room instead of making another one."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up() as channel:
        homeserver = channel._homeserver
        whole, lost = homeserver.request, []

        async def request(method, path, *args, **options):
            answer = await whole(method, path, *args, **options)
            if path.endswith("/createRoom") and not lost:
                lost.append(answer.body["room_id"])
                raise LinkBroken("cut", maybe_taken=True)
            return answer

        homeserver.request = request
        with pytest.raises(ChannelUnavailable):
            await channel.direct_session(alice.user_id)
        homeserver.request = whole
    async with bot.up() as channel:
        session = await channel.direct_session(alice.user_id)
        rooms = await channel._homeserver.request("GET", "/_matrix/client/v3/joined_rooms")

    assert rooms.body["joined_rooms"] == lost == [session.conversation]


async def test_being_alone_with_somebody_is_never_guessed(make_bot, alice, fresh_user):
    """A third person, even if only invited, an open door or an unknown room: not alone."""
    carol = await call(fresh_user, "carol")
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up() as channel:
        room = await joined_room(alice, bot)
        session = SessionKey("matrix", room)
        await asked(bot, alice, room, "Just us")  # now the bot has seen the room, too
        assert await channel.alone_with(session, alice.user_id)
        assert not await channel.alone_with(session, carol.user_id)
        assert not await channel.alone_with(SessionKey("matrix", "!nowhere:hs.test"), alice.user_id)
        await call(alice.invite, room, carol.user_id)
        assert not await channel.alone_with(session, alice.user_id)
        public = await joined_room(alice, bot)
        rule = {"join_rule": "public"}
        await call(alice.call, "PUT", f"/rooms/{public}/state/m.room.join_rules", rule)
        await asked(bot, alice, public, "Open to all")
        assert not await channel.alone_with(SessionKey("matrix", public), alice.user_id)


async def test_who_has_left_is_invited_again(make_bot, alice):
    """Rooms do not pile up: somebody who went out of the room is asked into the same one."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up() as channel:
        first = await channel.direct_session(alice.user_id)
        await call(alice.join, await call(alice.wait_for_invite))
        await call(alice.leave, first.conversation)
        second = await channel.direct_session(alice.user_id)
        await call(alice.join, await call(alice.wait_for_invite))

    assert first == second


async def test_places_that_cannot_be_written_to(make_bot, alice, fresh_user):
    """An alias is followed; nobody, no room and no right to speak are refusals with a reason."""
    bot = make_bot(allow_from=[alice.user_id])
    alias = f"#team-{secrets.token_hex(4)}:hs.test"
    async with bot.up() as channel:
        room = await joined_room(alice, bot, direct=False)
        await call(alice.call, "PUT", f"/directory/room/{alias.replace('#', '%23')}", {"room_id": room})
        await channel.deliver(bot.message(alias, "To all"), uncertain=bot.mark)
        await wait_until(alice, lambda: any(one.body == "To all" for one in alice.pending))
        levels = await call(alice.call, "GET", f"/rooms/{room}/state/m.room.power_levels")
        await call(
            alice.call, "PUT", f"/rooms/{room}/state/m.room.power_levels", {**levels, "events_default": 50}
        )
        with pytest.raises(DeliveryFailed, match="may not write"):
            await channel.deliver(bot.message(room, "Mute"), uncertain=bot.mark)
        with pytest.raises(DeliveryFailed, match="no room"):
            await channel.deliver(bot.message("#nowhere:hs.test", "Hello"), uncertain=bot.mark)
