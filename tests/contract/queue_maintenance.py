"""The promises of `Queue` about starting, looking, mending, forgetting, and leases."""

from __future__ import annotations

import pytest

from agent_core.messages import Amendment, Audience, InboundMessage, MessageContext, SessionKey
from gateway.store.background_job_rows import job_message
from gateway.store.states import IGNORED_S, IllegalMove, InboxState, OutboxState
from gateway.store.stores import Completion, Pending, Queue
from tests.clock import EPOCH, ManualClock
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
    step,
)

DAY_S = 86_400


class MaintenanceContract:
    """Everything that is not the way of a message."""

    async def test_what_waits_for_something_is_due_when_that_is_there(self, store: Queue, clock: ManualClock):
        """Turns and sends that wait for it, and no others; a later wait is a wait of its own."""
        await accept(store, "a")
        await accept(store, "x", session=OTHER)
        await store.turns.postpone(await claim(store), "later", delay_s=60, waits_for="budget")
        await store.turns.retry(
            await claim(store, OTHER), "away", delay_s=60, deferral=True, waits_for="link:m"
        )
        posted = await store.outbox.post([out("one"), out("two", session=OTHER)])
        for row, waits_for in zip(posted, ("link:m", None), strict=True):
            await store.outbox.sending(row)
            await store.outbox.record_failure(row, "away", delay_s=60, waits_for=waits_for)
        await store.maintenance.due_now("nothing")
        assert dict(await store.turns.open_sessions()) == {ROOM: pytest.approx(60), OTHER: pytest.approx(60)}
        await store.maintenance.due_now("link:m")
        assert dict(await store.turns.open_sessions()) == {ROOM: pytest.approx(60), OTHER: 0.0}
        assert [row.id for row in await store.outbox.next_sends("matrix", BOT)] == [posted[0].id]
        await store.maintenance.due_now("budget")
        assert dict(await store.turns.open_sessions()) == {ROOM: 0.0, OTHER: 0.0}
        await store.turns.postpone(await claim(store), "later", delay_s=60)
        await store.maintenance.due_now("budget")
        assert await store.turns.due_in(ROOM) == pytest.approx(60)

    async def test_the_newest_message_of_each_conversation(self, store: Queue):
        """Of a person and accepted: what is ignored or in quarantine does not count, and no other session."""
        await accept(store, "a", "b")
        await accept(store, "x", session=OTHER)
        refused = [pending("i", ignore="no"), pending("q", quarantine="sender_not_verified")]
        await store.inbox.accept("matrix", BOT, refused, {})
        nowhere = SessionKey("matrix", "elsewhere")
        found = await store.inbox.newest_messages([ROOM, OTHER, nowhere])
        assert {key: row.message.native_id for key, row in found.items()} == {ROOM: "b", OTHER: "x"}
        assert list(await store.inbox.newest_messages([OTHER])) == [OTHER]
        assert await store.inbox.newest_messages([]) == {}

    async def test_the_newest_message_is_the_newest_in_any_state(self, store: Queue):
        """The one that was accepted last, also if an earlier one waits or runs longer; of many conversations."""
        places = [SessionKey("matrix", f"place{number}") for number in range(300)]
        batch = [
            pending(f"{which} of {session}", session=session)
            for session in places
            for which in ("first", "second")
        ]
        await store.inbox.accept("matrix", BOT, batch, {})
        await store.turns.complete(await claim(store, places[0]), Completion())
        await claim(store, places[1])
        await accept(store, "x", session=OTHER)
        found = await store.inbox.newest_messages([*places, OTHER])
        assert {key: row.message.native_id for key, row in found.items()} == {
            **{session: f"second of {session}" for session in places},
            OTHER: "x",
        }

    async def test_the_people_of_private_conversations(self, store: Queue):
        """Their channel and sender; a room, a refused person and an unknown conversation have none."""
        in_room = pending("r", session=OTHER)
        in_room = Pending(in_room.message.model_copy(update={"audience": Audience.GROUP}))
        refused = pending("q", session=SessionKey("matrix", "refused"), quarantine="sender_not_verified")
        await store.inbox.accept("matrix", BOT, [pending("a"), in_room, refused], {})
        asked = {str(ROOM), str(OTHER), "matrix/refused", "no name of a session"}
        sender = in_room.message.sender.address
        assert await store.inbox.newest_people(asked) == {str(ROOM): ("matrix", sender)}

    async def test_open_sessions_are_those_with_something_to_do(self, store: Queue, clock: ManualClock):
        """Each session with a waiting head comes once, with the seconds until it is due."""
        await accept(store, "a", "b")
        await accept(store, "x", session=OTHER)
        await store.inbox.accept("matrix", BOT, [pending("i", ignore="no")], {})
        await store.turns.retry(await claim(store), "later", delay_s=40, deferral=True)
        assert dict(await store.turns.open_sessions()) == {ROOM: pytest.approx(40), OTHER: 0.0}
        running = await claim(store, OTHER)
        assert [session for session, _ in await store.turns.open_sessions()] == [ROOM]
        await store.maintenance.recover()
        assert len(await store.turns.open_sessions()) == 2
        del running
        clock.advance(41)
        for session in (ROOM, ROOM, OTHER):
            await answer(store, await claim(store, session))
        assert await store.turns.open_sessions() == []

    async def test_rows_are_shown_newest_first(self, store: Queue, clock: ManualClock):
        """By states, by session and up to a limit; without states all but the ignored."""
        await accept(store, "a", "b")
        await accept(store, "x", session=OTHER)
        await store.inbox.accept("matrix", BOT, [pending("i", ignore="no")], {})
        await answer(store, await claim(store))

        async def names(**by):
            return [row.message.native_id for row in await store.inbox.rows(**by)]

        assert await names() == ["x", "b", "a"]
        assert await names(limit=2) == ["x", "b"]
        assert await names(session=ROOM) == ["b", "a"]
        assert await names(states=[InboxState.IGNORED]) == ["i"]
        assert await names(states=[InboxState.READY]) == ["x", "b"]
        assert await names(states=[InboxState.ANSWERED, InboxState.READY], limit=2) == ["x", "b"]
        assert await names(states=[InboxState.ANSWERED, InboxState.READY], session=ROOM) == ["b", "a"]
        await store.outbox.post([out("p")])
        assert [row.message.text for row in await store.outbox.rows()] == ["p", "answer to a"]
        assert [row.message.text for row in await store.outbox.rows(limit=1)] == ["p"]
        assert await store.outbox.rows(states=[OutboxState.SENT]) == []

    async def test_one_row_with_what_was_sent_for_it(self, store: Queue, clock: ManualClock):
        """Every row of a merged turn shows the turn's answers."""
        first, second = await accept(store, "a", "b")
        rows = await answer(store, await claim(store, merge=2), "one", "two")
        for accepted in (first, second):
            found = await store.inbox.row(accepted.id)
            assert found is not None
            assert (found[0].message.native_id, found[1]) == (accepted.message.native_id, rows)
        assert await store.inbox.row(999) is None

    async def test_a_dead_message_can_be_tried_again(self, store: Queue, clock: ManualClock):
        """It is READY with fresh counters and before what came after it; its turn is another one."""
        await accept(store, "a", "b")
        turn = await claim(store)
        await store.turns.retry(turn, "x", delay_s=0, deferral=True)
        turn = await claim(store)
        await store.turns.dead_letter(turn, "no", [out("sorry")])
        assert await store.inbox.requeue(turn.head.id) == ROOM
        again = await claim(store, merge=5)
        assert [row.message.native_id for row in again.rows] == ["a", "b"]
        assert (again.attempts, again.deferrals, again.head.error) == (1, 0, None)
        assert again.id != turn.id
        (row,) = await answer(store, again)
        await store.outbox.sending(row)
        await store.outbox.record_send(row, "$1")
        assert {found.state for found in await store.inbox.rows()} == {InboxState.SETTLED}, (
            "the apology blocked it"
        )

    async def test_sends_that_failed_can_be_tried_again(self, store: Queue, clock: ManualClock):
        """DEAD and UNKNOWN answers become PENDING with fresh counters; what was sent stays sent."""
        sent, dead, unknown = await answered(store, "a", "1", "2", "3")
        for row in (sent, dead, unknown):
            await store.outbox.sending(row)
        await store.outbox.record_send(sent, "$1")
        await store.outbox.record_failure(dead, "403", delay_s=None)
        await store.outbox.uncertain(unknown)
        await store.outbox.needs_review(unknown, "?")
        inbox_id = sent.inbox_id
        assert inbox_id is not None
        assert await store.inbox.requeue(inbox_id) == ROOM
        states = {row.message.text: (row.state, row.attempts) for row in await store.outbox.rows()}
        assert states == {
            "1": (OutboxState.SENT, 1),
            "2": (OutboxState.PENDING, 0),
            "3": (OutboxState.PENDING, 0),
        }
        for _ in range(2):
            (row,) = await store.outbox.next_sends("matrix", BOT)
            await store.outbox.sending(row)
            await store.outbox.record_send(row, f"again{row.id}")
        assert (await store.inbox.rows())[0].state is InboxState.SETTLED

    async def test_there_is_nothing_to_requeue_elsewhere(self, store: Queue, clock: ManualClock):
        """A waiting, a running, a settled, an ignored or an unknown message stays what it is."""
        (waiting,) = await accept(store, "a")
        assert await store.inbox.requeue(waiting.id) is None
        turn = await claim(store)
        assert await store.inbox.requeue(waiting.id) is None
        (row,) = await answer(store, turn)
        assert await store.inbox.requeue(waiting.id) is None
        await store.outbox.sending(row)
        await store.outbox.record_send(row, "$1")
        assert await store.inbox.requeue(waiting.id) is None
        (ignored,) = await store.inbox.accept("matrix", BOT, [pending("i", ignore="no")], {})
        assert await store.inbox.requeue(ignored.id) is None
        assert await store.inbox.requeue(999) is None

    async def test_a_message_can_be_given_up(self, store: Queue, clock: ManualClock):
        """A READY or DEAD one becomes IGNORED without its text; a turn loses the row and keeps the others."""
        first, second, _ = await accept(store, "a", "b", "c")
        turn = await claim(store, merge=2)
        await store.turns.record_step_result(turn, step(0, result={}))
        assert await store.inbox.drop(first.id) is False, "it is running"
        await store.turns.release(turn)
        assert await store.inbox.drop(first.id) is True
        assert await store.inbox.drop(first.id) is False
        (ignored,) = await store.inbox.rows(states=[InboxState.IGNORED])
        assert (ignored.id, ignored.message.text, ignored.error) == (first.id, "", "dropped")
        rest = await claim(store, merge=5)
        assert [row.id for row in rest.rows] == [second.id]
        assert len(await store.turns.steps(rest)) == 1
        await store.turns.dead_letter(rest, "no", [out("sorry")])
        assert await store.inbox.drop(second.id) is True
        assert [row.state for row in await store.outbox.rows()] == [OutboxState.DEAD]
        assert await store.inbox.drop(999) is False

    async def test_unsent_answers_are_given_up_with_their_message(self, store: Queue, clock: ManualClock):
        """What was not sent becomes DEAD; a send that was under way and arrived is sent all the same."""
        first, second = await answered(store, "a", "1", "2")
        await store.outbox.sending(first)
        assert first.inbox_id is not None
        assert await store.inbox.drop(first.inbox_id) is True
        assert {row.state for row in await store.outbox.rows()} == {OutboxState.DEAD}
        with pytest.raises(IllegalMove):
            await store.outbox.sending(second)
        await store.outbox.record_failure(first, "too late", delay_s=5)
        assert {row.state for row in await store.outbox.rows()} == {OutboxState.DEAD}
        await store.outbox.record_send(first, "$1")
        assert [row.state for row in await store.outbox.rows()] == [OutboxState.DEAD, OutboxState.SENT]

    async def test_a_reset_drops_what_waits(self, store: Queue, clock: ManualClock):
        """Waiting messages and lines on their way to the history are gone; other sessions keep theirs."""
        await answered(store, "a")
        await answered(store, "x", session=OTHER)
        await accept(store, "b", "c")
        await store.turns.retry(await claim(store), "later", delay_s=5, deferral=True)
        await accept(store, "y", session=OTHER)
        await store.inbox.reset_session(ROOM)
        clock.advance(10)
        assert await store.turns.claim(ROOM) is None
        assert await store.journal.lines(ROOM) == []
        assert len(await store.journal.lines(OTHER)) == 2
        assert (await claim(store, OTHER)).head.message.native_id == "y"
        assert {row.message.text for row in await store.inbox.rows(states=[InboxState.IGNORED])} == {""}

    async def test_counts_and_ages(self, store: Queue, clock: ManualClock):
        """Every state is counted, also with 0; ages are those of the oldest open rows."""
        empty = await store.maintenance.stats()
        assert set(empty.inbox) == set(InboxState)
        assert set(empty.outbox) == set(OutboxState)
        assert {*empty.inbox.values(), *empty.outbox.values(), empty.journal_lines} == {0}
        assert (empty.oldest_unanswered_s, empty.oldest_unsent_s) == (None, None)
        await accept(store, "a", "b")
        await answer(store, await claim(store))
        clock.advance(7)
        await accept(store, "c")
        stats = await store.maintenance.stats()
        assert (stats.inbox[InboxState.ANSWERED], stats.inbox[InboxState.READY]) == (1, 2)
        assert (stats.outbox[OutboxState.PENDING], stats.journal_lines) == (1, 2)
        assert (stats.oldest_unanswered_s, stats.oldest_unsent_s) == (pytest.approx(7), pytest.approx(7))

    async def test_what_ended_long_ago_is_forgotten(self, store: Queue, clock: ManualClock):
        """Texts of ended rows go, those of open ones stay, and the keys of all stay."""
        (row,) = await answered(store, "done", "answer")
        await store.outbox.sending(row)
        await store.outbox.record_send(row, "$1")
        (open_row,) = await answered(store, "open", "unsent", session=OTHER)
        await accept(store, "waiting")
        clock.advance(10 * DAY_S)
        await answered(store, "young")
        assert await store.maintenance.prune(older_than_s=5 * DAY_S) == 2
        assert await store.maintenance.prune(older_than_s=5 * DAY_S) == 0
        texts = {found.message.native_id: found.message.text for found in await store.inbox.rows()}
        assert texts == {
            "done": "",
            "open": "text of open",
            "waiting": "text of waiting",
            "young": "text of young",
        }
        sent = {found.message.id: found.message.text for found in await store.outbox.rows()}
        assert (sent[row.message.id], sent[open_row.message.id]) == ("", "unsent")
        assert await accept(store, "done", "open", "young") == []

    async def test_what_was_posted_once_is_forgotten_with_it(self, store: Queue, clock: ManualClock):
        """Where its message is forgotten, except for alerts: they are told again only with another value."""
        posts = [("message here", "1"), ("reminder x", "2"), ("alert disk", "3"), ("reminder open", "4")]
        for once in posts:
            (row,) = await store.outbox.post([out("told")], once=once)
            if once[0] != "reminder open":
                await store.outbox.sending(row)
                await store.outbox.record_send(row, f"${once[1]}")
        await store.maintenance.prune(older_than_s=5 * DAY_S)
        assert [await store.outbox.post([out("told")], once=once) for once in posts] == [
            []
        ] * 4  # the control
        clock.advance(10 * DAY_S)
        await store.maintenance.prune(older_than_s=5 * DAY_S)
        again = [await store.outbox.post([out("told")], once=once) for once in posts]
        assert [len(each) for each in again] == [1, 1, 0, 0]

    async def test_what_was_forgotten_cannot_be_tried_again(self, store: Queue, clock: ManualClock):
        """A dead message without its text has nothing to be answered."""
        await accept(store, "a")
        turn = await claim(store)
        await store.turns.dead_letter(turn, "no")
        clock.advance(10)
        assert await store.maintenance.prune(older_than_s=5) == 1
        assert await store.inbox.requeue(turn.head.id) is None

    async def test_an_ignored_message_is_recognised_for_ever(self, store: Queue, clock: ManualClock):
        """After a week its row is gone and a repetition is known all the same; ids are not given out again."""
        names = ("i0", "i1 \0☃", "i2 \ud83d")
        ignored = await store.inbox.accept("matrix", BOT, [pending(name, ignore="no") for name in names], {})
        (dropped,) = await accept(store, "d")
        turn = await claim(store)
        await store.turns.dead_letter(turn, "no", [out("sorry")])
        await store.inbox.drop(dropped.id)
        (last,) = await store.inbox.accept("matrix", BOT, [pending("last", ignore="no")], {})
        clock.advance(IGNORED_S - 60)
        await store.maintenance.prune(older_than_s=90 * DAY_S)
        assert len(await store.inbox.rows(states=[InboxState.IGNORED])) == 5
        clock.advance(120)
        assert await store.maintenance.prune(older_than_s=90 * DAY_S) == 3
        assert [row.id for row in await store.inbox.rows(states=[InboxState.IGNORED])] == [
            last.id,
            dropped.id,
        ]
        again = [pending(name) for name in (*names, "d", "last")]
        assert await store.inbox.accept("matrix", BOT, again, {}) == []
        (new,) = await store.inbox.accept("matrix", BOT, [pending("n"), pending(names[1])], {})
        assert new.id > last.id
        assert await store.inbox.row(ignored[0].id) is None
        assert (
            len(
                await store.inbox.accept(
                    "matrix", "@second:hs.test", [pending("i0", account="@second:hs.test")], {}
                )
            )
            == 1
        )

    async def lease_time_passes(self, store: Queue, clock: ManualClock, seconds: float) -> None:
        """Let the clock of the leases go on."""
        clock.advance(seconds)

    async def test_a_lease_has_one_holder(self, store: Queue, clock: ManualClock):
        """It is taken until it ends or is given back; its fence grows with each new holder only."""
        first = await store.maintenance.lease("matrix", holder="a", ttl_s=30)
        assert first is not None
        assert await store.maintenance.lease("matrix", holder="b", ttl_s=30) is None
        assert await store.maintenance.lease("email", holder="b", ttl_s=30) is not None
        await self.lease_time_passes(store, clock, 20)
        assert await store.maintenance.lease("matrix", holder="a", ttl_s=30) == first
        await self.lease_time_passes(store, clock, 29)
        assert await store.maintenance.lease("matrix", holder="b", ttl_s=30) is None
        await self.lease_time_passes(store, clock, 1)
        second = await store.maintenance.lease("matrix", holder="b", ttl_s=30)
        assert second is not None
        assert second > first
        assert await store.maintenance.lease("matrix", holder="a", ttl_s=30) is None
        await store.maintenance.release_lease("matrix", holder="a")
        assert await store.maintenance.lease("matrix", holder="a", ttl_s=30) is None
        await store.maintenance.release_lease("matrix", holder="b")
        third = await store.maintenance.lease("matrix", holder="a", ttl_s=30)
        assert third is not None
        assert third > second
        await store.maintenance.release_lease("nothing", holder="a")

    async def test_a_renewal_keeps_the_fence_and_gives_none(self, store: Queue, clock: ManualClock):
        """Whoever slept while another one had the lease cannot renew it, also when it is nobody's by now."""
        maintenance = store.maintenance
        first = await maintenance.lease("daemon", holder="a", ttl_s=30)
        assert first is not None
        await self.lease_time_passes(store, clock, 20)
        assert await maintenance.renew_lease("daemon", holder="a", fence=first, ttl_s=30)
        await self.lease_time_passes(store, clock, 20)
        assert await maintenance.lease("daemon", holder="b", ttl_s=30) is None
        [held] = await maintenance.leases()
        assert (held.name, held.holder, held.fence) == ("daemon", "a", first)
        assert 5 < held.left_s <= 10
        await self.lease_time_passes(store, clock, 10)
        assert await maintenance.leases() == []
        assert await maintenance.renew_lease("daemon", holder="a", fence=first, ttl_s=30)  # nobody was faster
        await self.lease_time_passes(store, clock, 30)
        assert await maintenance.lease("daemon", holder="b", ttl_s=30) == first + 1
        assert not await maintenance.renew_lease("daemon", holder="a", fence=first, ttl_s=30)
        await maintenance.release_lease("daemon", holder="b")
        assert not await maintenance.renew_lease("daemon", holder="a", fence=first, ttl_s=30)
        assert (
            await maintenance.lease("daemon", holder="a", ttl_s=30) == first + 2
        )  # the control: a new fence
        assert not await maintenance.renew_lease("daemon", holder="a", fence=first, ttl_s=30)

    async def test_machines_are_seen_while_they_live_and_for_a_week_after(
        self, store: Queue, clock: ManualClock
    ):
        """None of them has a right by that; one that ends in order is not missed."""
        maintenance = store.maintenance

        async def seen() -> list[tuple[str, str, bool, bool]]:
            found = await maintenance.machines("daemon", ttl_s=30)
            return [(one.holder, one.version, one.active, one.lives) for one in found]

        for machine, version in (("one", "1.0"), ("two", "1.1")):
            await maintenance.show_machine(machine, holder=f"{machine}/7/x", version=version, ttl_s=30)
        assert await maintenance.leases() == []
        assert await maintenance.lease("daemon", holder="one/7/x", ttl_s=30) == 1
        one, two = ("one/7/x", "1.0", True, True), ("two/7/x", "1.1", False, True)
        assert await seen() == [one, two]
        await self.lease_time_passes(store, clock, 20)
        await maintenance.show_machine("two", holder="two/7/x", version="1.1", ttl_s=30)
        await self.lease_time_passes(store, clock, 20)
        assert await seen() == [("one/7/x", "1.0", False, False), two]
        missing, lives = await maintenance.machines("daemon", ttl_s=30)
        assert 39 < missing.seen_s < 45 and 19 < lives.seen_s < 25
        await maintenance.show_machine("two", holder="two/8/y", version="1.2", ttl_s=30)
        await maintenance.hide_machine(
            "two", holder="two/7/x", version="1.1"
        )  # its next process is there already
        assert (await seen())[1:] == [("two/8/y", "1.2", False, True)]
        await maintenance.hide_machine("two", holder="two/8/y", version="1.2")
        assert [each[0] for each in await seen()] == ["one/7/x"]

    async def test_the_lease_of_a_dead_holder_is_taken_at_once(self, store: Queue):
        """By whoever knows its name, with the next fence; nobody else's."""
        assert await store.maintenance.lease("daemon", holder="a", ttl_s=30) == 1
        assert await store.maintenance.lease("daemon", holder="b", ttl_s=30, instead_of=["x"]) is None
        assert await store.maintenance.lease("daemon", holder="b", ttl_s=30, instead_of=["x", "a"]) == 2
        assert not await store.maintenance.renew_lease("daemon", holder="a", fence=1, ttl_s=30)

    async def test_background_jobs_are_found_among_all_messages(self, store: Queue, clock: ManualClock):
        """Newest first, also those that have ended; only the open ones where they are asked for."""
        await accept(store, "a")
        jobs = [background(number) for number in range(3)]
        for job in jobs:
            await store.inbox.accept("matrix", BOT, [Pending(job)], {})
        assert [row.message for row in await store.inbox.background_jobs()] == jobs[::-1]
        await store.inbox.accept("matrix", BOT, [Pending(jobs[0])], {})  # once more is nothing new
        turn = await claim(store, jobs[1].session)
        await store.turns.complete(turn, Completion())
        stop = Amendment(kind="stop", session=jobs[2].session)
        await store.inbox.accept("matrix", BOT, [], {}, [stop])
        states = [row.state for row in await store.inbox.background_jobs()]
        assert states == [InboxState.IGNORED, InboxState.SETTLED, InboxState.READY]
        assert [row.message for row in await store.inbox.background_jobs(open_only=True)] == [jobs[0]]
        assert len(await store.inbox.background_jobs(limit=2)) == 2
        assert (await store.maintenance.stats()).background_jobs == 1

    async def test_what_another_process_has_written_is_not_overwritten(self, store: Queue):
        """A text is exchanged for another one only while it is the one that was read."""
        assert not await store.state.swap("topic", "", "a")
        assert await store.state.swap("topic", None, "a")
        assert not await store.state.swap("topic", None, "b")
        assert not await store.state.swap("topic", "b", "c")
        assert await store.state.swap("topic", "a", "b")
        assert (await store.state.read("topic"), await store.state.read("other")) == ("b", None)
        assert await store.state.read_all("other", "topic", "topic") == [None, "b", "b"]
        assert await store.state.read_all() == []


def background(number: int) -> InboundMessage:
    """A background job of somebody in the room."""
    return job_message(
        f"turn {number}",
        text=f"task {number}",
        place=ROOM,
        account=BOT,
        person="@bob:hs.test",
        audience=Audience.DIRECT,
        at=EPOCH,
        context=MessageContext(),
    )
