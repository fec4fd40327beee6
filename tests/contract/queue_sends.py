"""The promises of `Queue` about the outbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from agent_core.messages import Attachment, MessageContext, MessageNotes, OutboundKind, SessionKey
from agent_core.models import Message, Purpose, Usage
from agent_core.provenance import to_json, untrusted_origin
from gateway.store.states import IllegalMove, InboxState, OutboxState
from gateway.store.stores import Completion, OutboxRow, Queue
from tests.clock import EPOCH, ManualClock
from tests.contract.queue_data import BOT, OTHER, ROOM, accept, answer, answered, claim, out


async def due(store: Queue, *, busy: Sequence[SessionKey] = (), limit: int = 16) -> list[str]:
    return [row.message.text for row in await store.outbox.next_sends("matrix", BOT, busy=busy, limit=limit)]


async def state(store: Queue, row: OutboxRow) -> OutboxRow:
    return next(found for found in await store.outbox.rows() if found.id == row.id)


FILE = Attachment(
    name="table.md", media_type="text/markdown", size_bytes=3, path="attachments/x", sha256="ab" * 32
)


class SendsContract:
    """From ``post`` and ``complete`` to ``sent``."""

    async def test_what_a_row_stood_for_goes_out_in_its_place(self, store: Queue):
        """
        The row ends and its successor begins together, for the same turn, with the cost; a second time nothing
        happens. The message is settled when the successor has arrived.
        """
        [row] = await accept(store, "a")
        turn = await claim(store)
        made = Completion(outbound=[out("text"), replace(out("to be made"), channel="maker")])
        text, stands = await store.turns.complete(turn, made)
        await store.outbox.sending(text)
        await store.outbox.record_send(text, "$text")
        successor = out("made", attachments=(FILE,))
        cost = Usage(calls=1, cost_usd=0.5, model="m")
        with pytest.raises(IllegalMove):
            await store.outbox.pass_on(stands, successor, usage=cost, purpose=Purpose.SPEECH)
        await store.outbox.sending(stands)
        await store.outbox.uncertain(stands)
        passed = await store.outbox.pass_on(stands, successor, usage=cost, purpose=Purpose.SPEECH)
        with pytest.raises(IllegalMove):
            await store.outbox.pass_on(stands, successor, usage=cost, purpose=Purpose.SPEECH)
        await store.outbox.record_send(stands, "made")  # whoever has delivered it says so, too

        assert (await state(store, stands)).state is OutboxState.SENT
        assert await due(store) == ["made"]
        found = await store.inbox.row(row.id)
        assert found is not None
        assert found[0].state is InboxState.ANSWERED
        assert [each.message.text for each in found[1]] == ["text", "to be made", "made"]
        assert [(each.purpose, each.usage.cost_usd) for each in await store.usage.rows()] == [("speech", 0.5)]
        await store.outbox.sending(passed)
        await store.outbox.record_send(passed, "$made")
        found = await store.inbox.row(row.id)
        assert found is not None
        assert found[0].state is InboxState.SETTLED

    async def test_what_is_remembered_keeps_its_origins_and_files(self, store: Queue):
        """The line where it has arrived says whose words have come in with it; without any, nobody's."""
        there = SessionKey("matrix", "!found:hs.test")
        made_of = (untrusted_origin("web", "https://example.org", EPOCH - timedelta(days=1)),)
        [first, second] = await store.outbox.post(
            [
                out(
                    "table",
                    session=OTHER,
                    remembered=True,
                    attachments=(FILE,),
                    context=MessageContext(notes=MessageNotes(origins=to_json(made_of))),
                ),
                out("plain", session=OTHER, remembered=True),
            ]
        )
        for row in (first, second):
            await store.outbox.sending(row)
            await store.outbox.record_send(row, f"$of-{row.id}", into=there)
        lines = [line.message for line in await store.journal.lines(there)]
        assert [line.content for line in lines] == ["table", "plain"]
        assert [line.attachments for line in lines] == [(FILE,), ()]
        assert lines[0].origins is not None
        assert [(each.kind, each.at) for each in lines[0].origins] == [("web", lines[0].timestamp)]
        assert lines[1].origins == ()

    async def test_a_destination_gets_its_messages_in_order(self, store: Queue, clock: ManualClock):
        """Only the oldest open row of each session is offered, the oldest first, and none of a busy one."""
        await store.outbox.post([out("1"), out("2"), out("x", session=OTHER), out("3")])
        assert await due(store) == ["1", "x"]
        assert await due(store, limit=1) == ["1"]
        assert await due(store, busy=[ROOM]) == ["x"]
        for expected in ("1", "2", "3"):
            row = (await store.outbox.next_sends("matrix", BOT, busy=[OTHER]))[0]
            assert row.message.text == expected
            await store.outbox.sending(row)
            await store.outbox.uncertain(row)
            await store.outbox.record_send(row, f"${expected}")
        assert await due(store) == ["x"]

    async def test_a_topic_is_posted_once_for_a_value(self, store: Queue, clock: ManualClock):
        """
        The second time nothing happens, with its history and all; another value and another topic are posted,
        and each under a key of its own.
        """
        line = Message(role="assistant", content="1", id="once")
        first = await store.outbox.post([out("1")], once=("digest", "monday"), history=[(ROOM, [line])])
        again = await store.outbox.post([out("2")], once=("digest", "monday"), history=[(ROOM, [line])])
        assert [row.message.text for row in first] == ["1"]
        assert again == []
        assert [found.message.id for found in await store.journal.lines(ROOM)] == ["once"]
        others = [
            *await store.outbox.post([out("3")], once=("digest", "tuesday")),
            *await store.outbox.post([out("4")], once=("budget", "monday")),
            *await store.outbox.post([out("5")]),
            *await store.outbox.post([out("5")]),
        ]
        assert [row.message.text for row in await store.outbox.rows()] == ["5", "5", "4", "3", "1"]
        assert len({row.message.id for row in [*first, *others]}) == 5

    async def test_channels_and_accounts_are_apart(self, store: Queue, clock: ManualClock):
        """Each channel and account sees its own rows only."""
        await store.outbox.post([out("m"), out("e", session=SessionKey("email", "thread"))])
        assert await due(store) == ["m"]
        assert [row.message.text for row in await store.outbox.next_sends("email", BOT)] == ["e"]
        assert await store.outbox.next_sends("matrix", "@second:hs.test") == []
        assert await store.outbox.next_send_in("matrix", "@second:hs.test") is None

    async def test_a_row_goes_its_way_with_the_same_key(self, store: Queue, clock: ManualClock):
        """The message and its key never change from the first commit to the last retry."""
        (row,) = await answered(store, "a", "hello")
        keys = {row.message.id}
        for round_ in range(3):
            (offered,) = await store.outbox.next_sends("matrix", BOT)
            keys.add(offered.message.id)
            assert (offered.attempts, offered.message) == (round_, row.message)
            await store.outbox.sending(offered)
            await store.outbox.record_failure(offered, "no", delay_s=1)
            await store.maintenance.recover()
            clock.advance(1)
        assert len(keys) == 1

    async def test_keys_are_all_different(self, store: Queue, clock: ManualClock):
        """No two rows share a key, also not those with the same text, and a turn that was requeued has new ones."""
        rows = await answered(store, "a", "same", "same")
        rows += await answered(store, "b", "same", session=OTHER)
        rows += await store.outbox.post([out("same"), out("same")])
        await accept(store, "c")
        turn = await claim(store)
        rows += await store.turns.dead_letter(turn, "no", [out("same")])
        await store.inbox.requeue(turn.head.id)
        rows += await answer(store, await claim(store), "same")
        assert len({row.message.id for row in rows}) == len(rows) == 7

    async def test_states_of_a_send(self, store: Queue, clock: ManualClock):
        """Each call moves the row as the table of moves says, and counts attempts where it begins."""
        (row,) = await answered(store, "a")
        await store.outbox.sending(row)
        assert ((now := await state(store, row)).state, now.attempts) == (OutboxState.SENDING, 1)
        await store.outbox.uncertain(row)
        assert (now := await state(store, row)).state is OutboxState.UNCERTAIN
        assert now.uncertain_since == clock.now()
        await store.outbox.record_send(row, "$event")
        now = await state(store, row)
        assert (now.state, now.provider_id, now.error) == (OutboxState.SENT, "$event", None)

    async def test_moves_that_do_not_exist_change_nothing(self, store: Queue, clock: ManualClock):
        """A move that the table does not know raises, and the row stays as it was."""
        (row,) = await store.outbox.post([out("1")])
        for attempt in (
            partial(store.outbox.uncertain, row),
            partial(store.outbox.record_send, row, "$1"),
            partial(store.outbox.needs_review, row, "?"),
        ):
            with pytest.raises(IllegalMove):
                await attempt()
        assert await state(store, row) == row
        await store.outbox.sending(row)
        await store.outbox.record_send(row, "$1")
        done = await state(store, row)
        for attempt in (
            partial(store.outbox.sending, row),
            partial(store.outbox.uncertain, row),
            partial(store.outbox.needs_review, row, "?"),
        ):
            with pytest.raises(IllegalMove):
                await attempt()
        assert await state(store, row) == done

    async def test_a_certain_failure_waits_and_blocks_its_session(self, store: Queue, clock: ManualClock):
        """The row is pending again after its time; what follows in the session waits with it."""
        first, _ = await store.outbox.post([out("1"), out("2")])
        await store.outbox.sending(first)
        await store.outbox.record_failure(first, "503", delay_s=10)
        now = await state(store, first)
        assert (now.state, now.error, now.attempts) == (OutboxState.PENDING, "503", 1)
        assert await due(store) == []
        assert await store.outbox.next_send_in("matrix", BOT) == pytest.approx(10)
        assert await store.outbox.next_send_in("matrix", BOT, busy=[ROOM]) is None
        clock.advance(10)
        assert await store.outbox.next_send_in("matrix", BOT) == 0.0
        assert await due(store) == ["1"]

    async def test_a_failure_for_good_makes_way(self, store: Queue, clock: ManualClock):
        """A dead row is not offered again and does not block the next one."""
        first, _ = await store.outbox.post([out("1"), out("2")])
        await store.outbox.sending(first)
        await store.outbox.record_failure(first, "403", delay_s=None)
        assert (await state(store, first)).state is OutboxState.DEAD
        assert await due(store) == ["2"]

    async def test_what_may_have_arrived_stays_uncertain(self, store: Queue, clock: ManualClock):
        """An uncertain failure is offered again as UNCERTAIN, with the time since when it is."""
        (row,) = await store.outbox.post([out("1")])
        await store.outbox.sending(row)
        await store.outbox.uncertain(row)
        since = clock.now()
        clock.advance(5)
        await store.outbox.record_failure(row, "the answer was lost", delay_s=10, certain=False)
        assert await due(store) == []
        clock.advance(10)
        (offered,) = await store.outbox.next_sends("matrix", BOT)
        assert (offered.state, offered.uncertain_since) == (OutboxState.UNCERTAIN, since)
        await store.outbox.sending(offered)
        await store.outbox.record_send(offered, "$1")

    async def test_texts_leave_the_state_with_what_is_posted_or_nothing_happens(self, store: Queue):
        """One that changed meanwhile, or is gone, stops all of it; what was posted under a name is known."""
        once = ("message dm", "turn 1")
        for topic in ("alerts/a", "alerts/b", "alerts0", "alerts"):
            await store.state.write(topic, "text")
        found = await store.state.read_below("alerts/")
        assert found == {"alerts/a": "text", "alerts/b": "text"}
        await store.state.write("alerts/b", "newer")
        assert await store.outbox.post([out("1")], once=once, texts=found) == []
        assert await store.state.read_below("alerts/") == {"alerts/a": "text", "alerts/b": "newer"}
        assert not await store.outbox.is_posted(once)
        assert len(await store.outbox.post([out("2")], once=once, texts={"alerts/a": "text"})) == 1
        assert await store.outbox.is_posted(once)
        assert await store.outbox.post([out("3")], texts={"alerts/a": "text"}) == []
        assert await store.outbox.post([out("4")], once=once, texts={"alerts/b": "newer"}) == []
        assert await store.state.read_below("alerts/") == {}
        assert await store.outbox.post([out("5")], once=("message dm", "turn 2")) != []
        assert await store.outbox.is_posted(once), "an older value is known, too"
        assert [row.message.text for row in await store.outbox.rows()] == ["5", "2"]

    async def test_a_probe_is_in_flight_and_no_attempt(self, store: Queue, clock: ManualClock):
        """Who dies of asking is known; the doubt and the attempts stay as they were, and so does what may follow."""
        (row,) = await store.outbox.post([out("1")])
        await store.outbox.sending(row)
        await store.outbox.uncertain(row)
        for deaths in (1, 2):
            await store.outbox.probing(row)
            await store.maintenance.recover()
            now = await state(store, row)
            assert (now.state, now.attempts) == (OutboxState.UNCERTAIN, 1)
            assert [one.record.deaths for one in await store.maintenance.suspects()] == [deaths]
        await store.outbox.probing(row)
        await store.outbox.uncertain(row)
        await store.outbox.needs_review(row, "nobody can say")
        assert await store.maintenance.suspects() == []

    async def test_a_probe_that_says_no_makes_it_pending(self, store: Queue, clock: ManualClock):
        """When the server surely does not have it, it is as if it had never left."""
        (row,) = await store.outbox.post([out("1")])
        await store.outbox.sending(row)
        await store.outbox.uncertain(row)
        await store.outbox.record_failure(row, "it is not there", delay_s=0)
        now = await state(store, row)
        assert (now.state, now.uncertain_since) == (OutboxState.PENDING, None)
        await store.outbox.sending(row)
        await store.maintenance.recover()
        assert (await state(store, row)).state is OutboxState.PENDING

    async def test_what_nobody_knows_waits_for_a_person(self, store: Queue, clock: ManualClock):
        """A parked row is UNKNOWN, is not offered and blocks nobody; a person may find that it has arrived."""
        first, _ = await store.outbox.post([out("1"), out("2")])
        await store.outbox.sending(first)
        await store.outbox.uncertain(first)
        await store.outbox.needs_review(first, "nobody can tell")
        now = await state(store, first)
        assert (now.state, now.error) == (OutboxState.UNKNOWN, "nobody can tell")
        assert await due(store) == ["2"]
        await store.outbox.record_send(first, "$found")
        assert (await state(store, first)).state is OutboxState.SENT

    async def test_after_a_crash_only_the_uncertain_is_uncertain(self, store: Queue, clock: ManualClock):
        """`recover` makes SENDING pending and leaves UNCERTAIN, also one that was just being sent again."""
        rows = await store.outbox.post([out(str(n), session=SessionKey("matrix", f"!{n}")) for n in range(3)])
        for row in rows:
            await store.outbox.sending(row)
        for row in rows[1:]:
            await store.outbox.uncertain(row)
        await store.outbox.sending(rows[2])
        await store.maintenance.recover()
        await store.maintenance.recover()
        states = [(await state(store, row)).state for row in rows]
        assert states == [OutboxState.PENDING, OutboxState.UNCERTAIN, OutboxState.UNCERTAIN]

    async def test_a_send_that_nobody_ended_can_begin_again(self, store: Queue, clock: ManualClock):
        """A row left in SENDING is offered to whoever is not busy with it, and may be begun again."""
        (row,) = await store.outbox.post([out("1")])
        await store.outbox.sending(row)
        assert await store.outbox.next_send_in("matrix", BOT) is None
        (offered,) = await store.outbox.next_sends("matrix", BOT)
        await store.outbox.sending(offered)
        assert (await state(store, row)).attempts == 2

    async def test_a_turn_is_settled_with_its_last_answer(self, store: Queue, clock: ManualClock):
        """All rows of the turn are SETTLED when the last of its messages was sent, and not before."""
        await accept(store, "a", "b")
        rows = await answer(store, await claim(store, merge=2), "one", "two")
        for row, expected in zip(rows, (InboxState.ANSWERED, InboxState.SETTLED), strict=True):
            await store.outbox.sending(row)
            await store.outbox.record_send(row, f"${row.id}")
            assert {found.state for found in await store.inbox.rows()} == {expected}

    async def test_an_answer_elsewhere_settles_as_well(self, store: Queue, clock: ManualClock):
        """What a turn sends into another session belongs to it all the same."""
        await accept(store, "tick", kind="tick")
        turn = await claim(store)

        (row,) = await store.turns.complete(
            turn, Completion(outbound=[out("alert", session=OTHER, kind=OutboundKind.ALERT)])
        )
        await store.outbox.sending(row)
        await store.outbox.record_send(row, "$1")
        assert (await store.inbox.rows())[0].state is InboxState.SETTLED

    async def test_an_answer_that_died_leaves_its_turn_answered(self, store: Queue, clock: ManualClock):
        """What a server refused for good was not taken: the turn is not settled, so that a person sees it."""
        one, two = await answered(store, "a", "one", "two")
        await store.outbox.sending(one)
        await store.outbox.record_failure(one, "403", delay_s=None)
        await store.outbox.sending(two)
        await store.outbox.record_send(two, "$2")
        assert (await store.inbox.rows())[0].state is InboxState.ANSWERED

    async def test_to_be_told_twice_does_no_harm(self, store: Queue, clock: ManualClock):
        """That a message was sent may be told again."""
        (row,) = await answered(store, "a")
        await store.outbox.sending(row)
        await store.outbox.record_send(row, "$1")
        await store.outbox.record_send(row, "$1")
        assert (await store.inbox.rows())[0].state is InboxState.SETTLED

    async def test_an_echo_is_recognised(self, store: Queue, clock: ManualClock):
        """The key of what was sent is found by the server's name of it, per channel and account."""
        (row,) = await store.outbox.post([out("1")])
        await store.outbox.sending(row)
        await store.outbox.record_send(row, "$event")
        assert await store.outbox.outbox_id_of("matrix", BOT, "$event") == row.message.id
        assert await store.outbox.outbox_id_of("matrix", BOT, "$other") is None
        assert await store.outbox.outbox_id_of("email", BOT, "$event") is None

    async def test_what_the_server_may_have_is_known_by_its_key(self, store: Queue, clock: ManualClock):
        """From the moment before the request until somebody knows, per channel and account."""
        (row,) = await store.outbox.post([out("1")])
        assert await store.outbox.unconfirmed_keys("matrix", BOT) == []
        await store.outbox.sending(row)
        await store.outbox.uncertain(row)
        assert await store.outbox.unconfirmed_keys("matrix", BOT) == [row.message.id]
        assert await store.outbox.unconfirmed_keys("email", BOT) == []
        assert await store.outbox.unconfirmed_keys("matrix", "@other:hs.test") == []
        await store.outbox.probing(row)
        assert await store.outbox.unconfirmed_keys("matrix", BOT) == [row.message.id]
        await store.outbox.record_send(row, "$event")
        assert await store.outbox.unconfirmed_keys("matrix", BOT) == []

    async def test_when_the_next_one_is_due(self, store: Queue, clock: ManualClock):
        """The soonest head counts; a row behind another one does not, nor one in somebody's hands."""
        assert await store.outbox.next_send_in("matrix", BOT) is None
        mine, _, other = await store.outbox.post([out("1"), out("2"), out("x", session=OTHER)])
        assert await store.outbox.next_send_in("matrix", BOT) == 0.0
        await store.outbox.sending(mine)
        await store.outbox.sending(other)
        assert await store.outbox.next_send_in("matrix", BOT) is None
        await store.outbox.record_failure(mine, "no", delay_s=60)
        await store.outbox.record_failure(other, "no", delay_s=20)
        assert await store.outbox.next_send_in("matrix", BOT) == pytest.approx(20)
        assert await store.outbox.next_send_in("matrix", BOT, busy=[OTHER]) == pytest.approx(60)
