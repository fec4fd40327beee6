"""Reminders for others in a room: who is notified, who is named as its maker, and what a guest cannot do."""

from __future__ import annotations

import anyio
import pytest

from agent_core.messages import EVERYBODY, Amendment, Audience, MessageContext, SessionKey
from channels.base import ChannelUnavailable
from gateway.proactive.jobs.job_service import JobPlace
from gateway.proactive.jobs.triggers import TriggerInvalid
from tests.clock import ManualClock
from tests.doubles.loopback import LoopbackChannel
from tests.integration.matrix_bot import bot_joined, call
from tests.integration.matrix_house import open_house
from tests.integration.schedule_world import START, later, scheduled
from tests.proactive_world import ANN, BOB

ROOM = SessionKey("matrix", "room")
CID = "@cid:hs.test"
HERE = {ANN: "Ann", BOB: "Bob Miller", CID: "Cid"}


@pytest.fixture
def here(monkeypatch):
    """The people of the room, which a test may change."""
    people = dict(HERE)

    async def of(_self, _conversation):
        if not people:
            raise ChannelUnavailable("away")
        return people

    monkeypatch.setattr(LoopbackChannel, "people", of, raising=False)
    monkeypatch.setattr(LoopbackChannel, "room_name", lambda _self, _conversation: "", raising=False)
    return people


@pytest.mark.parametrize(
    ("said", "whom", "mentions"),
    [
        ("us in 1h to leave", f"{ANN}, {BOB}, {CID} (from {BOB})", [ANN, BOB, CID]),
        ("everybody in 1h to leave", f"{ANN}, {BOB}, {CID} (from {BOB})", [ANN, BOB, CID]),
        ("Cid in 1h to leave", f"{CID} (from {BOB})", [CID]),
        (f"me and {CID} in 1h: leave", f"{BOB}, {CID} (from {BOB})", [BOB, CID]),
        ("ann, CID in 1h leave", f"{ANN}, {CID} (from {BOB})", [ANN, CID]),
        ("me in 1h to leave", BOB, None),
        ("Bob Miller in 1h to leave", BOB, None),
        ("in 1h to leave", BOB, None),
    ],
)
async def test_who_is_reminded(tmp_path, here, said, whom, mentions):
    """Those who are named, everybody, or the person alone; who has made it is named if it is for others."""
    clock = ManualClock(START)
    async with scheduled(tmp_path, clock, groups=["room"]) as home:
        told = await home.asked(BOB, f"!remind {said}", conversation="room")
        await later(home, clock, hours=1)
        seen = (await home.chat.answers(2, conversation="room"))[-1]
    assert told.startswith(f"I will remind {', '.join(mentions) if mentions else 'you'}, ")
    assert seen.text == f"For {whom}: leave"
    assert seen.rings_for == (tuple(mentions) if mentions else None) and not seen.context.notes.mentions


async def test_who_made_it_hears_that_the_others_were_not_told(tmp_path, here):
    """If the bot was removed from the room: the reminder is not theirs alone."""
    clock = ManualClock(START)
    async with scheduled(tmp_path, clock, groups=["room"]) as home:
        await home.asked(BOB, "!remind Cid in 1h to leave", conversation="room")
        home.chat.left.add("room")
        await home.built.store.inbox.accept("matrix", "bot", [], {}, [Amendment(kind="leave", session=ROOM)])
        await later(home, clock, hours=1)
        (told,) = await home.chat.answers(1, conversation=f"dm-{BOB}")
    assert told.text == (
        f"For {CID} (from {BOB}): leave\n\n(I have told nobody else: I cannot speak where you asked for it.)"
    )


async def test_who_is_not_certain_is_asked_once(tmp_path, here):
    """Of two with one name the addresses are told; of nobody, that; nothing is made, and in private neither."""
    here["@bob2:hs.test"] = "bob miller"
    async with scheduled(tmp_path, ManualClock(START), groups=["room"]) as home:
        two = await home.asked(BOB, "!remind Bob in 1h to leave", conversation="room")
        nobody = await home.asked(BOB, "!remind Dora in 1h to leave", conversation="room")
        private = await home.asked(BOB, "!remind Cid in 1h to leave")
        here.clear()
        away = await home.asked(BOB, "!remind us in 1h to leave", conversation="room")
        assert await home.plans.jobs() == []
    assert f"can be {BOB} or @bob2:hs.test; use the address" in two
    assert "I know nobody called 'Dora' here" in nobody
    assert "I do not understand 'Cid' before 'in 1h'. Write for example `!remind in 1h Cid leave`" in private
    assert "ask again in a moment" in away


async def test_many_are_notified_for_a_moderator_alone(tmp_path, here):
    """A crowd is never notified because a guest, or a model with a guest's words, wants it."""
    here.update({f"@p{number}:hs.test": f"P{number}" for number in range(20)})
    async with scheduled(tmp_path, ManualClock(START)) as home:
        desk = home.built.proactive.jobs
        guest = JobPlace(ROOM, "bot", BOB, Audience.GROUP)
        with pytest.raises(TriggerInvalid, match="only a moderator"):
            await desk.mentioned_addresses(guest, "everybody")
        moderator = JobPlace(ROOM, "bot", BOB, Audience.GROUP, MessageContext(moderator=True))
        assert await desk.mentioned_addresses(moderator, "us") == [EVERYBODY]
        assert await desk.mentioned_addresses(guest, "Cid & P3") == [CID, "@p3:hs.test"]
        with pytest.raises(TriggerInvalid, match="only in a room"):
            await desk.mentioned_addresses(JobPlace(ROOM, "bot", BOB), "Cid")


async def test_in_a_real_room(synapse, fresh_credentials, fresh_user, tmp_path):
    """A reminder for all of a room names each by a pill, and so does an answer with an id in it."""
    nia, carol, bot = await call(fresh_user, "nia"), await call(fresh_user, "carol"), fresh_credentials("bot")
    answer = f"Ask {carol.user_id} about `{nia.user_id}`, not @stranger:hs.test."
    async with open_house(synapse.url, bot, tmp_path / "home", answer, allow=[nia]) as there:
        room = await call(nia.create_room, [bot.user_id], is_direct=False)
        await call(bot_joined, nia, room, bot.user_id)
        await call(nia.invite, room, carol.user_id)
        await call(carol.join, room)
        mention = {"m.mentions": {"user_ids": [bot.user_id]}}
        await call(nia.send, room, "whom do I ask?", **mention)
        await there.answers(nia, room, 1)
        await call(nia.send, room, "!remind us in 1s to leave", **mention)
        await there.answers(nia, room, 3)
        with anyio.fail_after(60):
            while True:
                events = await call(nia.history, room, limit=500)
                said = [one.content for one in events if one.sender == bot.user_id and "body" in one.content]
                if len(said) >= 3:
                    break
                await anyio.sleep(0.05)
    asked, _, reminder = sorted(said, key=lambda one: ("For" in one["body"], "remind" in one["body"]))
    pill = f'<a href="https://matrix.to/#/{carol.user_id}">'
    assert asked["m.mentions"] == {"user_ids": [nia.user_id, carol.user_id]}
    assert asked["formatted_body"].count("matrix.to") == asked["formatted_body"].count(pill) == 1
    assert set(reminder["m.mentions"]["user_ids"]) == {nia.user_id, carol.user_id}
    assert pill in reminder["formatted_body"]
    assert f"(from {nia.user_id})" in reminder["body"]
