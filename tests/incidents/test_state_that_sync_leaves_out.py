"""
Where two events are made at the same time, such as the bot's joining and a new join rule, the state in an answer of
Synapse to ``/sync`` is that of one of them, without the other: a room that anybody could enter counted as private, and
the owner's memory was opened in it. The same with somebody who was invited at that moment.
"""

from __future__ import annotations

import pytest

from agent_core.messages import Audience, SessionKey
from channels.base import ChannelUnavailable
from channels.matrix.client.homeserver import HttpAnswer, LinkBroken
from tests.doubles.accounts import scripted_channel
from tests.doubles.homeserver import ScriptedHomeserver, failure, member, text
from tests.doubles.inbox import MemoryInbox, running

pytestmark = pytest.mark.virtual_time
BOT, ALICE, BOB, ROOM = "@bot:hs.test", "@alice:hs.test", "@bob:hs.test", "!r:hs.test"


@pytest.fixture
def server():
    server = ScriptedHomeserver()
    server.on("GET", "/state/m.room.join_rules$", HttpAnswer(200, {"join_rule": "invite"}))
    server.on("GET", "/state/m.room.history_visibility$", HttpAnswer(200, {"history_visibility": "shared"}))
    server.on("GET", "/members$", HttpAnswer(200, {"chunk": [member(BOT), member(ALICE)]}))
    return server


@pytest.fixture
def channel(server, tmp_path):
    return scripted_channel(server, tmp_path, settings={"allow_from": [ALICE]})


def room_of_two(*events, direct=True, counted=True):
    """An answer with a room in which Alice and the bot are, as ``/sync`` tells it, without its doors."""
    room = {
        "state": {"events": [member(BOT), member(ALICE)]},
        "timeline": {"events": list(events), "limited": False, "prev_batch": "p"},
    }
    if counted:
        room["summary"] = {"m.joined_member_count": 2, "m.invited_member_count": 0}
    marked = {"type": "m.direct", "content": {ALICE: [ROOM]}}
    return {"account_data": {"events": [marked] if direct else []}, "rooms": {"join": {ROOM: room}}}


async def heard(channel, server, *answers):
    inbox = MemoryInbox()
    inbox.positions["next_batch"] = "s0"
    server.sync_body()
    for answer in answers:
        server.sync_body(**answer)
    async with running(channel, inbox):
        await inbox.until(lambda inbox: inbox.positions["next_batch"] == f"s{len(answers) + 1}", within_s=60)
    return inbox.accepted


@pytest.mark.parametrize(
    ("path", "answer", "audience"),
    [
        ("/state/m.room.join_rules$", HttpAnswer(200, {"join_rule": "invite"}), Audience.DIRECT),
        ("/state/m.room.join_rules$", failure(404, "M_NOT_FOUND"), Audience.DIRECT),
        ("/state/m.room.join_rules$", HttpAnswer(200, {"join_rule": "public"}), Audience.GROUP),
        (
            "/state/m.room.history_visibility$",
            HttpAnswer(200, {"history_visibility": "world_readable"}),
            Audience.GROUP,
        ),
        (
            "/members$",
            HttpAnswer(200, {"chunk": [member(BOT), member(ALICE), member(BOB, "invite")]}),
            Audience.GROUP,
        ),
    ],
)
async def test_what_makes_a_room_private_is_asked_for_once(channel, server, path, answer, audience):
    """Before the first words in a room that is called direct; not again for the next."""
    server.on("GET", path, answer)
    accepted = await heard(channel, server, room_of_two(text("$1")), room_of_two(text("$2"), counted=False))

    assert [one.audience for one in accepted] == [audience, audience]
    assert len(server.asked("GET", path)) == 1


async def test_while_the_homeserver_cannot_say_it_nobody_is_answered(channel, server):
    """The same answer comes again; nothing is read as private meanwhile."""
    server.on(
        "GET",
        "/state/m.room.join_rules$",
        LinkBroken("cut", maybe_taken=False),
        failure(502),
        HttpAnswer(200, {"join_rule": "public"}),
    )
    accepted = await heard(channel, server, *[room_of_two(text("$1"))] * 3)

    assert [one.audience for one in accepted] == [Audience.GROUP]


async def test_what_is_sent_to_one_person_is_not_sent_before_that(channel, server):
    """An alert into a room of which ``/sync`` says nothing bad: the server is asked, and it knows better."""
    server.on("GET", "/state/m.room.join_rules$", HttpAnswer(200, {"join_rule": "public"}))
    inbox = MemoryInbox()
    inbox.positions["next_batch"] = "s0"
    server.sync_body(**room_of_two())
    async with running(channel, inbox):
        await inbox.until_up()
        assert not await channel.alone_with(SessionKey("matrix", ROOM), ALICE)
        assert server.asked("GET", "/state/m.room.join_rules$")


async def test_nothing_is_sent_while_it_cannot_be_asked(channel, server):
    """Not knowing is no yes."""
    server.on("GET", "/state/m.room.join_rules$", LinkBroken("cut", maybe_taken=False))
    inbox = MemoryInbox()
    inbox.positions["next_batch"] = "s0"
    server.sync_body(**room_of_two())
    async with running(channel, inbox):
        await inbox.until_up()
        with pytest.raises(ChannelUnavailable):
            await channel.alone_with(SessionKey("matrix", ROOM), ALICE)


@pytest.mark.parametrize(("visibility", "since"), [("joined", True), ("shared", False)])
async def test_what_newcomers_see_is_asked_for_once(channel, server, visibility, since):
    """Before the first joining that is read: the answers say nothing of the room's history visibility."""
    server.on("GET", "/state/m.room.history_visibility$", HttpAnswer(200, {"history_visibility": visibility}))
    comings = [member(one, before="invite") for one in (ALICE, BOB)]
    accepted = await heard(
        channel,
        server,
        *[room_of_two(one, text(f"${number}"), direct=False) for number, one in enumerate(comings)],
    )

    assert [one.context.visible_from is not None for one in accepted] == [since, since]
    assert len(server.asked("GET", "/state/m.room.history_visibility$")) == 1
