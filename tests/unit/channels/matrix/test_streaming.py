"""How often an unfinished answer is shown, and what becomes of it, on virtual time."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager

import anyio
import pytest

from agent_core.messages import MessageContext, SessionKey
from channels.base import AckState, ChannelUnavailable
from channels.matrix.client.homeserver import HttpAnswer, LinkBroken
from channels.matrix.config import StreamingConfig
from channels.matrix.send.previews import ELLIPSIS, MAX_BYTES, Pace, StreamingPreview
from channels.matrix.send.reactions import MIN_INTERVAL_S, SIGNS, AckReactions
from tests.clock import LoopClock
from tests.doubles.homeserver import ScriptedHomeserver, failure

pytestmark = pytest.mark.virtual_time
ROOM, BOT = "!room:hs.test", "@bot:hs.test"
SESSION = SessionKey("matrix", ROOM)
ASKED = MessageContext(route={"event_id": "$q", "sender": "@alice:hs.test", "direct": True})


# ── the pace ──
def shown_at(settings, *, seconds, refused=()):
    """The moments at which something is shown, if there is always something new."""
    pace, found = Pace(settings, 0.0), []
    for tick in range(int(seconds * 20)):
        now = tick / 20
        if pace.due(now):
            if len(found) in refused and now not in found:
                refused = tuple(one for one in refused if one != len(found))
                pace.slow_down(now, 3.0)
                continue
            pace.note_display(now)
            found.append(now)
    return found


def test_the_first_look_comes_after_a_while_and_then_more_rarely():
    """Not at once (a quick answer needs no preview), growing pauses, and one event more than edits."""
    found = shown_at(StreamingConfig(enabled=True), seconds=600)
    pauses = [later - earlier for earlier, later in itertools.pairwise(found)]

    assert len(found) == 1 + 8
    assert found[0] >= 1.0
    assert pauses == sorted(pauses)
    assert 20 < found[-1] < 120


def test_a_refusal_slows_down():
    """The pause is at least doubled, and at least as long as the server asks."""
    plain = shown_at(StreamingConfig(enabled=True), seconds=600)
    slowed = shown_at(StreamingConfig(enabled=True), seconds=600, refused=(2,))

    assert slowed[:2] == plain[:2]
    assert slowed[2] - plain[2] >= 3.0
    assert slowed[3] - slowed[2] >= 2 * (plain[2] - plain[1])


# ── unfinished answers ──
class Sender:
    """What `Sending` does with unfinished answers; ``errors`` are raised first."""

    def __init__(self, *errors, delay_s=0.0):
        self.errors = list(errors)
        self.delay_s = delay_s
        self.looks = []
        self.events = {}
        self.redacted = []
        self.looked_for = []

    async def show(self, message, name, previewed):
        await anyio.sleep(self.delay_s)
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        self.looks.append((name, message.text, previewed))
        return self.events.setdefault(name, f"$e{len(self.events)}")

    async def redact_preview(self, preview):
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        self.looked_for.append((preview.session.conversation, preview.id))

    async def redact(self, room_id, event_id, name):
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        self.redacted.append((room_id, event_id))


@asynccontextmanager
async def showing(sender, **settings):
    shown = StreamingPreview("matrix", BOT, StreamingConfig(enabled=True, **settings), LoopClock())
    async with anyio.create_task_group() as group:
        group.start_soon(shown.run, sender)
        yield shown
        group.cancel_scope.cancel()


async def speak(shown, seconds, *, start=0):
    for number in range(int(seconds * 10)):
        shown.update(SESSION, "word " * (start + number + 1))
        await anyio.sleep(0.1)


async def test_looks_go_into_one_event():
    """The first makes it, the others edit it, each with a name of its own and an ellipsis."""
    sender = Sender()
    async with showing(sender) as shown:
        shown.note_question(SESSION, ROOM, ASKED)
        await speak(shown, 20)
        event_id = await shown.final_event_id(ASKED, sender)
        await anyio.sleep(60)

    names, texts, previewed = zip(*sender.looks, strict=True)
    assert len(set(names)) == len(names) >= 5
    assert previewed == (None, *["$e0"] * (len(names) - 1))
    assert all(text.endswith(ELLIPSIS) for text in texts)
    assert event_id == "$e0"


async def test_nothing_is_shown_after_the_end():
    """A look that is on its way is waited for, and none follows: it would hide the finished answer."""
    sender = Sender(delay_s=5.0)
    async with showing(sender) as shown:
        shown.note_question(SESSION, ROOM, ASKED)
        await speak(shown, 2)
        before = len(sender.looks)
        assert await shown.final_event_id(ASKED, sender) == "$e0"
        settled = len(sender.looks)
        shown.done("$q")
        shown.update(SESSION, "too late")
        await anyio.sleep(60)

    assert (before, settled, len(sender.looks)) == (0, 1, 1)


async def test_a_look_of_which_nobody_knows_is_repeated_before_the_end():
    """Under the same name, so that it cannot arrive later than the answer; if that fails, the answer waits."""
    sender = Sender(None, ChannelUnavailable("cut"), ChannelUnavailable("still"), None)
    async with showing(sender) as shown:
        shown.note_question(SESSION, ROOM, ASKED)
        await speak(shown, 3)
        with pytest.raises(ChannelUnavailable):
            await shown.final_event_id(ASKED, sender)
        assert await shown.final_event_id(ASKED, sender) == "$e0"

    assert len(sender.looks) == 2


@pytest.mark.parametrize("stage", [AckState.FAILED, AckState.DONE])
async def test_a_torso_is_taken_back(stage):
    """A while after the end of a turn without an answer; a failure to do so is tried again, and not for ever."""
    sender = Sender()
    async with showing(sender) as shown:
        shown.note_question(SESSION, ROOM, ASKED)
        await speak(shown, 3)
        sender.errors = [ChannelUnavailable("away"), None]
        shown.end_preview(ROOM, ASKED, stage)
        await anyio.sleep(2)
        assert sender.redacted == []
        await anyio.sleep(300)

    assert sender.redacted == [(ROOM, event_id) for event_id in reversed(sender.events.values())]
    assert sender.redacted[-1] == (ROOM, "$e0")


async def test_what_another_life_has_shown_is_looked_for():
    """Of a question that was taken back nothing is known any more: looked for, again after a failure, not for ever."""
    sender = Sender()
    sender.errors = [ChannelUnavailable("away"), None]
    kept = MessageContext(left_over="$gone")
    async with showing(sender) as shown:
        shown.end_preview(ROOM, kept, AckState.FAILED)
        await anyio.sleep(60)
        found = list(sender.looked_for)
        sender.errors = [ChannelUnavailable("away")] * 100
        shown.end_preview(ROOM, MessageContext(left_over="$other"), AckState.FAILED)
        await anyio.sleep(600)

    assert [(room, "$gone" in name) for room, name in found] == [(ROOM, True)]
    assert 90 < len(sender.errors) < 100
    assert sender.redacted == []


async def test_a_turn_that_ends_before_it_shows_anything_is_looked_after_too():
    """Begun again after a kill and taken back before its first piece: what was shown before the kill is looked for."""
    sender = Sender()
    async with showing(sender) as shown:
        await anyio.sleep(1)  # it waits for news
        shown.note_question(SESSION, ROOM, ASKED)
        shown.end_preview(ROOM, ASKED, AckState.FAILED)
        await anyio.sleep(60)

    assert [room for room, _ in sender.looked_for] == [ROOM]


async def test_a_turn_that_begins_again_goes_on_with_its_event():
    """A retry after a wait edits the same event, and is not taken back meanwhile."""
    sender = Sender()
    async with showing(sender) as shown:
        shown.note_question(SESSION, ROOM, ASKED)
        await speak(shown, 3)
        shown.end_preview(ROOM, ASKED, AckState.FAILED)
        shown.note_question(SESSION, ROOM, ASKED)
        await speak(shown, 3, start=100)
        await anyio.sleep(60)

    assert {previewed for _, _, previewed in sender.looks} == {None, "$e0"}
    assert sender.redacted == []


async def test_a_long_answer_is_shown_when_it_is_finished():
    """What would make an edit too large for its event is not shown before."""
    sender = Sender()
    async with showing(sender) as shown:
        shown.note_question(SESSION, ROOM, ASKED)
        shown.update(SESSION, "x" * (MAX_BYTES + 1))
        await anyio.sleep(30)

    assert sender.looks == []


# ── marks ──
async def marked(server, *stages, wait_s=60.0):
    marks = AckReactions(server)
    async with anyio.create_task_group() as group:
        group.start_soon(marks.run)
        for stage in stages:
            marks.show(ROOM, "$q", stage)
            await anyio.sleep(wait_s)
        group.cancel_scope.cancel()
    return marks


def keys(server):
    calls = server.asked("PUT", "/send/m.reaction/")
    return [call.body["m.relates_to"]["key"] for call in calls]


async def test_marks_follow_each_other():
    """The later mark takes the earlier one's place; names are the same in every process."""
    paths = []
    for _ in range(2):
        server = ScriptedHomeserver()
        server.on(
            "PUT",
            "/send/m.reaction/",
            HttpAnswer(200, {"event_id": "$m1"}),
            HttpAnswer(200, {"event_id": "$m2"}),
        )
        server.on("PUT", "/redact/", HttpAnswer(200, {"event_id": "$m3"}))
        await marked(server, AckState.RECEIVED, AckState.RECEIVED, AckState.DONE)
        assert keys(server) == [SIGNS[AckState.RECEIVED], SIGNS[AckState.DONE]]
        assert "/redact/%24m1/" in server.asked("PUT", "/redact/")[0].path
        paths.append([call.path for call in server.calls])

    assert paths[0] == paths[1]


async def test_marks_wait_when_asked_to_and_give_up_at_last():
    """A pause that is asked for is kept; a server that stays away costs a few tries and nothing else."""
    server = ScriptedHomeserver()
    busy = HttpAnswer(429, {"errcode": "M_LIMIT_EXCEEDED"}, retry_after_s=7.0)
    server.on(
        "PUT",
        "/send/m.reaction/",
        busy,
        LinkBroken("cut", maybe_taken=True),
        HttpAnswer(200, {"event_id": "$m1"}),
    )
    await marked(server, AckState.RECEIVED, wait_s=200.0)
    assert len(keys(server)) == 3

    away = ScriptedHomeserver()
    away.on("PUT", "/send/m.reaction/", failure(502))
    await marked(away, AckState.RECEIVED)
    assert len(keys(away)) == 4


@pytest.mark.parametrize("refused", ["mark", "answer"])
async def test_an_answer_never_waits_behind_marks(refused):
    """Once the server refuses a mark or an answer, what it takes is for answers: no mark is sent for a minute."""
    server = ScriptedHomeserver()
    busy = HttpAnswer(429, {"errcode": "M_LIMIT_EXCEEDED"}, retry_after_s=5.0)
    fine = HttpAnswer(200, {"event_id": "$m"})
    server.on("PUT", "/send/m.reaction/", *([busy] if refused == "mark" else []), fine)
    server.on("PUT", "/redact/", fine)
    marks = AckReactions(server)
    async with anyio.create_task_group() as group:
        group.start_soon(marks.run)
        marks.show(ROOM, "$first", AckState.RECEIVED)
        await anyio.sleep(1)
        if refused == "answer":
            marks.rest()
        for number in range(20):
            marks.show(ROOM, f"$q{number}", AckState.RECEIVED)
            marks.show(ROOM, f"$q{number}", AckState.DONE)
        marks.show(ROOM, "$first", AckState.DONE)
        await anyio.sleep(MIN_INTERVAL_S - 5)
        assert len(keys(server)) == 1
        await anyio.sleep(60)
        assert keys(server)[1:] == [SIGNS[AckState.RECEIVED]] * (refused == "mark") + [SIGNS[AckState.DONE]]
        marks.show(ROOM, "$later", AckState.RECEIVED)
        await anyio.sleep(1)
        assert keys(server)[-1] == SIGNS[AckState.RECEIVED]
        group.cancel_scope.cancel()


async def test_marks_leave_seven_of_ten_events_to_answers():
    """Before any refusal; at an ordinary pace each question has its marks."""
    server, fine = ScriptedHomeserver(), HttpAnswer(200, {"event_id": "$m"})
    for path in ("/send/m.reaction/", "/redact/"):
        server.on("PUT", path, fine)
    marks = AckReactions(server)
    async with anyio.create_task_group() as group:
        group.start_soon(marks.run)
        for number in range(20):
            marks.show(ROOM, f"$q{number}", AckState.RECEIVED)
            marks.note_event()  # an answer
            marks.show(ROOM, f"$q{number}", AckState.DONE)
            await anyio.sleep(0.1)
        assert len(server.calls) <= 3
        await anyio.sleep(2 * MIN_INTERVAL_S)
        shown = len(keys(server))
        for number in range(5):
            marks.show(ROOM, f"$later{number}", AckState.RECEIVED)
            await anyio.sleep(3)
            marks.note_event()
            marks.show(ROOM, f"$later{number}", AckState.DONE)
            await anyio.sleep(20)
        assert keys(server)[shown:] == [SIGNS[AckState.RECEIVED], SIGNS[AckState.DONE]] * 5
        group.cancel_scope.cancel()


async def test_a_storm_of_marks_is_bounded():
    """While nothing can be sent, at most some hundred wait; what has no event is none."""
    marks = AckReactions(ScriptedHomeserver())
    for number in range(2000):
        marks.show(ROOM, f"${number}", AckState.RECEIVED)
    marks.show(ROOM, "", AckState.DONE)
    marks.show(ROOM, "no id", AckState.DONE)

    assert len(marks._waiting) == 500
