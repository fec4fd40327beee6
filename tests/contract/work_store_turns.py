"""The promises of `WorkStore` about accepting, claiming, working and answering."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from agent_core.messages import Attachment, SessionKey
from agent_core.models import Message, Purpose, Usage
from gateway.work.port import Completion, LostTurn, Turn, WorkStore
from gateway.work.states import InboxState, OutboxState
from tests.clock import EPOCH, ManualClock
from tests.contract.work_store_data import (
    BOT,
    OTHER,
    ROOM,
    accept,
    answer,
    claim,
    message,
    out,
    pending,
    reply,
    step,
)

__all__ = ["TurnsContract"]


def natives(turn: Turn) -> list[str]:
    return [row.message.native_id for row in turn.rows]


class TurnsContract:
    """From ``accept`` to ``complete``."""

    async def test_accepted_rows_come_back_whole_and_in_order(self, store: WorkStore, clock: ManualClock):
        """A batch becomes rows in its order, with growing ids, each with all that the message held."""
        odd = message(
            "b\0☃",
            text="two\nlines \U0001f600 \udc80",
            context={"deep": {"list": [1, None, "ü"]}, "half": "\ud83d"},
            attachments=(Attachment(name="a.png", media_type="image/png", size_bytes=3, path="media/a"),),
        )
        rows = await store.accept("matrix", BOT, [pending("a"), replace(pending("b"), message=odd)], {})
        assert [row.message.native_id for row in rows] == ["a", "b\0☃"]
        assert rows[0].id < rows[1].id
        assert [row.state for row in rows] == [InboxState.READY] * 2
        assert rows[0].accepted_at == clock.now()
        kept = await store.inbox()
        assert kept[1] == rows[0]
        # Half a surrogate pair is no text and may be replaced; everything else stays.
        assert kept[0].message.text.startswith("two\nlines \U0001f600 ")
        assert kept[0].message.context["deep"] == {"list": [1, None, "ü"]}
        assert kept[0].message.attachments == odd.attachments

    async def test_what_is_known_is_a_success_without_work(self, store: WorkStore, clock: ManualClock):
        """A message comes once, however often and however mixed with new ones it is handed over."""
        first = await accept(store, "a", "b")
        assert await accept(store, "a", "b") == []
        assert [row.message.native_id for row in await accept(store, "b", "c", "c", "a")] == ["c"]
        assert len(await store.inbox()) == 3
        assert (await store.inbox())[0].id > first[1].id

    async def test_the_key_is_channel_account_and_native_id(self, store: WorkStore, clock: ManualClock):
        """The same native id in another account or channel is another message."""
        await accept(store, "a")
        there = pending("a", account="@second:hs.test")
        assert len(await store.accept("matrix", "@second:hs.test", [there], {})) == 1
        assert len(await accept(store, "a", session=SessionKey("email", "thread"))) == 1

    async def test_five_at_once_are_one(self, store: WorkStore, clock: ManualClock):
        """The same batch handed over five times at the same time becomes rows once."""
        got: list[int] = []

        async def hand_over() -> None:
            got.append(len(await accept(store, "a", "b", "c")))

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(hand_over)
        assert sorted(got) == [0, 0, 0, 0, 3]

    async def test_a_finished_message_does_not_come_again(self, store: WorkStore, clock: ManualClock):
        """A replay after the answer, however late, finds the key and does nothing."""
        await accept(store, "a")
        (row,) = await answer(store, await claim(store))
        await store.sending(row)
        await store.sent(row, "$1")
        clock.advance(400 * 86_400)
        await store.prune(older_than_s=86_400)
        assert await accept(store, "a") == []
        assert await store.claim(ROOM) is None

    async def test_positions_move_with_the_rows(self, store: WorkStore, clock: ManualClock):
        """Positions are kept by channel, account and name, and also move with a batch that is empty."""
        assert await store.position("matrix", BOT, "next_batch") is None
        await store.accept("matrix", BOT, [pending("a")], {"next_batch": "s1", "to_device": "t1"})
        await store.accept("matrix", BOT, [], {"next_batch": "s2"})
        assert await store.position("matrix", BOT, "next_batch") == "s2"
        assert await store.position("matrix", BOT, "to_device") == "t1"
        assert await store.position("matrix", "@second:hs.test", "next_batch") is None
        assert await store.position("email", BOT, "next_batch") is None

    async def test_a_batch_is_taken_whole_or_not_at_all(self, store: WorkStore, clock: ManualClock):
        """If one message of a batch cannot be taken, no row and no position of it is kept."""
        stranger = pending("b", account="@second:hs.test")
        with pytest.raises(ValueError, match="second"):
            await store.accept("matrix", BOT, [pending("a"), stranger], {"next_batch": "s2"})
        assert await store.inbox() == []
        assert await store.position("matrix", BOT, "next_batch") is None

    async def test_of_an_ignored_message_only_its_having_been_there_is_kept(
        self, store: WorkStore, clock: ManualClock
    ):
        """An ignored message is remembered with its reason and sender, without its text, and never claimed."""
        (row,) = await store.accept("matrix", BOT, [pending("a", ignore="sender_not_allowed")], {})
        assert (row.state, row.error) == (InboxState.IGNORED, "sender_not_allowed")
        (kept,) = await store.inbox(states=[InboxState.IGNORED])
        assert kept == row
        assert (kept.message.text, kept.message.context) == ("", {})
        assert kept.message.sender.address == "@alice:hs.test"
        assert await accept(store, "a") == []
        assert await store.claim(ROOM) is None
        assert await store.inbox() == []

    async def test_a_session_is_worked_on_in_order(self, store: WorkStore, clock: ManualClock):
        """Turns of a session come one after the other in the order of acceptance."""
        await accept(store, "a", "b", "c")
        seen = []
        while (turn := await store.claim(ROOM)) is not None:
            assert await store.claim(ROOM) is None, "a second turn while one is running"
            seen += natives(turn)
            await answer(store, turn)
        assert seen == ["a", "b", "c"]

    async def test_sessions_do_not_wait_for_each_other(self, store: WorkStore, clock: ManualClock):
        """While one session runs or waits, another one can be claimed."""
        await accept(store, "a")
        await accept(store, "b", session=OTHER)
        await claim(store)
        assert natives(await claim(store, OTHER)) == ["b"]

    async def test_a_claim_shows_the_running_row(self, store: WorkStore, clock: ManualClock):
        """The turn's rows are running, with this start counted, and so they stand in the store."""
        await accept(store, "a")
        turn = await claim(store)
        assert (turn.attempts, turn.deferrals, turn.first_deferred_s) == (1, 0, 0.0)
        assert (turn.head.state, turn.head.attempts, turn.head.turn) == (InboxState.RUNNING, 1, turn.id)
        assert await store.inbox() == [turn.head]
        assert turn.session == ROOM

    async def test_what_waits_is_merged_up_to_the_limit(self, store: WorkStore, clock: ManualClock):
        """``merge`` rows become one turn, the rest the next one."""
        await accept(store, "a", "b", "c")
        first = await claim(store, merge=2)
        assert natives(first) == ["a", "b"]
        await answer(store, first)
        assert natives(await claim(store, merge=2)) == ["c"]

    async def test_a_tick_is_never_merged(self, store: WorkStore, clock: ManualClock):
        """A tick is a turn of its own, and what comes after it does not jump over it."""
        await accept(store, "a")
        await accept(store, "tick1", "tick2", kind="tick")
        await accept(store, "b", "c")
        turns = []
        while (turn := await store.claim(ROOM, merge=10)) is not None:
            turns.append(natives(turn))
            await answer(store, turn)
        assert turns == [["a"], ["tick1"], ["tick2"], ["b", "c"]]

    async def test_a_recovered_turn_is_the_same_turn(self, store: WorkStore, clock: ManualClock):
        """After `recover` a turn has its id and its rows in order, also when more has come; its fence grew."""
        await accept(store, "a", "b")
        before = await claim(store, merge=5)
        await accept(store, "c")
        await store.recover()
        await store.recover()
        after = await claim(store, merge=5)
        assert (after.id, natives(after)) == (before.id, ["a", "b"])
        assert after.fence > before.fence
        assert after.attempts == 2

    async def test_starts_are_counted_over_crashes(self, store: WorkStore, clock: ManualClock):
        """Every start that ended with the process counts."""
        await accept(store, "a")
        for start in (1, 2, 3, 4):
            assert (await claim(store)).attempts == start
            await store.recover()

    async def test_an_older_claim_has_lost_the_turn(self, store: WorkStore, clock: ManualClock):
        """After the turn was claimed again, the older claim can do nothing with it, and changes nothing."""
        await accept(store, "a")
        old = await claim(store)
        await store.recover()
        new = await claim(store)
        for attempt in (
            store.complete(old, reply("old")),
            store.bury(old, "old", [out("sorry")]),
            store.retry(old, "old", delay_s=1, deferral=False),
            store.release(old),
            store.steps(old),
            store.step_started(old, step(0)),
            store.step_finished(old, step(0, result={"old": True})),
        ):
            with pytest.raises(LostTurn):
                await attempt
        assert await store.outbox() == []
        assert await store.steps(new) == []
        assert (await store.inbox())[0].state is InboxState.RUNNING
        await store.complete(new, reply("new"))
        with pytest.raises(LostTurn):
            await store.complete(new, reply("twice"))
        assert [row.message.text for row in await store.outbox()] == ["new"]

    async def test_a_claim_is_lost_as_soon_as_it_was_recovered(self, store: WorkStore, clock: ManualClock):
        """`recover` takes the turn away even before somebody claims it again."""
        await accept(store, "a")
        old = await claim(store)
        await store.recover()
        with pytest.raises(LostTurn):
            await store.complete(old, reply("old"))
        assert await store.outbox() == []

    async def test_an_answer_commits_everything_together(self, store: WorkStore, clock: ManualClock):
        """Rows, answers, history and usage are there after `complete`, and the steps are gone."""
        await accept(store, "a", "b")
        turn = await claim(store, merge=2)
        await store.step_finished(turn, step(0, result={"x": 1}))
        lines = [
            Message(
                role="user",
                content="q \udc80",
                id="1",
                turn=turn.id,
                timestamp=EPOCH,
                sender="@alice:hs.test",
            ),
            Message(role="assistant", content="r", id="2", turn=turn.id, timestamp=EPOCH),
        ]
        usage = Usage(prompt_tokens=10, completion_tokens=3, calls=1, cost_usd=0.5, model="m")
        rows = await store.complete(turn, reply("one", "two", history=lines, usage=usage))
        assert [row.message.text for row in rows] == ["one", "two"]
        assert {row.inbox_id for row in rows} == {turn.rows[-1].id}
        assert {row.state for row in rows} == {OutboxState.PENDING}
        assert rows[0].message.context == turn.rows[-1].message.context
        assert rows[0].message.created_at == clock.now()
        assert sorted(await store.outbox(), key=lambda row: row.id) == rows
        assert {row.state for row in await store.inbox()} == {InboxState.ANSWERED}
        journal = await store.journal(ROOM)
        assert [line.message.id for line in journal] == ["1", "2"]
        assert [line.message for line in journal][1] == lines[1]
        (spent,) = await store.usage()
        assert (spent.day, spent.session, spent.purpose, spent.model) == (
            "2026-01-01",
            str(ROOM),
            "chat",
            "m",
        )
        assert spent.usage == usage
        assert await store.claim(ROOM) is None

    async def test_without_an_answer_the_rows_are_settled(self, store: WorkStore, clock: ManualClock):
        """A turn with nothing to send is over at once."""
        await accept(store, "a")
        assert await store.complete(await claim(store), Completion()) == []
        assert (await store.inbox())[0].state is InboxState.SETTLED

    async def test_the_context_is_that_of_the_message(self, store: WorkStore, clock: ManualClock):
        """An answer gets the last message's context; another one's own stays, and other places get none."""
        await accept(store, "a", "b")
        rows = await store.complete(
            await claim(store, merge=2),
            Completion(outbound=[out("x"), out("y", context={"own": 1}), out("z", session=OTHER)]),
        )
        assert [row.message.context for row in rows] == [{"event_id": "b"}, {"own": 1}, {}]

    async def test_a_retry_keeps_the_order(self, store: WorkStore, clock: ManualClock):
        """The head waits for its time and its session with it; nobody else does. Then it is first again."""
        await accept(store, "a", "b")
        turn = await claim(store)
        await store.retry(turn, "boom", delay_s=30, deferral=False)
        await accept(store, "x", session=OTHER)
        assert await store.claim(ROOM) is None
        assert natives(await claim(store, OTHER)) == ["x"]
        assert await store.due_in(ROOM) == pytest.approx(30)
        clock.advance(29)
        assert await store.claim(ROOM) is None
        clock.advance(1)
        again = await claim(store)
        assert (again.id, natives(again), again.attempts) == (turn.id, ["a"], 2)
        assert again.head.error == "boom"

    async def test_a_deferral_is_not_an_attempt(self, store: WorkStore, clock: ManualClock):
        """A start that was not the message's fault counts as a deferral, and since when is known."""
        await accept(store, "a", "b")
        for number in (1, 2, 3):
            turn = await claim(store, merge=2)
            assert (turn.attempts, turn.deferrals) == (1, number - 1)
            assert turn.first_deferred_s == pytest.approx((number - 1) * 60)
            await store.retry(turn, "the provider is away", delay_s=60, deferral=True)
            clock.advance(60)
        assert natives(await claim(store, merge=2)) == ["a", "b"]

    async def test_a_buried_turn_makes_way(self, store: WorkStore, clock: ManualClock):
        """The turn is DEAD with its error, the apology is in the outbox, and the session goes on."""
        await accept(store, "a", "b")
        turn = await claim(store)
        await store.step_finished(turn, step(0, result={}))
        (apology,) = await store.bury(turn, "it cannot be", [out("sorry")])
        assert (apology.message.text, apology.inbox_id) == ("sorry", turn.head.id)
        dead = (await store.inbox(states=[InboxState.DEAD]))[0]
        assert (dead.id, dead.error) == (turn.head.id, "it cannot be")
        assert natives(await claim(store)) == ["b"]
        await store.sending(apology)
        await store.sent(apology, "$1")
        assert (await store.inbox(states=[InboxState.DEAD]))[0].id == turn.head.id

    async def test_a_released_turn_is_as_if_it_had_not_begun(self, store: WorkStore, clock: ManualClock):
        """Parking does not count as a start; the turn and its steps stay."""
        await accept(store, "a", "b")
        turn = await claim(store, merge=2)
        await store.step_finished(turn, step(0, result={"done": True}))
        await store.release(turn)
        again = await claim(store, merge=2)
        assert (again.id, again.attempts, again.fence > turn.fence) == (turn.id, 1, True)
        assert await store.steps(again) == [step(0, result={"done": True})]

    async def test_steps_survive_the_start(self, store: WorkStore, clock: ManualClock):
        """A later start finds what was started and what was finished, by number, whatever it holds."""
        await accept(store, "a")
        turn = await claim(store)
        odd = {"text": "\udc80 ☃", "list": [1, 2.5, None, True]}
        await store.step_finished(turn, step(1, kind="model", digest="m", result=odd))
        await store.step_started(turn, step(0))
        await store.step_started(turn, step(2))
        await store.step_finished(turn, step(2, result={"n": 1}))
        await store.step_finished(turn, step(2, digest="other", result={"n": 2}))
        await store.recover()
        assert await store.steps(await claim(store)) == [
            step(0),
            step(1, kind="model", digest="m", result=odd),
            step(2, digest="other", result={"n": 2}),
        ]

    async def test_the_journal_holds_lines_until_they_are_done(self, store: WorkStore, clock: ManualClock):
        """Lines come oldest first, of one session or all; those that are done are gone, and only those."""
        for session, name in ((ROOM, "a"), (OTHER, "b"), (ROOM, "c")):
            await accept(store, name, session=session)
            await answer(store, await claim(store, session))
        every = await store.journal()
        assert [line.id for line in every] == sorted(line.id for line in every)
        assert [line.session for line in every] == [ROOM, ROOM, OTHER, OTHER, ROOM, ROOM]
        assert [line.message.content for line in await store.journal(ROOM)][::2] == ["text of a", "text of c"]
        await store.journal_done([line.id for line in every[:3]])
        await store.journal_done([])
        assert await store.journal() == every[3:]
        await store.journal_done([line.id for line in every])
        await accept(store, "d")
        await answer(store, await claim(store))
        await store.journal_done([line.id for line in every])
        assert len(await store.journal()) == 2, "an id of a line was used again"

    async def test_when_a_session_is_due(self, store: WorkStore, clock: ManualClock):
        """`due_in` knows the head's time; nothing waits where there is nothing or a turn is running."""
        assert await store.due_in(ROOM) is None
        await accept(store, "a")
        assert await store.due_in(ROOM) == 0.0
        turn = await claim(store)
        assert await store.due_in(ROOM) is None
        await store.retry(turn, "later", delay_s=9, deferral=True)
        assert await store.due_in(ROOM) == pytest.approx(9)
        clock.advance(20)
        assert await store.due_in(ROOM) == 0.0

    async def test_usage_adds_up_by_day_session_purpose_and_model(self, store: WorkStore, clock: ManualClock):
        """Equal keys are one row whose numbers are sums; an unknown cost does not hide the known ones."""
        spend = Usage(prompt_tokens=1, completion_tokens=2, calls=1, cost_usd=0.25, model="m")
        for _ in range(2):
            await store.add_usage(ROOM, spend, Purpose.CONSOLIDATION)
        await store.add_usage(ROOM, spend.model_copy(update={"cost_usd": None}), Purpose.CONSOLIDATION)
        await store.add_usage(ROOM, Usage(), Purpose.CHAT)
        clock.advance(86_400)
        await store.add_usage(ROOM, spend, Purpose.HEARTBEAT)
        newest, oldest = await store.usage()
        assert (newest.day, newest.purpose) == ("2026-01-02", "heartbeat")
        assert oldest.usage == Usage(prompt_tokens=3, completion_tokens=6, calls=3, cost_usd=0.5, model="m")
        assert [row.day for row in await store.usage(days=1)] == ["2026-01-02"]
