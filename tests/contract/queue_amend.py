"""The promises of `Queue` about what changes a message after it was accepted."""

from __future__ import annotations

from dataclasses import replace as replaced
from functools import partial

import pytest

from agent_core.messages import Amendment, Attachment, LineNote, MessageContext, Sender, SessionKey
from gateway.store.model import AcceptedBatch, EffectReceipt, Turn
from gateway.store.states import InboxState, OutboxState
from gateway.store.stores import LostTurn, Queue
from tests.clock import ManualClock
from tests.contract.queue_data import (
    BOT,
    OTHER,
    ROOM,
    accept,
    answer,
    answered,
    claim,
    out,
    pending,
    reply,
    step,
)

ALICE = "@alice:hs.test"
THREAD = SessionKey("matrix", ROOM.conversation, "$thread")
NEIGHBOUR = SessionKey("matrix", f"{ROOM.conversation}0")


def withdraw(native_id: str, *, sender: str = ALICE) -> Amendment:
    return Amendment(kind="withdraw", native_id=native_id, sender=sender)


def replace(native_id: str, text: str, *, sender: str = ALICE) -> Amendment:
    return Amendment(kind="replace", native_id=native_id, sender=sender, text=text)


async def amend(store: Queue, *amendments: Amendment) -> AcceptedBatch:
    return await store.inbox.accept("matrix", BOT, [], {}, amendments)


async def claim_and_answer(store: Queue) -> Turn:
    turn = await claim(store)
    await answer(store, turn)
    return turn


async def stop(store: Queue, native_id: str = "!stop", session: SessionKey = ROOM) -> AcceptedBatch:
    asked = Amendment(kind="stop", native_id=native_id, session=session)
    batch = [pending(native_id, session=session, text="!stop")]
    return await store.inbox.accept("matrix", BOT, batch, {}, [asked])


async def states(store: Queue) -> dict[str, tuple[InboxState, str | None]]:
    rows = await store.inbox.rows(states=list(InboxState), limit=1000)
    return {row.message.native_id: (row.state, row.error) for row in rows}


class AmendContract:
    """Amendments: edited, taken back, left, stopped."""

    async def test_an_edited_message_says_the_new_text(self, store: Queue, clock: ManualClock):
        """What waits and was never in a turn is answered as its sender has put it last."""
        await accept(store, "a", "b")
        await amend(store, replace("a", "better"), replace("b", "forged", sender="@eve:hs.test"))
        turn = await claim(store, merge=5)
        assert [row.message.text for row in turn.rows] == ["better", "text of b"]
        assert turn.head.message.context == MessageContext(route={"event_id": "a"})

    async def test_an_edit_may_come_with_its_message(self, store: Queue, clock: ManualClock):
        """Amendments are applied after the messages of their batch; the returned rows are those after it."""
        rows = await store.inbox.accept(
            "matrix", BOT, [pending("a"), pending("b")], {}, [replace("a", "better"), withdraw("b")]
        )
        assert [(row.message.native_id, row.message.text, row.state) for row in rows] == [
            ("a", "better", InboxState.READY),
            ("b", "", InboxState.IGNORED),
        ]
        assert [row.message.text for row in (await claim(store, merge=5)).rows] == ["better"]

    async def test_an_edit_while_the_model_works_is_asked_again(self, store: Queue, clock: ManualClock):
        """The turn is lost, running or waiting for its next try; all of its messages are asked with the newest text."""
        await accept(store, "a", "b", "c")
        turn = await claim(store, merge=2)
        done = await amend(store, replace("a", "later"), replace("a", "later"))
        assert [(each.turn, each.why) for each in done.stopped] == [(turn.id, "edited")]
        with pytest.raises(LostTurn):
            await store.turns.complete(turn, reply("the old answer"))
        await store.maintenance.recover()
        again = await claim(store, merge=2)
        assert [row.message.text for row in again.rows] == ["later", "text of b"]
        await store.turns.record_step_result(again, step(0, result={}))
        await store.turns.retry(again, "away", delay_s=60, deferral=True)
        assert (
            await amend(store, replace("b", "latest"), replace("a", "no", sender="@eve:hs.test"))
        ).stopped == ()
        third = await claim(store, merge=2)
        assert [row.message.text for row in third.rows] == ["later", "latest"]
        assert await store.turns.steps(third) == []
        await answer(store, third)
        assert [row.message.native_id for row in (await claim(store, merge=2)).rows] == ["c"]

    async def test_whoever_edits_without_end_is_answered_with_the_others(
        self, store: Queue, clock: ManualClock
    ):
        """A few edits are asked again; then the turn runs on, and its answer is followed by the newest text."""
        await accept(store, "a", "b")
        turns = [await claim(store, merge=2)]
        for number in range(50):
            await amend(store, replace("a", f"text {number}"))
            if await store.turns.due_in(ROOM) is not None:
                turns.append(await claim(store, merge=2))
        assert [row.message.text for row in turns[-1].rows] == ["text 2", "text of b"]
        assert len(turns) == 4
        await answer(store, turns[-1], "both")
        note = (await claim_and_answer(store)).head.message
        assert note.text.rpartition("\n")[2] == "text 49"
        assert note.context.notes.edited is None
        assert await store.turns.claim(ROOM) is None

    async def test_a_failing_message_is_given_up_however_often_it_is_edited(
        self, store: Queue, clock: ManualClock
    ):
        """Its attempts begin anew a few times only; what waits for its next try has the newest text."""
        await accept(store, "a")
        for number in range(8):
            turn = await claim(store)
            await store.turns.retry(turn, "no", delay_s=0, deferral=False)
            await amend(store, replace("a", f"text {number}"))
        again = await claim(store)
        assert again.head.message.text == "text 7"
        assert again.attempts == 6

    async def test_the_question_of_an_edit_is_changed_as_what_was_edited(
        self, store: Queue, clock: ManualClock
    ):
        """A later edit and a deletion of the message are those of the question; it is asked once."""
        await store.inbox.accept("matrix", BOT, [pending("a", ignore="not_addressed")], {})
        for text in ("first", "second"):
            await store.inbox.accept("matrix", BOT, [pending("a asked", text=text)], {}, [replace("a", text)])
        turn = await claim(store)
        assert [row.message.text for row in turn.rows] == ["second"]
        assert [each.why for each in (await amend(store, withdraw("a"))).stopped] == ["withdrawn"]
        assert await store.turns.claim(ROOM) is None

    async def test_an_edit_that_names_the_bot_is_meant_for_it(self, store: Queue, clock: ManualClock):
        """The mark that it was not named goes, also if only the name was added; another edit leaves it."""
        await accept(store, "a", "b", context={"not_named": True})
        await amend(
            store,
            replace("a", "text of a").model_copy(update={"names_bot": True}),
            replace("b", "anything else"),
        )
        turn = await claim(store, merge=2)
        assert [bool(row.message.context.not_named) for row in turn.rows] == [False, True]

    async def test_what_was_taken_back_before_an_edit_stays_so(self, store: Queue, clock: ManualClock):
        """Of a turn that is asked again, no message comes back that was withdrawn meanwhile."""
        await accept(store, "a", "b")
        turn = await claim(store, merge=2)
        await store.turns.record_step_result(turn, step(0, result={}))
        await amend(store, withdraw("a"), replace("b", "later"))
        assert [row.message.text for row in (await claim(store, merge=2)).rows] == ["later"]

    async def test_a_model_knows_what_was_done_for_the_text_before(self, store: Queue, clock: ManualClock):
        """The effects of a turn that an edit has ended stay, and the next one is told."""
        await accept(store, "a")
        turn = await claim(store)
        noted = EffectReceipt(ROOM, "send_mail", "write", {}, ALICE, "", "")
        await store.turns.record_step_start(turn, replaced(step(0), receipt=noted))
        await amend(store, replace("a", "later"))
        told = (await claim(store)).head.message.context.notes.done_before
        assert told == {"send_mail with an unknown outcome": 1}

    async def test_what_was_done_is_told_whichever_message_stays(self, store: Queue, clock: ManualClock):
        """Also if the edited message is taken back before the turn is asked again."""
        await accept(store, "a", "b")
        turn = await claim(store, merge=2)
        noted = EffectReceipt(ROOM, "send_mail", "write", {}, ALICE, "", "")
        await store.turns.record_step_start(turn, replaced(step(0), receipt=noted))
        await amend(store, replace("a", "later"), withdraw("a"))
        again = await claim(store, merge=2)
        assert [row.message.native_id for row in again.rows] == ["b"]
        assert again.head.message.context.notes.done_before == {"send_mail with an unknown outcome": 1}

    async def test_an_edit_of_what_failed_is_asked_when_it_is_tried_again(
        self, store: Queue, clock: ManualClock
    ):
        """A person who requeues a dead message asks its newest text, and later edits apply to that."""
        (row,) = await accept(store, "a")
        await store.turns.dead_letter(await claim(store), "no")
        await amend(store, replace("a", "better"))
        assert await store.inbox.requeue(row.id) == ROOM
        await amend(store, replace("a", "best"), replace("a", "better"))
        assert (await claim(store)).head.message.text == "better"

    @pytest.mark.parametrize("when", ["while it ran", "when it had failed"])
    async def test_what_was_taken_back_is_not_tried_again(self, store: Queue, clock: ManualClock, when: str):
        """Its text is gone from the row, which stays; somebody else's deletion changes nothing."""
        a, b = await accept(store, "a", "b")
        turn = await claim(store, merge=2)
        await amend(store, withdraw("b", sender="@eve:hs.test"))
        if when == "while it ran":
            await amend(store, withdraw("a"))
        await store.turns.dead_letter(turn, "no", [out("sorry")])
        if when == "when it had failed":
            await amend(store, withdraw("a"))
        rows = await store.inbox.rows(states=[InboxState.DEAD])
        assert {row.message.native_id: row.message.text for row in rows} == {"a": "", "b": "text of b"}
        assert await store.inbox.requeue(a.id) is None
        assert await store.inbox.requeue(b.id) == ROOM

    @pytest.mark.parametrize("when", ["while it ran", "when it was answered"])
    async def test_the_text_of_what_was_taken_back_goes(self, store: Queue, clock: ManualClock, when: str):
        """Its files too, and the notes about its edits; the row, its state and its answer stay."""
        photo = Attachment(name="p.jpg", media_type="image/jpeg", size_bytes=1, path="attachments/ab/p.jpg")
        await accept(store, "a", "b", attachments=(photo,))
        turn = await claim(store, merge=2)
        if when == "while it ran":
            await store.turns.record_step_result(turn, step(0, result={}))
            await amend(store, withdraw("a"))
            (running,) = [row for row in turn.rows if row.message.native_id == "a"]
            assert running.message.text, "the turn goes on with it"
        await answer(store, turn, "both")
        if when == "when it was answered":
            await amend(store, replace("a", "better"))
            await answer(store, await claim(store))
            await amend(store, replace("a", "best"), withdraw("a"))
        rows = {
            row.message.native_id: row for row in await store.inbox.rows(states=list(InboxState), limit=100)
        }
        gone, stays = rows["a"], rows["b"]
        assert (gone.state, gone.message.text, gone.message.attachments) == (InboxState.ANSWERED, "", ())
        assert (stays.message.text, stays.message.attachments) == ("text of b", (photo,))
        assert not any("bett" in row.message.text or "best" in row.message.text for row in rows.values())
        assert [row.message.text for row in await store.outbox.rows()][-1:] == ["both"]
        while (note := await store.turns.claim(ROOM)) is not None:
            assert note.head.message.text == ""
            assert note.head.message.context.noted.undoes.startswith(turn.id)
            await answer(store, note)

    async def test_an_edit_of_an_answered_message_is_noted(self, store: Queue, clock: ManualClock):
        """Once for each text, and it is a turn of its own."""
        await accept(store, "a")
        await answer(store, await claim(store))
        for text in ("text of a", "better", "better", "best"):
            await amend(store, replace("a", text), replace("a", "forged", sender="@eve:hs.test"))
        notes = [(await claim_and_answer(store)).head.message for _ in range(2)]
        assert [each.text.rpartition("\n")[2] for each in notes] == ["better", "best"]
        assert len({each.context.noted.id for each in notes}) == 2
        assert await store.turns.claim(ROOM) is None

    async def test_a_deletion_of_an_answered_message_is_noted(self, store: Queue, clock: ManualClock):
        """Its own line, while others of its turn stay; the turn with the last one. Told again it changes nothing."""
        await accept(store, "a", "b")
        turn = await claim(store, merge=2)
        await answer(store, turn)
        await amend(store, withdraw("b", sender="@eve:hs.test"))
        gone = []
        for name in ("b", "b", "a"):
            await amend(store, withdraw(name))
            while (note := await store.turns.claim(ROOM)) is not None:
                gone.append((note.head.message.context.noted.undoes, note.head.message.text))
                await answer(store, note)
        assert gone == [(f"{turn.id}.1", ""), (turn.id, "")]

    async def test_a_deletion_while_others_are_answered_is_noted(self, store: Queue, clock: ManualClock):
        """The turn was answered as it was, and its history loses what was taken back."""
        await accept(store, "a", "b")
        turn = await claim(store, merge=2)
        await amend(store, withdraw("a"))
        await answer(store, turn)
        assert (await claim(store)).head.message.context.noted == LineNote(undoes=f"{turn.id}.0")

    @pytest.mark.parametrize("how", ["a stop", "a person's own stop", "a leave"])
    async def test_a_note_stays_when_messages_are_taken_away(
        self, store: Queue, clock: ManualClock, how: str
    ):
        """It is no question: what was deleted would else come back into prompts and searches."""
        await accept(store, "a")
        await answer(store, await claim(store))
        await amend(store, withdraw("a"))
        await accept(store, "b")
        if how == "a leave":
            await amend(store, Amendment(kind="leave", session=ROOM))
        else:
            await amend(store, Amendment(kind="stop", session=ROOM, sender=ALICE if "own" in how else ""))
        assert (await states(store))["b"][0] is InboxState.IGNORED
        assert (await claim(store)).head.message.context.noted is not None

    async def test_what_was_taken_back_is_not_answered(self, store: Queue, clock: ManualClock):
        """A waiting message of the same sender is ignored without its text; somebody else's stays."""
        await accept(store, "a", "b")
        done = await amend(store, withdraw("a"), withdraw("b", sender="@eve:hs.test"), withdraw("unknown"))
        assert done.stopped == ()
        assert await states(store) == {"a": (InboxState.IGNORED, "withdrawn"), "b": (InboxState.READY, None)}
        (gone,) = await store.inbox.rows(states=[InboxState.IGNORED])
        assert (gone.message.text, gone.message.context) == ("", MessageContext())
        assert [row.message.native_id for row in (await claim(store, merge=5)).rows] == ["b"]
        assert await accept(store, "a") == [], "it must not come again"

    async def test_a_running_turn_is_lost_with_its_last_message(self, store: Queue, clock: ManualClock):
        """When all of a turn is taken back it ends there: nothing is sent, and it does not come again."""
        await accept(store, "a", "b", "next")
        turn = await claim(store, merge=2)
        await store.turns.record_step_result(turn, step(0, result={}))
        assert (await amend(store, withdraw("a"))).stopped == ()
        assert (await states(store))["a"] == (InboxState.RUNNING, None)
        (stopped,) = (await amend(store, withdraw("b"))).stopped
        assert (stopped.session, stopped.turn, stopped.why) == (ROOM, turn.id, "withdrawn")
        for late in (
            partial(store.turns.complete, turn, reply("no")),
            partial(store.turns.dead_letter, turn, "no", [out("sorry")]),
            partial(store.turns.release, turn),
        ):
            with pytest.raises(LostTurn):
                await late()
        await store.maintenance.recover()
        assert await store.outbox.rows() == []
        assert (await states(store))["a"] == (InboxState.IGNORED, "withdrawn")
        assert (await claim(store, merge=5)).head.message.native_id == "next"

    async def test_a_turn_goes_on_for_those_who_still_want_it(self, store: Queue, clock: ManualClock):
        """A turn of which a part was taken back is answered as it is, and is settled whole."""
        await accept(store, "a", "b")
        turn = await claim(store, merge=2)
        await amend(store, withdraw("a"))
        await answer(store, turn, "both")
        both = await states(store)
        assert {both[name] for name in ("a", "b")} == {(InboxState.ANSWERED, None)}
        await amend(store, withdraw("b"))
        assert [row.message.text for row in await store.outbox.rows()] == ["both"], (
            "an answer is not taken back"
        )

    @pytest.mark.parametrize("acted", [False, True], ids=["nothing-done", "steps-done"])
    async def test_a_start_after_a_crash_knows_what_was_taken_back(self, store, clock, acted: bool):
        """A message is left out of the next start, unless that would make the turn forget what it has done."""
        await accept(store, "a", "b", "c")
        turn = await claim(store, merge=2)
        if acted:
            await store.turns.record_step_result(turn, step(0, result={}))
        await amend(store, withdraw("a"))
        await store.maintenance.recover()
        again = await claim(store, merge=5)
        assert again.id == turn.id
        assert [row.message.native_id for row in again.rows] == (["a", "b"] if acted else ["b"])
        assert len(await store.turns.steps(again)) == acted
        await answer(store, again)
        assert [row.message.native_id for row in (await claim(store, merge=5)).rows] == ["c"]

    async def test_a_turn_that_waits_can_be_taken_back(self, store: Queue, clock: ManualClock):
        """Whole, also with steps; and a marked message does not survive those that held it."""
        first, second, _ = await accept(store, "a", "b", "c")
        turn = await claim(store, merge=2)
        await store.turns.record_step_result(turn, step(0, result={}))
        await store.turns.retry(turn, "away", delay_s=60, deferral=True)
        assert (await amend(store, withdraw("a"))).stopped == ()
        assert (await states(store))["a"][0] is InboxState.READY
        assert await store.inbox.drop(second.id)
        clock.advance(61)
        assert (await claim(store, merge=5)).head.message.native_id == "c"
        assert (await states(store))["a"] == (InboxState.IGNORED, "withdrawn")
        assert first.id < second.id

    async def test_a_stop_ends_what_came_before_it(self, store: Queue, clock: ManualClock):
        """Running and waiting messages of the session are stopped and counted; later and other ones are not."""
        await accept(store, "a", "b")
        await accept(store, "x", session=OTHER)
        turn = await claim(store)
        asked = Amendment(kind="stop", native_id="!stop", session=ROOM)
        batch = [pending("c"), pending("!stop", text="!stop"), pending("d")]
        done = await store.inbox.accept("matrix", BOT, batch, {}, [asked])
        assert [(each.session, each.turn, each.why) for each in done.stopped] == [(ROOM, turn.id, "stopped")]
        assert {name for name, (_, why) in (await states(store)).items() if why == "stopped"} == {
            "a",
            "b",
            "c",
        }
        with pytest.raises(LostTurn):
            await store.turns.complete(turn, reply("no"))
        head = (await claim(store)).head.message
        assert (head.native_id, head.context.notes.stopped, head.context.route["event_id"]) == (
            "!stop",
            3,
            "!stop",
        )
        assert (await claim(store, OTHER)).head.message.native_id == "x"
        assert (await states(store))["d"][0] is InboxState.READY

    async def test_a_stop_of_one_person_ends_only_what_they_said(self, store: Queue):
        """What others have said in the same conversation waits and runs on."""
        await accept(store, "a", "b", sender=Sender(address="@ann:hs.test", verified=True))
        turn = await claim(store)
        await accept(store, "c", sender=Sender(address="@bob:hs.test", verified=True))
        asked = Amendment(kind="stop", native_id="!stop", session=ROOM, sender="@bob:hs.test")
        done = await store.inbox.accept("matrix", BOT, [pending("!stop", text="!stop")], {}, [asked])
        assert done.stopped == ()
        assert {name for name, (_, why) in (await states(store)).items() if why == "stopped"} == {"c"}
        await store.turns.complete(turn, reply("yes"))
        assert (await claim(store)).head.message.native_id == "b"

    async def test_a_stop_that_comes_again_stops_nothing(self, store: Queue, clock: ManualClock):
        """What was said after a stop is not stopped by its repetition."""
        assert (await stop(store))[0].message.context.notes.stopped == 0
        await answer(store, await claim(store))
        await accept(store, "a")
        done = await stop(store)
        assert (list(done), done.stopped) == ([], ())
        assert (await claim(store)).head.message.native_id == "a"

    async def test_who_has_left_says_nothing_more(self, store: Queue, clock: ManualClock):
        """Nothing that waits, runs or is unsent in a conversation and its threads survives leaving it."""
        await answered(store, "old", "unsent")
        await store.outbox.post([out("draft", hold=True), replaced(out("spoken"), channel="speech")])
        await accept(store, "a")
        await accept(store, "t", session=THREAD)
        await accept(store, "n", session=NEIGHBOUR)
        turn = await claim(store, THREAD)
        await store.outbox.post([out("elsewhere", session=OTHER)])
        done = await amend(store, Amendment(kind="leave", session=ROOM))
        assert [each.turn for each in done.stopped] == [turn.id]
        assert {name: why for name, (_, why) in (await states(store)).items()} == {
            "old": None,
            "a": "left",
            "t": "left",
            "n": None,
        }
        assert {row.message.text: (row.state, row.error) for row in await store.outbox.rows()} == {
            "unsent": (OutboxState.DEAD, "left"),
            "draft": (OutboxState.DEAD, "left"),
            "spoken": (OutboxState.DEAD, "left"),
            "elsewhere": (OutboxState.PENDING, None),
        }

    async def test_what_came_back_says_why_and_stays_sent(self, store: Queue, clock: ManualClock):
        """Only what the server took under this name, in this account; told again it changes nothing."""
        rows = await store.outbox.post([out("back"), out("arrived"), out("unsent")])
        for row in rows[:2]:
            await store.outbox.sending(row)
            await store.outbox.record_send(row, f"<{row.message.text}>")
        for name in ("<back>", "<nothing>", "<back>"):
            await amend(store, Amendment(kind="bounce", native_id=name, text="550 no such user"))
        other = [Amendment(kind="bounce", native_id="<arrived>", text="x")]
        await store.inbox.accept("matrix", "@other:hs.test", [], {}, other)
        assert {row.message.text: (row.state, row.error) for row in await store.outbox.rows()} == {
            "back": (OutboxState.SENT, "undeliverable: 550 no such user"),
            "arrived": (OutboxState.SENT, None),
            "unsent": (OutboxState.PENDING, None),
        }

    async def test_amendments_are_of_their_channel_and_account(self, store: Queue, clock: ManualClock):
        """The same name or place in another account is not meant."""
        await accept(store, "a")
        other = [withdraw("a"), replace("a", "no"), Amendment(kind="leave", session=ROOM)]
        await store.inbox.accept("matrix", "@second:hs.test", [], {}, other)
        await store.inbox.accept("other", BOT, [], {}, other)
        assert (await claim(store)).head.message.text == "text of a"

    async def test_what_is_alone_is_never_merged(self, store: Queue, clock: ManualClock):
        """A command and a reaction are turns of their own, in their place."""
        batch = [
            pending("a"),
            pending("!new", alone=True),
            pending("b"),
            pending("r", kind="reaction"),
            pending("c"),
        ]
        await store.inbox.accept("matrix", BOT, batch, {})
        turns = []
        while (turn := await store.turns.claim(ROOM, merge=10)) is not None:
            turns.append([(row.message.native_id, row.message.kind) for row in turn.rows])
            await answer(store, turn)
        assert turns == [
            [("a", "message")],
            [("!new", "message")],
            [("b", "message")],
            [("r", "reaction")],
            [("c", "message")],
        ]

    async def test_what_is_alone_has_its_turn_beside_another(self, store: Queue, clock: ManualClock):
        """With ``out_of_band`` commands and reactions are taken beside a turn that runs, one at a time, nothing else."""
        batch = [pending("a"), pending("!new", alone=True), pending("b"), pending("r", kind="reaction")]
        await store.inbox.accept("matrix", BOT, batch, {})
        running = await claim(store)
        first = await store.turns.claim(ROOM, out_of_band=True)
        assert first is not None
        assert first.head.message.native_id == "!new"
        assert await store.turns.claim(ROOM, out_of_band=True) is None
        assert await store.turns.claim(ROOM) is None
        assert await store.turns.due_in(ROOM) is None
        await answer(store, first)
        second = await store.turns.claim(ROOM, out_of_band=True)
        assert second is not None
        assert second.head.message.kind == "reaction"
        await answer(store, second)
        assert await store.turns.claim(ROOM, out_of_band=True) is None
        await answer(store, running)
        assert (await claim(store)).head.message.native_id == "b"
