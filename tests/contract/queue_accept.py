"""The promises of `Queue` about accepting and claiming."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial

import anyio
import pytest

from agent_core.messages import Amendment, Attachment, MessageContext, SessionKey
from gateway.store.states import InboxState
from gateway.store.stores import LostTurn, Queue, Turn
from tests.clock import ManualClock
from tests.contract.queue_data import (
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


def natives(turn: Turn) -> list[str]:
    return [row.message.native_id for row in turn.rows]


class AcceptContract:
    """From ``accept`` to ``claim``."""

    async def test_accepted_rows_come_back_whole_and_in_order(self, store: Queue, clock: ManualClock):
        """A batch becomes rows in its order, with growing ids, each with all that the message held."""
        odd = message(
            "b\0☃",
            text="two\nlines \U0001f600 \udc80",
            context={"route": {"deep": {"list": [1, None, "ü"]}, "half": "\ud83d"}},
            attachments=(Attachment(name="a.png", media_type="image/png", size_bytes=3, path="media/a"),),
        )
        rows = await store.inbox.accept("matrix", BOT, [pending("a"), replace(pending("b"), message=odd)], {})
        assert [row.message.native_id for row in rows] == ["a", "b\0☃"]
        assert rows[0].id < rows[1].id
        assert [row.state for row in rows] == [InboxState.READY] * 2
        assert rows[0].accepted_at == clock.now()
        kept = await store.inbox.rows()
        assert kept[1] == rows[0]
        # Half a surrogate pair is no text and may be replaced; everything else stays.
        assert kept[0].message.text.startswith("two\nlines \U0001f600 ")
        assert kept[0].message.context.route["deep"] == {"list": [1, None, "ü"]}
        assert kept[0].message.attachments == odd.attachments

    async def test_what_is_known_is_a_success_without_work(self, store: Queue, clock: ManualClock):
        """A message comes once, however often and however mixed with new ones it is handed over."""
        first = await accept(store, "a", "b")
        assert await accept(store, "a", "b") == []
        assert [row.message.native_id for row in await accept(store, "b", "c", "c", "a")] == ["c"]
        assert len(await store.inbox.rows()) == 3
        assert (await store.inbox.rows())[0].id > first[1].id

    async def test_the_key_is_channel_account_and_native_id(self, store: Queue, clock: ManualClock):
        """The same native id in another account or channel is another message."""
        await accept(store, "a")
        there = pending("a", account="@second:hs.test")
        assert len(await store.inbox.accept("matrix", "@second:hs.test", [there], {})) == 1
        assert len(await accept(store, "a", session=SessionKey("email", "thread"))) == 1

    async def test_names_of_any_length_are_recognised(self, store: Queue, clock: ManualClock):
        """Whatever a server calls a message, nothing behind it is held up."""
        long = "".join(hashlib.sha256(b"%d" % number).hexdigest() for number in range(200))
        assert len(await accept(store, long, f"{long}!")) == 2
        assert not await accept(store, long)
        row = await store.inbox.find_by_key("matrix", BOT, long)
        assert row is not None and row.message.native_id == long
        withdrawn = Amendment(kind="withdraw", native_id=f"{long}!", sender="@alice:hs.test")
        await store.inbox.accept("matrix", BOT, [], {}, [withdrawn])
        [sent] = await answer(store, await claim(store))
        await store.outbox.sending(sent)
        await store.outbox.record_send(sent, long)
        assert await store.outbox.outbox_id_of("matrix", BOT, long) == sent.message.id
        await store.inbox.accept("matrix", BOT, [], {}, [Amendment(kind="bounce", native_id=long, text="no")])
        [sent] = await store.outbox.rows()
        assert sent.error == "undeliverable: no"
        gone = await store.inbox.find_by_key("matrix", BOT, f"{long}!")
        assert gone is not None and gone.state is InboxState.IGNORED

    async def test_five_at_once_are_one(self, store: Queue, clock: ManualClock):
        """The same batch handed over five times at the same time becomes rows once."""
        got: list[int] = []

        async def hand_over() -> None:
            got.append(len(await accept(store, "a", "b", "c")))

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(hand_over)
        assert sorted(got) == [0, 0, 0, 0, 3]

    async def test_a_finished_message_does_not_come_again(self, store: Queue, clock: ManualClock):
        """A replay after the answer, however late, finds the key and does nothing."""
        await accept(store, "a")
        (row,) = await answer(store, await claim(store))
        await store.outbox.sending(row)
        await store.outbox.record_send(row, "$1")
        clock.advance(400 * 86_400)
        await store.maintenance.prune(older_than_s=86_400)
        assert await accept(store, "a") == []
        assert await store.turns.claim(ROOM) is None

    async def test_what_watches_have_noted(self, store: Queue, clock: ManualClock):
        """Their positions by the job, whatever the account; no other position."""
        await store.inbox.accept("matrix", BOT, [], {"watch:abcde": "{}", "watched": "x", "next_batch": "s1"})
        await store.inbox.accept("email", BOT, [], {"watch:fghij": "[1]"})
        assert await store.jobs.watch_states() == {"abcde": "{}", "fghij": "[1]"}

    async def test_positions_move_with_the_rows(self, store: Queue, clock: ManualClock):
        """Positions are kept by channel, account and name, and also move with a batch that is empty."""
        assert await store.inbox.position("matrix", BOT, "next_batch") is None
        await store.inbox.accept("matrix", BOT, [pending("a")], {"next_batch": "s1", "to_device": "t1"})
        await store.inbox.accept("matrix", BOT, [], {"next_batch": "s2"})
        assert await store.inbox.position("matrix", BOT, "next_batch") == "s2"
        assert await store.inbox.position("matrix", BOT, "to_device") == "t1"
        assert await store.inbox.position("matrix", "@second:hs.test", "next_batch") is None
        assert await store.inbox.position("email", BOT, "next_batch") is None

    async def test_a_batch_is_taken_whole_or_not_at_all(self, store: Queue, clock: ManualClock):
        """If one message of a batch cannot be taken, no row and no position of it is kept."""
        stranger = pending("b", account="@second:hs.test")
        with pytest.raises(ValueError, match="second"):
            await store.inbox.accept("matrix", BOT, [pending("a"), stranger], {"next_batch": "s2"})
        assert await store.inbox.rows() == []
        assert await store.inbox.position("matrix", BOT, "next_batch") is None

    async def test_of_an_ignored_message_only_its_having_been_there_is_kept(
        self, store: Queue, clock: ManualClock
    ):
        """An ignored message is remembered with its reason and sender, without its text, and never claimed."""
        (row,) = await store.inbox.accept("matrix", BOT, [pending("a", ignore="sender_not_allowed")], {})
        assert (row.state, row.error) == (InboxState.IGNORED, "sender_not_allowed")
        (kept,) = await store.inbox.rows(states=[InboxState.IGNORED])
        assert kept == row
        assert (kept.message.text, kept.message.context) == ("", MessageContext())
        assert kept.message.sender.address == "@alice:hs.test"
        assert await accept(store, "a") == []
        assert await store.turns.claim(ROOM) is None
        assert await store.inbox.rows() == []

    async def test_a_session_is_worked_on_in_order(self, store: Queue, clock: ManualClock):
        """Turns of a session come one after the other in the order of acceptance."""
        await accept(store, "a", "b", "c")
        seen = []
        while (turn := await store.turns.claim(ROOM)) is not None:
            assert await store.turns.claim(ROOM) is None, "a second turn while one is running"
            seen += natives(turn)
            await answer(store, turn)
        assert seen == ["a", "b", "c"]

    async def test_sessions_do_not_wait_for_each_other(self, store: Queue, clock: ManualClock):
        """While one session runs or waits, another one can be claimed."""
        await accept(store, "a")
        await accept(store, "b", session=OTHER)
        await claim(store)
        assert natives(await claim(store, OTHER)) == ["b"]

    async def test_a_claim_shows_the_running_row(self, store: Queue, clock: ManualClock):
        """The turn's rows are running, with this start counted, and so they stand in the store."""
        await accept(store, "a")
        turn = await claim(store)
        assert (turn.attempts, turn.deferrals, turn.first_deferred_s) == (1, 0, 0.0)
        assert (turn.head.state, turn.head.attempts, turn.head.turn) == (InboxState.RUNNING, 1, turn.id)
        assert await store.inbox.rows() == [turn.head]
        assert turn.session == ROOM

    async def test_what_waits_is_merged_up_to_the_limit(self, store: Queue, clock: ManualClock):
        """``merge`` rows become one turn, the rest the next one."""
        await accept(store, "a", "b", "c")
        first = await claim(store, merge=2)
        assert natives(first) == ["a", "b"]
        await answer(store, first)
        assert natives(await claim(store, merge=2)) == ["c"]

    async def test_a_tick_is_never_merged(self, store: Queue, clock: ManualClock):
        """A tick is a turn of its own, and what comes after it does not jump over it."""
        await accept(store, "a")
        await accept(store, "tick1", "tick2", kind="tick")
        await accept(store, "b", "c")
        turns = []
        while (turn := await store.turns.claim(ROOM, merge=10)) is not None:
            turns.append(natives(turn))
            await answer(store, turn)
        assert turns == [["a"], ["tick1"], ["tick2"], ["b", "c"]]

    async def test_a_recovered_turn_is_the_same_turn(self, store: Queue, clock: ManualClock):
        """After `recover` a turn has its id and its rows in order, also when more has come; its fence grew."""
        await accept(store, "a", "b")
        before = await claim(store, merge=5)
        await accept(store, "c")
        await store.maintenance.recover()
        await store.maintenance.recover()
        after = await claim(store, merge=5)
        assert (after.id, natives(after)) == (before.id, ["a", "b"])
        assert after.fence > before.fence
        assert after.attempts == 2

    async def test_starts_are_counted_over_crashes(self, store: Queue, clock: ManualClock):
        """Every start that ended with the process counts."""
        await accept(store, "a")
        for start in (1, 2, 3, 4):
            assert (await claim(store)).attempts == start
            await store.maintenance.recover()

    async def test_an_older_claim_has_lost_the_turn(self, store: Queue, clock: ManualClock):
        """After the turn was claimed again, the older claim can do nothing with it, and changes nothing."""
        await accept(store, "a")
        old = await claim(store)
        await store.maintenance.recover()
        new = await claim(store)
        for attempt in (
            partial(store.turns.complete, old, reply("old")),
            partial(store.turns.dead_letter, old, "old", [out("sorry")]),
            partial(store.turns.retry, old, "old", delay_s=1, deferral=False),
            partial(store.turns.release, old),
            partial(store.turns.steps, old),
            partial(store.turns.record_step_start, old, step(0)),
            partial(store.turns.record_step_result, old, step(0, result={"old": True})),
        ):
            with pytest.raises(LostTurn):
                await attempt()
        assert await store.outbox.rows() == []
        assert await store.turns.steps(new) == []
        assert (await store.inbox.rows())[0].state is InboxState.RUNNING
        await store.turns.complete(new, reply("new"))
        with pytest.raises(LostTurn):
            await store.turns.complete(new, reply("twice"))
        assert [row.message.text for row in await store.outbox.rows()] == ["new"]

    async def test_a_claim_is_lost_as_soon_as_it_was_recovered(self, store: Queue, clock: ManualClock):
        """`recover` takes the turn away even before somebody claims it again."""
        await accept(store, "a")
        old = await claim(store)
        await store.maintenance.recover()
        with pytest.raises(LostTurn):
            await store.turns.complete(old, reply("old"))
        assert await store.outbox.rows() == []
