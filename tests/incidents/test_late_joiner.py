"""
In a group whose past is closed to newcomers (history visibility ``joined`` or ``invited``) somebody came late, and
the bot told them what was said before they came: out of the history, the talk of the group and by search.
"""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest

from agent_core.memory.manager import MemoryManager
from agent_core.messages import Attachment, Audience, Background, InboundMessage, Sender, SessionKey
from agent_core.models import MemoryScope, Message, Purpose, ScopeKind, Session
from agent_core.storage.jsonl_memory import JsonlMemory
from agent_core.storage.search_index import SearchIndex
from agent_core.tools.attachment_tools import ConversationFiles
from agent_core.tools.search_history import SearchHistoryTool
from channels.matrix.events.group_context import GroupContext
from channels.matrix.rooms.join_times import MAX_PEOPLE, JoinTimes
from gateway.routing.access import Access
from gateway.store.model import Turn
from gateway.turns.user_input import question_text, session_of, user_lines
from tests.clock import EPOCH, ManualClock
from tests.doubles.homeserver import member, text
from tests.doubles.in_memory_storage import InMemoryMemory
from tests.integration.matrix_bot import call
from tests.integration.matrix_house import open_house
from tests.scripted_rooms import MENTION, Desk
from tests.unit.channels.matrix.test_inbound import ALICE, BOT, ROOM, rooms_with

CAROL = "@carol:hs.test"
SECRET = "the code of the safe is 1234"


def mention(user_id):
    return {"m.mentions": {"user_ids": [user_id]}}


async def until_answered(there, peer, room, text, count, *, seen_by):
    await call(peer.send, room, text, **mention(there.user_id))
    await there.answers(seen_by, room, count)
    return "\n".join(message.content for message in there.model.requests[-1])


@pytest.mark.integration
@pytest.mark.parametrize(("visibility", "shown"), [("joined", False), ("invited", False), ("shared", True)])
async def test_history_begins_with_the_joining(
    synapse, fresh_credentials, fresh_user, tmp_path, visibility, shown
):
    """The newcomer's prompt has nothing of before, but all of since; the others' prompts have everything; also later."""
    alice, carol, dave = [await call(fresh_user, name) for name in ("alice", "carol", "dave")]
    bot = fresh_credentials("bot")
    answers = [f"answer {number}" for number in range(20)]
    home = tmp_path / "home"
    async with open_house(synapse.url, bot, home, *answers, allow=[alice, carol]) as there:
        room = await there.room(alice, dave, direct=False)
        state = f"/rooms/{room}/state/m.room.history_visibility"
        await call(alice.call, "PUT", state, {"history_visibility": visibility})
        await call(alice.send, room, "mere talk of before")
        await until_answered(there, alice, room, SECRET, 1, seen_by=alice)
        await call(alice.send, room, "more talk of before")
        await call(alice.invite, room, carol.user_id)
        await call(carol.join, room)
        hers = await until_answered(there, carol, room, "what did you say?", 2, seen_by=alice)
        await until_answered(there, alice, room, "a word for all: blue", 3, seen_by=alice)
    async with open_house(synapse.url, bot, home, *answers, allow=[alice, carol]) as there:
        later = await until_answered(there, carol, room, "and what was the code?", 4, seen_by=alice)
        old = await until_answered(there, alice, room, "and what was the code?", 5, seen_by=alice)

    assert ("1234" in hers, "1234" in later) == (shown, shown)
    assert "more talk of before" not in hers
    assert ("mere talk of before" in hers) is shown
    assert "a word for all: blue" in later
    assert "what did you say?" in later
    assert "1234" in old


@pytest.mark.integration
async def test_who_comes_back_begins_anew_and_who_changes_a_name_does_not(
    synapse, fresh_credentials, fresh_user, tmp_path
):
    """What was said while Carol was away is not shown to her; a new name of hers changes nothing."""
    alice, carol, dave = [await call(fresh_user, name) for name in ("alice", "carol", "dave")]
    bot = fresh_credentials("bot")
    answers = [f"answer {number}" for number in range(20)]
    async with open_house(synapse.url, bot, tmp_path / "home", *answers, allow=[alice, carol]) as there:
        room = await there.room(alice, dave, carol, direct=False)
        await call(
            alice.call,
            "PUT",
            f"/rooms/{room}/state/m.room.history_visibility",
            {"history_visibility": "joined"},
        )
        await call(carol.leave, room)
        await until_answered(there, alice, room, SECRET, 1, seen_by=alice)
        await call(alice.invite, room, carol.user_id)
        await call(carol.join, room)
        await until_answered(there, carol, room, "I am back", 2, seen_by=alice)
        await call(carol.call, "PUT", f"/profile/{carol.user_id}/displayname", {"displayname": "Carola"})
        later = await until_answered(there, carol, room, "and now?", 3, seen_by=alice)

    assert "1234" not in later
    assert "I am back" in later
    assert "answer 1" in later


# ── since when somebody is there ──
def closed_room():
    rooms = rooms_with(ALICE)
    rooms.get(ROOM).visibility = "joined"
    return rooms


class Clock:
    """Our own clock, which may stand still or be wrong."""

    def __init__(self, rooms):
        self.now = EPOCH
        self.joinings = JoinTimes(BOT, rooms)

    def said(self):
        return self.joinings.stamp(ROOM, self.now)

    def comes(self, *, before="invite", membership="join", person=CAROL):
        self.joinings.note_membership(ROOM, member(person, membership, before=before), self.now)

    def since(self, person=CAROL):
        return self.joinings.visible_from(ROOM, person)


@pytest.mark.parametrize("step_s", [0, 1, -5, -3_000_000])
def test_the_order_is_that_of_our_own_server(step_s):
    """What came before the joining is older than it and what came after younger, whatever our clock does meanwhile."""
    one = Clock(closed_room())
    before = [one.said(), one.said()]
    one.now += timedelta(seconds=step_s)
    one.comes()
    after = one.said()

    assert before[0] < before[1] < one.since()
    assert after > one.since() or step_s == -3_000_000
    assert one.since(ALICE) is None


def test_what_became_readable_late_is_as_old_as_it_is():
    """A message of before the joining whose key comes after it is still one of before."""
    one = Clock(closed_room())
    seen_first = one.now.timestamp()
    one.comes()

    assert one.joinings.stamp(ROOM, one.now, late_since=seen_first) < one.since() < one.said()


async def test_late_talk_is_told_to_nobody():
    """Nobody can tell who has come since it was said."""
    desk = Desk(rooms_with(ALICE, CAROL))
    await desk.conversation.begin(ROOM, text("$1", "late"), seen_at=1.0)
    await desk.read(text("$2", "in time"))
    question = await desk.read(text("$3", "what?", **MENTION))

    assert [line.text for line in question.background] == ["in time"]


def test_who_was_seen_to_leave_comes_anew_whatever_the_event_says():
    """A server can make a joining look like a change of a name, by forking off from the time before the leaving."""
    one = Clock(closed_room())
    one.comes()
    first = one.since()
    one.comes(membership="leave", before="join")
    secret = one.said()
    one.comes(before="join")
    assert one.since() > secret > first
    again = one.since()
    one.comes(before="join")
    assert one.since() == again


def test_joinings_survive_a_restart():
    """They are committed with what was read, and only if there is something new."""
    one, again = Clock(closed_room()), Clock(closed_room())
    one.comes()
    [kept] = one.joinings.position().values()
    with one.joinings.committing():
        pass
    again.joinings.load(kept)

    assert again.since() == one.since()
    assert one.joinings.position() == {}
    again.joinings.load("nonsense")


@pytest.mark.parametrize("how", ["gap", "crowd", "return"])
def test_what_may_have_been_missed_begins_everybody_s_view_anew(how):
    """A gap that stays open, more joinings than are remembered, and a return of the bot itself."""
    one = Clock(closed_room())
    secret = one.said()
    if how == "gap":
        one.joinings.note_missed_joins(ROOM, one.now)
    elif how == "return":
        one.joinings.forget(ROOM)
        one.joinings.note_join(ROOM, one.now)
    else:
        for number in range(MAX_PEOPLE + 1):
            one.comes(person=f"@p{number}:hs.test")

    assert one.since(ALICE) > secret
    assert one.since() > secret


def test_rooms_whose_past_is_open_have_no_stamps():
    """What was said there may be read by everybody who comes."""
    one = Clock(rooms_with(ALICE))
    one.comes()

    assert (one.said(), one.since()) == (None, None)


def test_a_room_goes_on_for_those_who_were_in_the_one_before():
    """After an upgrade Alice sees what she saw; Carol, who came to the new room before the bot, begins with the bot."""
    rooms = closed_room()
    rooms.update(
        {"rooms": {"join": {"!new": {"state": {"events": [member(BOT), member(ALICE), member(CAROL)]}}}}}
    )
    rooms.get("!new").visibility = "joined"
    one = Clock(rooms)
    secret = one.said()
    rooms.successors.follow(ROOM, "!new")
    one.joinings.note_join("!new", one.now)

    assert one.joinings.visible_from("!new", ALICE) is None
    assert one.joinings.visible_from("!new", CAROL) > secret


# ── what is shown ──
def test_talk_stays_for_those_who_have_heard_it():
    """A newcomer's question takes along only what they have heard, and leaves the rest to the others."""
    talk = GroupContext(messages=10, chars=1000)
    place = (ROOM, "")
    for number, words in enumerate(["before", "after"]):
        if words == "after":
            talk.note_join(ROOM, CAROL)
        talk.remember(place, f"${number}", Background(kind="talk", sender=ALICE, text=words))

    assert [line.text for line in talk.lines_for(place, CAROL, keep=False)] == ["after"]
    assert [line.text for line in talk.lines_for(place, ALICE, keep=False)] == ["before"]
    assert talk.lines_for(place, ALICE, keep=False) == ()


SESSION = "matrix/!room%3ahs.test/shared"
SCOPE = MemoryScope(ScopeKind.ROOM, "matrix/!room%3ahs.test")
FILE = Attachment(name="plan.txt", media_type="text/plain", size_bytes=1, path="x", sha256="a" * 64)


def in_room(native_id, context, **fields):
    return InboundMessage(
        channel="matrix", account=BOT, native_id=native_id, session=SessionKey.parse(SESSION),
        sender=Sender(address=ALICE, verified=True), text="hm", received_at=EPOCH, audience=Audience.GROUP,
        context=context, **fields,
    )  # fmt: skip


def turn_of(*messages):
    rows = tuple(
        SimpleNamespace(id=number, message=message, accepted_at=message.received_at)
        for number, message in enumerate(messages)
    )
    return Turn("t", messages[0].session, 1, rows, 1, 0)


def line(number, text, **fields):
    at = EPOCH + timedelta(hours=number)
    return Message(role="user", content=text, id=f"t{number}.0", timestamp=at, scope=str(SCOPE), **fields)


@pytest.mark.parametrize(
    ("since", "shown"), [(None, True), (EPOCH, True), (EPOCH + timedelta(minutes=30), False)]
)
async def test_the_summary_is_for_those_who_were_there_from_the_beginning(since, shown):
    """Nobody can tell from which words a summary was made."""
    memory = InMemoryMemory(clock=ManualClock())
    await memory.append_message(SESSION, line(0, "old"), line(1, "new"))
    await memory.save_consolidation(SESSION, summary="SUMMARY", cursor=1)
    built = await MemoryManager(memory).build_messages(SESSION, "sys", "q", scope=SCOPE, since=since)

    assert ("SUMMARY" in built[0].content) is shown
    assert "new" in [message.content for message in built]


async def test_search_and_files_begin_with_the_joining(tmp_path):
    """What was said before is neither found nor shown beside what is found; its files cannot be read."""
    memory = JsonlMemory(tmp_path, clock=ManualClock())
    lines = [line(0, "secret apples", attachments=(FILE,)), line(1, "apples again"), line(2, "nothing")]
    await memory.append_message(SESSION, *lines)
    index = SearchIndex(tmp_path / "search.db", memory.layout)
    await index.update_all()
    since = EPOCH + timedelta(minutes=30)
    found = []
    for start in (None, since):
        tool = SearchHistoryTool(index, SESSION, scope=SCOPE, clock=ManualClock(), not_before=start)
        for query in ("apples", "secret"):
            found.append((await tool.execute(query=query)).content)
        session = Session(SessionKey.parse(SESSION), SCOPE, Audience.GROUP, since=start)
        found.append(await ConversationFiles(session, memory).find(FILE.id))
    await index.aclose()

    assert ["secret apples" in str(one) for one in found[:2]] == [True, True]
    assert found[2] == FILE
    assert "apples again" in found[3]
    assert not any("secret apples" in str(one) for one in found[3:])
    assert found[5] is None


def test_a_job_sees_what_its_person_sees():
    """What somebody schedules is run with what they may see; a turn of several with what all of them may see."""
    since = [EPOCH, EPOCH + timedelta(hours=1)]
    rows = [in_room(f"${number}", {"visible_from": at.isoformat()}) for number, at in enumerate(since)]
    turn = turn_of(*rows, in_room("$2", {}))

    assert session_of(turn, Access([], {}), Purpose.CHAT).since == since[1]
    assert (
        session_of(turn_of(in_room("$j", rows[1].context, kind="job")), Access([], {}), Purpose.JOB).since
        == since[1]
    )


def test_a_line_of_the_history_holds_nothing_of_before():
    """What Alice quotes was perhaps said before Carol came: it is not in the line, which has its place in the order."""
    quoted = (Background(kind="quoted", sender=ALICE, text="1234"),)
    at = EPOCH + timedelta(hours=2)
    closed, open_ = [
        user_lines(turn_of(in_room("$1", context, background=quoted)), Access([], {}))[0]
        for context in ({"seen_at": at.isoformat()}, {})
    ]

    assert ("1234" in closed.content, closed.timestamp) == (False, at)
    assert ("1234" in open_.content, open_.timestamp) == (True, EPOCH)


def test_a_turn_of_several_shows_no_background_of_one_of_them():
    """What Alice's question points to is not shown beside Carol's, who came later."""
    quoted = (Background(kind="quoted", sender=ALICE, text="1234"),)
    hers = in_room("$1", {}, background=quoted)
    both = [
        question_text([hers, in_room("$2", context)]) for context in ({"visible_from": EPOCH.isoformat()}, {})
    ]

    assert ["1234" in text for text in both] == [False, True]
