"""The promises of `Queue` about what waits for a person: drafts and quarantined messages."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from agent_core.messages import Amendment, Attachment, MessageContext, MessageNotes, SessionKey
from gateway.store.states import QUARANTINE_S, IllegalMove, InboxState, OutboxState
from gateway.store.stores import Completion, Pending, Queue
from tests.clock import ManualClock
from tests.contract.queue_data import BOT, ROOM, accept, claim, out, pending

DAY_S = 86_400


async def quarantined(store: Queue, native_id: str = "q"):
    """A message that waits for a person."""
    entry = pending(native_id, quarantine="sender_not_verified", sender={"address": "bob@x.test"})
    (row,) = await store.inbox.accept("matrix", BOT, [entry], {})
    return row


class PersonContract:
    """What is held, and what is in quarantine."""

    async def test_a_draft_is_not_sent(self, store: Queue, clock: ManualClock):
        """It is kept whole, blocks nothing of its session, and its turn is not settled without it."""
        await accept(store, "a")
        turn = await claim(store)
        file = Attachment(name="a.txt", media_type="text/plain", size_bytes=3, path="attachments/a")
        held, later = await store.turns.complete(
            turn, Completion(outbound=[out("draft", hold=True, attachments=(file,)), out("later")])
        )
        assert (held.state, later.state) == (OutboxState.HELD, OutboxState.PENDING)
        assert await store.outbox.next_sends("matrix", BOT) == [later]
        await store.maintenance.recover()
        assert await store.outbox.rows(states=[OutboxState.HELD]) == [held]
        assert await store.outbox.row(held.id) == held
        assert held.message.attachments == (file,)
        await store.outbox.sending(later)
        await store.outbox.record_send(later, "$1")
        assert (await store.inbox.rows())[0].state is InboxState.ANSWERED
        assert await store.outbox.next_send_in("matrix", BOT) is None
        for move in (
            partial(store.outbox.sending, held),
            partial(store.outbox.record_send, held, "$2"),
            partial(store.outbox.record_failure, held, "no", delay_s=None),
        ):
            with pytest.raises(IllegalMove):
                await move()

    async def test_an_approved_draft_goes_its_way_once(self, store: Queue, clock: ManualClock):
        """With the same key, at the age of its approval, in the person's words if there are any."""
        (held,) = await store.outbox.post([out("draft", hold=True)])
        clock.advance(10 * DAY_S)
        approved = await store.outbox.approve(held.id, "improved")
        assert (approved.state, approved.message.text) == (OutboxState.PENDING, "improved")
        assert (approved.message.id, approved.message.created_at) == (held.message.id, clock.now())
        assert await store.outbox.next_sends("matrix", BOT) == [approved]
        for again in (
            partial(store.outbox.approve, held.id),
            partial(store.outbox.reject, held.id),
            partial(store.outbox.approve, 999),
        ):
            with pytest.raises(IllegalMove):
                await again()
        await store.outbox.sending(approved)
        await store.outbox.record_send(approved, "$1")
        with pytest.raises(IllegalMove):
            await store.outbox.approve(held.id)

    async def test_a_draft_is_approved_as_it_stands(self, store: Queue, clock: ManualClock):
        """Without other words its own are sent."""
        (held,) = await store.outbox.post([out("draft", hold=True)])
        assert (await store.outbox.approve(held.id)).message.text == "draft"

    async def test_a_rejected_draft_is_never_sent(self, store: Queue, clock: ManualClock):
        """It is dead with the reason, and cannot be approved afterwards."""
        (held,) = await store.outbox.post([out("draft", hold=True)])
        rejected = await store.outbox.reject(held.id, "too blunt")
        assert (rejected.state, rejected.error) == (OutboxState.DEAD, "rejected: too blunt")
        assert await store.outbox.next_sends("matrix", BOT) == []
        with pytest.raises(IllegalMove):
            await store.outbox.approve(held.id)

    async def test_what_could_not_be_sent_is_given_up_once(self, store: Queue, clock: ManualClock):
        """Failed or unknown; what waits, was sent or was given up before stays as it is."""
        failed, unknown, sent, waits = await store.outbox.post(
            [out(text) for text in ("failed", "unknown", "sent", "waits")]
        )
        await store.outbox.record_failure(failed, "403", delay_s=None)
        for row in (unknown, sent):
            await store.outbox.sending(row)
            await store.outbox.uncertain(row)
        await store.outbox.needs_review(unknown, "nobody knows")
        await store.outbox.record_send(sent, "$1")
        for row, why in ((failed, ""), (unknown, "said by telephone")):
            given_up = await store.outbox.reject(row.id, why)
            assert (given_up.state, given_up.error) == (
                OutboxState.DEAD,
                f"rejected: {why}" if why else "rejected",
            )
        for row in (failed, unknown, sent, waits):
            with pytest.raises(IllegalMove):
                await store.outbox.reject(row.id)

    async def test_a_rejected_draft_does_not_come_back_with_its_message(
        self, store: Queue, clock: ManualClock
    ):
        """What is tried again is what failed, not what somebody did not want."""
        (accepted,) = await accept(store, "a")
        turn = await claim(store)
        held, failed = await store.turns.complete(
            turn, Completion(outbound=[out("draft", hold=True), out("failed")])
        )
        await store.outbox.reject(held.id)
        assert await store.inbox.requeue(accepted.id) is None
        await store.outbox.record_failure(failed, "403", delay_s=None)
        assert await store.inbox.requeue(accepted.id) == ROOM
        assert [row.message.text for row in await store.outbox.next_sends("matrix", BOT)] == ["failed"]
        assert {row.state for row in await store.outbox.rows()} == {OutboxState.PENDING, OutboxState.DEAD}

    async def test_who_was_heard_is_found_by_address_and_by_room(self, store: Queue, clock: ManualClock):
        """However much others have written since; a name in a text, a mark of LIKE, what was kept back is none."""

        def of(sender: str, number: int, **more: Any) -> Pending:
            return pending(f"{sender}{number}", sender={"address": sender, "verified": True}, **more)

        await store.inbox.accept("matrix", BOT, [of("Bob_x@d.test", 1), of("bobYx@d.test", 1)], {})
        thread = SessionKey("matrix", ROOM.conversation, "t")
        batch = [of("@c:hs.test", each, text='"sender":{"address":"bob_x@d.test"') for each in range(60)]
        await store.inbox.accept("matrix", BOT, [of("@c:hs.test", 99, session=thread), *batch], {})
        await store.inbox.accept("matrix", BOT, [of("bob_x@d.test", 2, quarantine="x")], {})
        await store.inbox.accept("matrix", BOT, [of("bob_x@d.test", 3, ignore="x")], {})

        async def found(**what: Any) -> list[str]:
            return [
                row.message.native_id for row in await store.inbox.list_accepted_messages("matrix", **what)
            ]

        assert await found(sender="bob_x@d.test") == ["Bob_x@d.test1"]
        assert await found(sender="nobody@d.test") == []
        assert await found(session=ROOM, limit=3) == ["@c:hs.test59", "@c:hs.test58", "@c:hs.test57"]
        assert "@c:hs.test99" in await found(session=ROOM, limit=99)
        assert await store.inbox.list_accepted_messages("email", sender="bob_x@d.test") == []

    async def test_what_is_in_quarantine_is_kept_and_not_answered(self, store: Queue, clock: ManualClock):
        """It is known, whole, and nobody gets to claim it; a waiting message behind it is not held up."""
        row = await quarantined(store)
        assert (row.state, row.error) == (InboxState.QUARANTINED, "sender_not_verified")
        await accept(store, "b")
        assert (await claim(store, merge=5)).head.message.native_id == "b"
        assert await store.inbox.rows(states=[InboxState.QUARANTINED]) == [row]
        assert (row.message.text, row.message.context) == (
            "text of q",
            MessageContext(route={"event_id": "q"}),
        )
        stats = await store.maintenance.stats()
        assert (stats.inbox[InboxState.QUARANTINED], stats.outbox[OutboxState.HELD]) == (1, 0)
        assert await store.inbox.accept("matrix", BOT, [pending("q")], {}) == [], (
            "a repetition does not let it out"
        )

    async def test_what_is_let_in_is_answered_once(self, store: Queue, clock: ManualClock):
        """It waits in its session like any other, its sender counts as verified, and it is let in only once."""
        row = await quarantined(store)
        assert await store.inbox.admit(row.id) == ROOM
        turn = await claim(store)
        admitted = turn.head.message
        assert (admitted.sender.verified, admitted.notes) == (True, MessageNotes(admitted=True))
        assert (admitted.text, turn.head.error) == ("text of q", None)
        for wrong in (row.id, 999):
            with pytest.raises(IllegalMove):
                await store.inbox.admit(wrong)

    async def test_a_verified_sender_who_had_to_wait_is_no_less_proved(
        self, store: Queue, clock: ManualClock
    ):
        """Nobody has vouched for them by hand, so nothing says so."""
        sender = {"address": "bob@x.test", "verified": True}
        (row,) = await store.inbox.accept(
            "matrix", BOT, [pending("q", quarantine="restored", sender=sender)], {}
        )
        await store.inbox.admit(row.id)
        admitted = (await claim(store)).head.message
        assert (admitted.sender.verified, admitted.context) == (True, MessageContext(route={"event_id": "q"}))

    async def test_what_is_in_quarantine_can_be_dropped_and_taken_back(
        self, store: Queue, clock: ManualClock
    ):
        """Then its text is gone, and it cannot be let in."""
        first, second = await quarantined(store, "q1"), await quarantined(store, "q2")
        assert await store.inbox.drop(first.id)
        taken = Amendment(kind="withdraw", native_id="q2", sender="bob@x.test")
        await store.inbox.accept("matrix", BOT, [], {}, [taken])
        for row in (first, second):
            found = await store.inbox.row(row.id)
            assert found is not None
            assert (found[0].state, found[0].message.text) == (InboxState.IGNORED, "")
            with pytest.raises(IllegalMove):
                await store.inbox.admit(row.id)

    async def test_quarantine_ends(self, store: Queue, clock: ManualClock):
        """Whom nobody lets in is forgotten in the end, not before, and does not come again."""
        row = await quarantined(store)
        clock.advance(QUARANTINE_S - 60)
        await store.maintenance.prune(older_than_s=DAY_S)
        assert (await store.inbox.rows(states=[InboxState.QUARANTINED]))[0].message.text == "text of q"
        clock.advance(120)
        assert await store.maintenance.prune(older_than_s=90 * DAY_S) == 1
        (gone,) = await store.inbox.rows(states=[InboxState.IGNORED])
        assert (gone.error, gone.message.text) == ("quarantine_expired", "")
        with pytest.raises(IllegalMove):
            await store.inbox.admit(row.id)
        assert await store.inbox.accept("matrix", BOT, [pending("q")], {}) == []
