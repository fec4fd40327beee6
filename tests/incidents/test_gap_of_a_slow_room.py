"""
What a limited timeline had left out was fetched inside the receiving loop: one room whose past our server has to ask
another one for, or that somebody has flooded, held up what was said in all other rooms.
"""

from __future__ import annotations

import json

import anyio
import pytest

from channels.matrix.client.homeserver import HttpAnswer, LinkBroken
from channels.matrix.receive.deferred_reading import FETCHING, GAP_TRIES
from tests.doubles.homeserver import member, text
from tests.doubles.inbox import running
from tests.incidents.test_slow_server_of_another import BOT, GUEST, MINE, OWNER, THEIRS, Setup

pytestmark = [pytest.mark.slow, pytest.mark.virtual_time]


@pytest.fixture
def it(tmp_path):
    return Setup(tmp_path)


def limited(it, *events, room=THEIRS, **section):
    timeline = {"events": list(events), "limited": True, "prev_batch": "p"}
    it.server.sync_body(rooms={"join": {room: {"timeline": timeline, **section}}})


def page(*events, **more):
    return HttpAnswer(200, {"chunk": list(events), **more})


def fetching(it):
    return json.loads(it.inbox.positions.get(FETCHING, "{}"))


async def test_others_are_heard_while_a_gap_is_waited_for(it):
    """In another room, whoever it is; in the same one everything comes after the gap, and in order."""
    it.server.hanging = "/messages"
    it.server.on("GET", "/messages$", page(text("$1", "a", GUEST), text("$2", "b", GUEST)))
    limited(it, text("$2", "b", GUEST), text("$3", "c", GUEST))
    it.says(text("$mine", "hello", OWNER), room=MINE)
    it.says(text("$4", "d", OWNER))
    async with running(it.channel(), it.inbox):
        await it.inbox.until(lambda inbox: inbox.positions["next_batch"] == "s3", within_s=1.0)
        assert it.ids == ["$mine"]
        assert fetching(it) == {THEIRS: "s0"}
        it.server.hanging = ""
        await it.inbox.until_accepted(5, within_s=120)
        it.says(text("$5", "e", GUEST))
        await it.inbox.until_accepted(6)
        await it.inbox.until(lambda _: not fetching(it))

    assert it.ids == ["$mine", "$1", "$2", "$3", "$4", "$5"]


async def test_a_gap_survives_the_end_of_the_run(it):
    """The next run reads the room from where the gap begins; nothing is lost, doubled or out of order."""
    it.server.on(
        "GET", "/messages$", page(text("$1", "a", GUEST), end="t1"), LinkBroken("cut", maybe_taken=True)
    )
    limited(it, text("$3", "c", GUEST))
    it.says(text("$4", "d", GUEST))
    async with running(it.channel(), it.inbox):
        await it.inbox.until_accepted(1)
        await it.inbox.until(lambda inbox: inbox.positions["next_batch"] == "s2")
        await anyio.sleep(0.5)
    assert it.ids == ["$1"]
    assert fetching(it) == {THEIRS: "s0"}

    it.server.calls.clear()
    all_of_it = [text(f"${number}", "x", GUEST) for number in (1, 2, 3, 4)]
    it.server.on("GET", "/messages$", page(*all_of_it))
    timeline = {"events": [text("$5", "e", GUEST)], "limited": False, "prev_batch": "p"}
    rooms = {"join": {THEIRS: {"timeline": timeline}}}
    it.server.syncs += [
        HttpAnswer(200, {"next_batch": "s3", "rooms": rooms}),
        HttpAnswer(200, {"next_batch": "s4"}),
    ]
    async with running(it.channel(), it.inbox):
        await it.inbox.until_accepted(5)
        it.server.syncs.append(HttpAnswer(200, {"next_batch": "s5"}))
        await it.inbox.until(lambda _: not fetching(it))

    assert it.ids == ["$1", "$2", "$3", "$4", "$5"]
    assert it.server.asked("GET", "/messages$")[0].query["from"] == "s0"


async def test_nothing_is_given_up_while_the_homeserver_is_away(it):
    """Only tries count between which it answered; the receiver's tests give up on a server that is there."""
    it.server.on("GET", "/messages$", LinkBroken("no route", maybe_taken=False))
    limited(it, text("$2", "b", GUEST))
    async with running(it.channel(), it.inbox):
        await anyio.sleep(600)
        assert it.ids == []
        assert len(it.server.asked("GET", "/messages$")) > GAP_TRIES
        it.server.on("GET", "/messages$", page(text("$1", "a", GUEST)))
        await it.inbox.until_accepted(2, within_s=60)
    assert it.ids == ["$1", "$2"]


async def test_a_room_that_is_left_is_not_read_any_more(it):
    """What was still to be fetched of it is not answered, and not looked for by the next run."""
    it.server.on("GET", "/messages$", LinkBroken("cut", maybe_taken=True))
    limited(it, text("$2", "b", GUEST))
    it.server.sync_body(rooms={"leave": {THEIRS: {}}})
    it.server.sync_body()
    async with running(it.channel(), it.inbox):
        await it.inbox.until(lambda inbox: inbox.positions["next_batch"] == "s3")
        await it.inbox.until(lambda _: not fetching(it))
        asked = len(it.server.asked("GET", "/messages$"))
        await anyio.sleep(200)

    assert it.ids == []
    assert fetching(it) == {}
    assert len(it.server.asked("GET", "/messages$")) == asked


async def test_what_comes_meanwhile_is_bounded(it):
    """Hundreds of messages behind a gap are not kept, but fetched; nothing is lost, and the order is right."""
    everything = [text(f"${number}", "x", GUEST) for number in range(500)]
    it.server.hanging = "/messages"
    it.server.on(
        "GET", "/messages$", page(*everything[:1]), page(*everything[:300], end="t"), page(*everything)
    )
    limited(it, everything[0])
    for start in range(1, 451, 50):
        it.says(*everything[start : start + 50])
    async with running(it.channel(), it.inbox):
        await it.inbox.until(lambda inbox: inbox.positions["next_batch"] == "s10")
        it.server.hanging = ""
        await it.inbox.until_accepted(451, within_s=120)

    assert it.ids[:451] == [f"${number}" for number in range(451)]
    assert [call.query["from"] for call in it.server.asked("GET", "/messages$")] == ["s0", "s0", "t"]


async def test_hanging_rooms_of_others_keep_no_room_of_the_owner_waiting(it):
    """However many there are; and a good room of another waits for some of them, not for all."""
    it.server.hanging = "evil.test/messages"
    joined = {}
    for number in range(60):
        timeline = {"events": [], "limited": True, "prev_batch": "p"}
        joined[f"!{number}:evil.test"] = {
            "timeline": timeline,
            "state": {"events": [member(BOT), member(GUEST)]},
        }
    it.server.hanging = "evil.test/messages"
    it.server.sync_body(rooms={"join": joined})
    it.server.on("GET", "/messages$", page(text("$1", "a", OWNER)))
    limited(it, text("$2", "b", OWNER), room=MINE, state={"events": [member(BOT), member(OWNER)]})
    channel = it.channel()
    channel._is_owner = lambda person: person == OWNER
    async with running(channel, it.inbox):
        await it.inbox.until_accepted(2, within_s=5)

    assert it.ids == ["$1", "$2"]
