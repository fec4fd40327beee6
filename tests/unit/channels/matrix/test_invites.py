"""Invitations and hints against a scripted homeserver, on virtual time."""

import json
from contextlib import asynccontextmanager

import anyio
import pytest

from channels.matrix.client.homeserver import HttpAnswer, LinkBroken
from channels.matrix.rooms.invites import MAX_OPEN, Invites
from channels.matrix.rooms.room_state import Rooms
from channels.matrix.send.typing_and_receipts import TypingAndReceipts
from tests.clock import LoopClock
from tests.doubles.homeserver import ScriptedHomeserver, failure, member

pytestmark = pytest.mark.virtual_time
BOT, ALICE, MALLORY = "@bot:hs.test", "@alice:hs.test", "@mallory:hs.test"


class Setup:
    def __init__(self):
        self.server = ScriptedHomeserver()
        own = member(BOT, before="invite")
        own["unsigned"]["prev_sender"] = ALICE
        self.server.on("GET", "/state/m.room.member/", HttpAnswer(200, own))
        self.rooms = Rooms(BOT)
        self.saved = []
        self.invites = self.fresh()

    def fresh(self):
        return Invites(
            self.server, self.rooms, LoopClock(), user_id=BOT, may_invite=lambda inviter: inviter == ALICE
        )

    async def save(self, dump):
        self.saved.append(json.loads(dump()))

    @asynccontextmanager
    async def working(self):
        async with anyio.create_task_group() as group:
            group.start_soon(self.invites.run, self.save)
            yield
            group.cancel_scope.cancel()


@pytest.fixture
def it():
    return Setup()


def invitation(*room_ids, inviter=ALICE, **content):
    state = [
        {"type": "m.room.member", "state_key": inviter, "sender": inviter, "content": {"membership": "join"}},
        {
            "type": "m.room.member", "state_key": BOT, "sender": inviter,
            "content": {"membership": "invite", **content},
        },
    ]  # fmt: skip
    return {"rooms": {"invite": {room_id: {"invite_state": {"events": state}} for room_id in room_ids}}}


async def test_a_friend_is_followed_with_an_object_as_body(it):
    """The join is posted with ``{}``, and the invitation is over."""
    it.server.on("POST", "/join$", HttpAnswer(200, {}))
    assert it.invites.learn(invitation("!a"))
    async with it.working():
        await anyio.sleep(1)

    assert [call.body for call in it.server.asked("POST", "/join$")] == [{}]
    assert it.saved[-1] == []


async def test_a_strangers_is_left_open_and_refused_after_two_weeks(it):
    """No join is tried, over a restart too; what exceeds a few of one inviter is declined at once."""
    it.server.on("POST", "/leave$", HttpAnswer(200, {}))
    it.invites.learn(invitation("!a", "!b", "!c", "!d", inviter=MALLORY, is_direct=True))
    assert [room for room, *_ in it.invites.pop_waiting()] == ["!a", "!b", "!c"]
    assert it.invites.pop_waiting() == []
    async with it.working():
        await anyio.sleep(10)
    assert [call.path for call in it.server.asked("POST", "/leave$")] == [
        "/_matrix/client/v3/rooms/%21d/leave"
    ]
    kept, it.invites = it.invites.dump(), it.fresh()
    it.invites.load(kept)
    async with it.working():
        await anyio.sleep(13 * 86_400)
        assert len(it.server.asked("POST", "/leave$")) == 1
        await anyio.sleep(2 * 86_400)
    assert len(it.server.asked("POST", "/leave$")) == 4
    assert it.server.asked("POST", "/join$") == []


async def test_a_stranger_whom_the_owner_lets_in_is_followed(it):
    """As soon as the homeserver answers the next time; an invitation that is repeated is the same one."""
    it.server.on("POST", "/join$", HttpAnswer(200, {}))
    it.invites.learn(invitation("!a", inviter=MALLORY, is_direct=True))
    it.invites.learn(invitation("!a", inviter=MALLORY, is_direct=True))
    first, second = it.invites.pop_waiting()
    assert first == second
    async with it.working():
        await anyio.sleep(1)
        it.invites._may_invite = lambda _: True
        assert it.invites.learn({})
        it.invites.wake()
        await anyio.sleep(1)
    assert len(it.server.asked("POST", "/join$")) == 1


async def test_a_forged_invitation_of_a_stranger_is_not_kept(it):
    """Negative control: two own membership events of several senders."""
    both = invitation("!a", inviter=MALLORY)
    events = both["rooms"]["invite"]["!a"]["invite_state"]["events"]
    events.append(
        invitation("!a", inviter="@other:hs.test")["rooms"]["invite"]["!a"]["invite_state"]["events"][1]
    )
    it.invites.learn(both)
    assert it.invites.pop_waiting() == []


async def test_a_direct_room_is_marked_in_the_account(it):
    """What else the account calls direct stays."""
    it.server.on("POST", "/join$", HttpAnswer(200, {}))
    it.server.on("GET", "m.direct$", HttpAnswer(200, {ALICE: ["!old"], MALLORY: "odd"}))
    it.server.on("PUT", "m.direct$", HttpAnswer(200, {}))
    it.invites.learn(invitation("!a", is_direct=True))
    async with it.working():
        await anyio.sleep(1)

    [call] = it.server.asked("PUT", "m.direct$")
    assert call.body == {ALICE: ["!old", "!a"], MALLORY: "odd"}


async def test_a_failing_join_is_tried_again_with_growing_pauses(it):
    """Whatever goes wrong, the invitation stays open; hours are not thousands of requests."""
    replies = [
        failure(502),
        LinkBroken("cut", maybe_taken=True),
        failure(429, "M_LIMIT_EXCEEDED"),
        failure(404),
    ]
    it.server.on("POST", "/join$", *replies, *[failure(500, "M_UNKNOWN")] * 40, HttpAnswer(200, {}))
    it.invites.learn(invitation("!a"))
    async with it.working():
        await anyio.sleep(3600)
        assert 10 < len(it.server.asked("POST", "/join$")) < 40
        assert len(it.invites) == 1
        await anyio.sleep(4 * 3600)

    assert len(it.invites) == 0


async def test_what_could_not_be_tried_is_tried_when_the_link_is_up(it):
    """A pause of minutes ends with its reason; one that the server has asked for does not."""
    cut = [LinkBroken("cut", maybe_taken=False)] * 6
    it.server.on("POST", "21a/join$", *cut, HttpAnswer(200, {}))
    it.server.on("POST", "21b/join$", *[failure(500, "M_UNKNOWN")] * 6, HttpAnswer(200, {}))
    it.invites.learn(invitation("!a", "!b"))
    async with it.working():
        await anyio.sleep(65)
        tries = len(it.server.asked("POST", "21a/join$")), len(it.server.asked("POST", "21b/join$"))
        it.invites.link_is_up()
        await anyio.sleep(0.5)
        assert len(it.server.asked("POST", "21a/join$")) == tries[0] + 1
        assert len(it.server.asked("POST", "21b/join$")) == tries[1]


async def test_an_answer_ends_it(it):
    """An invitation that was withdrawn or forbidden is not tried again."""
    it.server.on("POST", "/join$", failure(403, "M_FORBIDDEN"))
    it.invites.learn(invitation("!a"))
    async with it.working():
        await anyio.sleep(3600)

    assert len(it.server.asked("POST", "/join$")) == 1


async def test_open_invitations_survive_and_trust_does_not(it):
    """After a restart the invitation is still open; who is no longer allowed is then refused."""
    it.invites.learn(invitation("!a", is_direct=True))
    it.invites._may_invite = lambda _: True
    it.invites.learn(invitation("!b", inviter=MALLORY))
    kept = it.invites.dump()
    it.invites = it.fresh()
    it.invites.load(kept)
    it.server.on("POST", "/join$", HttpAnswer(200, {}))
    it.server.on("POST", "/leave$", HttpAnswer(200, {}))
    async with it.working():
        await anyio.sleep(60)

    assert [call.path for call in it.server.asked("POST", "/join$")] == ["/_matrix/client/v3/rooms/%21a/join"]
    assert [call.path for call in it.server.asked("POST", "/leave$")] == [
        "/_matrix/client/v3/rooms/%21b/leave"
    ]


async def test_strangers_do_not_keep_a_friend_waiting(it):
    """A flood of strangers' invitations is bounded and does not stand in a friend's way."""

    it.server.on("POST", "/leave$", failure(500, "M_UNKNOWN"))
    it.server.on("POST", "/join$", HttpAnswer(200, {}))
    it.invites.learn(invitation(*[f"!x{n}" for n in range(MAX_OPEN + 100)], inviter=MALLORY))
    assert len(it.invites) == MAX_OPEN
    it.invites.learn(invitation("!a"))
    async with it.working():
        with anyio.fail_after(5):
            while not it.server.asked("POST", "/join$"):
                await anyio.sleep(0.01)

    before = next(n for n, call in enumerate(it.server.calls) if call.path.endswith("/join"))
    assert before < 30


async def test_garbage_is_no_invitation(it):
    """Stripped states of any shape, and positions of any shape, do no harm."""
    for state in (None, {}, {"events": 5}, {"events": [5, {}, {"type": "m.room.member", "state_key": BOT}]}):
        assert not it.invites.learn({"rooms": {"invite": {"!a": {"invite_state": state}}}})
    for text in ("", "{", "5", '[{"x": 1}]', "null", '["a"]'):
        it.invites.load(text)

    assert len(it.invites) == 0


async def test_hints_are_merged_and_never_wait():
    """Many wishes for a slow server become few requests, the newest wish is the last one sent."""
    server = ScriptedHomeserver()
    server.on("PUT", "/typing/", HttpAnswer(200, {}))
    server.on("POST", "/receipt/", LinkBroken("cut", maybe_taken=True), HttpAnswer(200, {}))
    hints = TypingAndReceipts(server, BOT)
    async with anyio.create_task_group() as group:
        group.start_soon(hints.run)
        await anyio.sleep(1)
        for number in range(100):
            hints.typing("!a", on=number % 2 == 1)
            hints.read("!a", f"${number}")
        await anyio.sleep(1)
        hints.read("!a", "$last")
        await anyio.sleep(1)
        group.cancel_scope.cancel()

    typing = server.asked("PUT", "/typing/")
    assert len(typing) < 5
    assert server.asked("POST", "/receipt/")[-1].path.endswith("%24last")


async def test_an_answer_at_once_needs_no_typing():
    """Typing that is taken back before it was shown makes no request; shown typing is always taken back."""
    server = ScriptedHomeserver()
    server.on("PUT", "/typing/", HttpAnswer(200, {}))
    hints = TypingAndReceipts(server, BOT)
    async with anyio.create_task_group() as group:
        group.start_soon(hints.run)
        hints.typing("!quick", on=True)
        hints.typing("!quick", on=False)
        await anyio.sleep(1)
        assert server.calls == []
        hints.typing("!slow", on=True)
        await anyio.sleep(1)
        hints.typing("!slow", on=False)
        await anyio.sleep(1)
        group.cancel_scope.cancel()

    assert [call.body["typing"] for call in server.calls] == [True, False]


async def test_hints_of_too_many_rooms_are_dropped():
    """While nothing can be sent, wishes do not pile up without end."""
    hints = TypingAndReceipts(ScriptedHomeserver(), BOT)
    for number in range(5000):
        hints.typing(f"!{number}", on=True)
        hints.read(f"!{number}", "$1")

    assert len(hints._typing) <= 1000
    assert len(hints._read) <= 1000


async def test_a_room_and_its_threads_share_one_sign():
    """It is shown once for all that is written there, and goes with the last of them."""
    server = ScriptedHomeserver()
    server.on("PUT", "/typing/", HttpAnswer(200, {}))
    hints = TypingAndReceipts(server, BOT)
    async with anyio.create_task_group() as group:
        group.start_soon(hints.run)
        for on, who in [
            (True, "room"),
            (True, "thread"),
            (False, "room"),
            (False, "room"),
            (False, "thread"),
        ]:
            hints.typing("!r", on=on, who=who)
            await anyio.sleep(1)
        group.cancel_scope.cancel()

    assert [call.body["typing"] for call in server.asked("PUT", "/typing/")] == [True, True, False]


async def test_who_ends_without_a_word_keeps_no_sign():
    """A thread whose turn was cut off does not keep the room's sign for ever."""
    server = ScriptedHomeserver()
    server.on("PUT", "/typing/", HttpAnswer(200, {}))
    hints = TypingAndReceipts(server, BOT)
    async with anyio.create_task_group() as group:
        group.start_soon(hints.run)
        hints.typing("!r", on=True, who="cut off")
        await anyio.sleep(60)
        hints.typing("!r", on=True, who="room")
        await anyio.sleep(1)
        hints.typing("!r", on=False, who="room")
        await anyio.sleep(1)
        group.cancel_scope.cancel()

    assert server.asked("PUT", "/typing/")[-1].body["typing"] is False
