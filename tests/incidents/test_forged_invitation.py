"""
A foreign homeserver put a membership event "by the owner" in front of the true one into the stripped state of an
invitation: the bot joined a stranger's room and called it the owner's private one. And four invitations into rooms of
a server that hung made the owner's wait for 15.8 s.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import anyio
import pytest

from channels.matrix.client.homeserver import HttpAnswer, LinkBroken
from channels.matrix.rooms.invites import Invites
from channels.matrix.rooms.room_state import Rooms
from tests.clock import LoopClock
from tests.doubles.accounts import scripted_channel
from tests.doubles.homeserver import ScriptedHomeserver, failure, member, text
from tests.doubles.inbox import MemoryInbox, running

pytestmark = pytest.mark.virtual_time
BOT, OWNER, GUEST, MALLORY = "@bot:hs.test", "@owner:hs.test", "@guest:hs.test", "@mallory:evil.test"


def invited_by(sender, *, direct=True):
    """Our own membership event, as stripped state has it."""
    content = {"membership": "invite", "is_direct": True} if direct else {"membership": "invite"}
    return {"type": "m.room.member", "state_key": BOT, "sender": sender, "content": content}


def invitation(room_id, *events):
    return {"invite": {room_id: {"invite_state": {"events": list(events)}}}}


def joined_after(sender):
    """Our join, as our own server tells it; ``sender`` is who had invited us."""
    event = member(BOT, before="invite")
    if sender:
        event["unsigned"]["prev_sender"] = sender
    return event


class Setup:
    def __init__(self):
        self.server = ScriptedHomeserver()
        self.rooms = Rooms(BOT)
        self.invites = Invites(
            self.server,
            self.rooms,
            LoopClock(),
            user_id=BOT,
            may_invite=lambda one: one in (OWNER, GUEST),
            is_owner=lambda one: one == OWNER,
        )
        self.server.on("POST", "/leave$", HttpAnswer(200, {}))
        self.server.on("POST", "/join$", HttpAnswer(200, {}))
        self.server.on("PUT", "m.direct$", HttpAnswer(200, {}))

    async def save(self, text):
        json.loads(text())

    @asynccontextmanager
    async def working(self):
        async with anyio.create_task_group() as group:
            group.start_soon(self.invites.run, self.save)
            yield
            group.cancel_scope.cancel()


@pytest.fixture
def it():
    return Setup()


@pytest.mark.parametrize(
    "events",
    [
        [invited_by(OWNER), invited_by(MALLORY)],
        [invited_by(MALLORY), invited_by(OWNER)],
        [invited_by(GUEST), invited_by(OWNER)],
        [invited_by(OWNER), invited_by(OWNER), invited_by(MALLORY)],
    ],
)
async def test_two_who_have_invited_are_one_who_lies(it, events):
    """Wherever the forged event stands: the invitation is refused, and nothing is called direct."""
    it.invites.learn({"rooms": invitation("!a", *events)})
    async with it.working():
        await anyio.sleep(5)

    assert it.server.asked("POST", "/join$") == []
    assert len(it.server.asked("POST", "/leave$")) == 1
    assert it.server.asked("PUT", "m.direct$") == []


async def test_the_last_event_is_the_one_of_our_own_server(it):
    """What the same person said before it does not count."""
    it.server.on("GET", "/state/m.room.member/", HttpAnswer(200, joined_after(GUEST)))
    it.invites.learn({"rooms": invitation("!a", invited_by(GUEST), invited_by(GUEST, direct=False))})
    async with it.working():
        await anyio.sleep(5)

    assert len(it.server.asked("POST", "/join$")) == 1
    assert it.server.asked("PUT", "m.direct$") == []


@pytest.mark.parametrize(
    ("own", "also", "genuine"),
    [
        (joined_after(OWNER), {}, True),
        (joined_after(MALLORY), {}, False),
        (joined_after(""), {OWNER: HttpAnswer(200, {"membership": "join"})}, True),
        (joined_after(""), {OWNER: HttpAnswer(200, {"membership": "invite"})}, False),
        (joined_after(""), {OWNER: failure(404, "M_NOT_FOUND")}, False),
        ({"membership": "join"}, {OWNER: HttpAnswer(200, {"membership": "join"})}, True),  # the content alone
        ({"membership": "join"}, {OWNER: failure(404, "M_NOT_FOUND")}, False),
    ],
)
async def test_who_has_invited_is_looked_up_once_more_in_the_room(it, own, also, genuine):
    """After the join our own server says it; a room that was entered on a lie is left and never called direct."""
    for person, answer in also.items():
        it.server.on("GET", f"/state/m.room.member/{person.replace('@', '%40').replace(':', '%3A')}$", answer)
    it.server.on("GET", "/state/m.room.member/%40bot%3Ahs.test$", HttpAnswer(200, own))
    it.invites.learn({"rooms": invitation("!a", invited_by(OWNER))})
    async with it.working():
        await anyio.sleep(5)

    assert it.rooms.was_made_for("!a", OWNER) is genuine
    assert len(it.server.asked("PUT", "m.direct$")) == int(genuine)
    assert len(it.server.asked("POST", "/leave$")) == int(not genuine)


async def test_an_invitation_that_was_replaced_is_asked_for_by_its_id(it):
    """A server that only names the event before the join is asked for that."""
    own = member(BOT, before="invite")
    own["unsigned"]["replaces_state"] = "$invite"
    it.server.on("GET", "/state/m.room.member/%40bot", HttpAnswer(200, own))
    it.server.on("GET", "/event/%24invite$", HttpAnswer(200, invited_by(MALLORY)))
    it.invites.learn({"rooms": invitation("!a", invited_by(OWNER))})
    async with it.working():
        await anyio.sleep(5)

    assert not it.rooms.was_made_for("!a", OWNER)
    assert len(it.server.asked("POST", "/leave$")) == 1


async def test_what_cannot_be_looked_up_now_is_looked_up_later(it):
    """Until then the room is not direct, and not left either."""
    it.server.on(
        "GET",
        "/state/m.room.member/%40bot",
        LinkBroken("cut", maybe_taken=False),
        failure(502),
        HttpAnswer(200, joined_after(OWNER)),
    )
    it.invites.learn({"rooms": invitation("!a", invited_by(OWNER))})
    async with it.working():
        await anyio.sleep(0.5)
        assert not it.rooms.was_made_for("!a", OWNER)
        await anyio.sleep(60)

    assert it.rooms.was_made_for("!a", OWNER)
    assert it.server.asked("POST", "/leave$") == []


async def test_the_answer_that_brings_the_room_says_it_before_its_first_words_are_read(tmp_path):
    """No further question is needed, so the owner's first words are private, and a liar's are not."""
    server = ScriptedHomeserver()
    channel = scripted_channel(server, tmp_path, settings={"allow_from": [OWNER], "group_policy": "open"})
    inbox = MemoryInbox()
    inbox.positions["next_batch"] = "s0"
    server.on("POST", "/join$", failure(502))  # it was done, and its answer was lost
    server.sync_body()
    server.sync_body(rooms=invitation("!true", invited_by(OWNER)))
    server.sync_body(rooms=invitation("!lie", invited_by(OWNER)))
    for room_id, sender in (("!true", OWNER), ("!lie", MALLORY)):
        events = [member(OWNER), joined_after(sender), text(f"${room_id[1:]}", "hello", OWNER)]
        server.sync_body(
            rooms={
                "join": {
                    room_id: {
                        "summary": {"m.joined_member_count": 2, "m.invited_member_count": 0},
                        "timeline": {"events": events, "limited": False, "prev_batch": "p"},
                    }
                }
            }
        )
    async with running(channel, inbox):
        await inbox.until_accepted(2)

    assert [one.audience.value for one in inbox.accepted] == ["direct", "group"]


async def test_invitations_to_a_server_that_hangs_hold_up_nobody(it):
    """The owner's is followed at once, and a guest's whose own others hang not; nor does a guest use all tries."""

    class Hanging(ScriptedHomeserver):
        open = 0
        most = 0

        async def request(self, method, path, body=None, **options):
            if path.endswith("/join") and "evil" in path:
                self.open += 1
                self.most = max(self.most, self.open)
                try:
                    await anyio.sleep(options["timeout_s"])
                finally:
                    self.open -= 1
                raise LinkBroken("the server did not answer in time", maybe_taken=True)
            return await super().request(method, path, body, **options)

    server = it.server = Hanging()
    it.invites._homeserver = server
    server.on("POST", "/join$", HttpAnswer(200, {}))
    server.on("GET", "/state/m.room.member/%40bot", HttpAnswer(200, joined_after(OWNER)))
    server.on("PUT", "m.direct$", HttpAnswer(200, {}))
    for number in range(50):
        it.invites.learn({"rooms": invitation(f"!evil{number}", invited_by(GUEST))})
    async with it.working():
        await anyio.sleep(1)
        it.invites.learn({"rooms": invitation("!mine", invited_by(OWNER))})
        it.invites.wake()
        with anyio.fail_after(1.0):
            while not it.rooms.was_made_for("!mine", OWNER):
                await anyio.sleep(0.01)
        await anyio.sleep(600)

    assert 2 <= server.most <= 4


async def test_the_owner_is_not_held_up_by_invitations_in_the_owners_name(it):
    """Forged or not, what hangs is tried again later than what is new."""

    class Hanging(ScriptedHomeserver):
        async def request(self, method, path, body=None, **options):
            if path.endswith("/join") and "evil" in path:
                await anyio.sleep(options["timeout_s"])
                raise LinkBroken("the server did not answer in time", maybe_taken=True)
            return await super().request(method, path, body, **options)

    server = it.server = Hanging()
    it.invites._homeserver = server
    server.on("POST", "/join$", HttpAnswer(200, {}))
    server.on("GET", "/state/m.room.member/%40bot", HttpAnswer(200, joined_after(OWNER)))
    server.on("PUT", "m.direct$", HttpAnswer(200, {}))
    for number in range(4):
        it.invites.learn({"rooms": invitation(f"!evil{number}", invited_by(OWNER))})
    async with it.working():
        await anyio.sleep(1)
        it.invites.learn({"rooms": invitation("!mine", invited_by(OWNER))})
        it.invites.wake()
        with anyio.fail_after(1.0):
            while not it.rooms.was_made_for("!mine", OWNER):
                await anyio.sleep(0.01)
