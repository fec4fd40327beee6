"""The negative controls: stores with one defect each, and the test of the contract that sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from inspect import signature

import pytest

from agent_core.messages import Amendment, SessionKey
from gateway.store.sql.inbox_store import InboxStore
from gateway.store.sql.maintenance_store import MaintenanceStore
from gateway.store.sql.outbox_store import OutboxStore
from gateway.store.sql.state_store import HistoryJournal, StateStore
from gateway.store.sql.turn_store import TurnStore
from gateway.store.states import InboxState
from gateway.store.stores import Completion, OutboxRow, Turn
from tests.clock import ManualClock
from tests.contract.queue_contract import QueueContract
from tests.doubles.broken_queue import opened_with


class ForgetsKeys(InboxStore):
    """Knows what it has seen by heart, and gives every message a key of its own."""

    seen = 0

    async def accept(self, channel, account, batch, positions, amendments=()):
        fresh = []
        for entry in batch:
            type(self).seen += 1
            new_id = f"{entry.message.native_id}~{self.seen}"
            fresh.append(replace(entry, message=entry.message.model_copy(update={"native_id": new_id})))
        rows = await super().accept(channel, account, fresh, positions)
        return [replace(row, message=entry.message) for row, entry in zip(rows, batch, strict=True)]


class KeepsBodies(InboxStore):
    """Stores what it should only remember."""

    async def accept(self, channel, account, batch, positions, amendments=()):
        rows = await super().accept(
            channel, account, [replace(entry, ignore=None) for entry in batch], positions
        )
        for row in rows:
            await self._writer.call(
                "spoil",
                lambda db, i=row.id: db.execute("UPDATE inbox SET state='ignored' WHERE id=?", (i,)) and None,
            )
        return rows


class ClaimsWhatWaits(TurnStore):
    """Takes no notice of retry times."""

    async def claim(self, session, *, merge=1):
        await self._writer.call("spoil", lambda db: db.execute("UPDATE inbox SET next_at = NULL") and None)
        return await super().claim(session, merge=merge)


class MergesTicks(TurnStore):
    """Takes a tick for a message."""

    async def claim(self, session, *, merge=1):
        await self._writer.call("spoil", lambda db: db.execute("UPDATE inbox SET kind = 'message'") and None)
        return await super().claim(session, merge=merge)


class NewTurns(MaintenanceStore):
    """Makes a new turn of the same rows after a crash."""

    async def recover(self):
        await super().recover()
        await self._writer.call("spoil", lambda db: db.execute("UPDATE inbox SET turn = NULL") and None)


class NoFence(TurnStore):
    """Lets an older claim complete."""

    async def complete(self, turn, completion):
        (fence,) = await self._reader.call(
            "spoil", lambda db: db.execute("SELECT MAX(fence) FROM inbox").fetchone()
        )
        return await super().complete(replace(turn, fence=fence), completion)


class SendsSeparately(TurnStore):
    """Answers and outbox are two commits, the outbox first."""

    async def complete(self, turn: Turn, completion: Completion) -> list[OutboxRow]:
        rows = await OutboxStore(self._database).post(completion.outbound)
        await super().complete(turn, replace(completion, outbound=()))
        return rows


class DropsSteps(TurnStore):
    """A new start begins from nothing."""

    async def claim(self, session, *, merge=1):
        await self._writer.call("spoil", lambda db: db.execute("DELETE FROM turn_steps") and None)
        return await super().claim(session, merge=merge)


class AlwaysNew(TurnStore):
    """Says of a turn that was begun before that it is new, so nobody looks for its steps."""

    async def claim(self, session, *, merge=1):
        turn = await super().claim(session, merge=merge)
        return turn and replace(turn, is_new=True)


class NewestFirst(OutboxStore):
    """Sends the newest message of a session first."""

    async def next_sends(self, channel, account, *, busy=(), limit=16):
        rows = await super().next_sends(channel, account, busy=busy, limit=limit)
        newest: dict[SessionKey, OutboxRow] = {}
        for row in await self.rows(limit=1000):
            newest.setdefault(row.message.session, row)
        return [newest[row.message.session] for row in rows]


class ForgetsDoubt(MaintenanceStore):
    """After a crash everything is merely pending."""

    async def recover(self):
        await super().recover()
        await self._writer.call(
            "spoil",
            lambda db: db.execute("UPDATE outbox SET state='pending' WHERE state='uncertain'") and None,
        )


class NewKeys(OutboxStore):
    """Makes a key for each try."""

    tries = 0

    async def next_sends(
        self, channel: str, account: str, *, busy: Sequence[SessionKey] = (), limit: int = 16
    ):
        type(self).tries += 1
        rows = await super().next_sends(channel, account, busy=busy, limit=limit)
        return [
            replace(row, message=row.message.model_copy(update={"id": f"{row.message.id}{self.tries}"}))
            for row in rows
        ]


class SettlesEarly(OutboxStore):
    """Settles a turn with its first answer."""

    async def record_send(self, row, provider_id, **more):
        await super().record_send(row, provider_id, **more)
        await self._writer.call("spoil", lambda db: db.execute("UPDATE inbox SET state='settled'") and None)


class EternalLease(MaintenanceStore):
    """Renews for anybody with the same fence."""

    async def lease(self, name, *, holder, ttl_s):
        return await super().lease(name, holder="anybody", ttl_s=ttl_s)


class ForgetsOpenOnes(MaintenanceStore):
    """Prunes by age alone."""

    async def prune(self, *, older_than_s):
        before = self._now() - older_than_s
        return await self._writer.call(
            "spoil",
            lambda db: (
                db.execute("UPDATE inbox SET payload = NULL WHERE accepted_at < ?", (before,)).rowcount
            ),
        )


class ReusesLineIds(HistoryJournal):
    """Counts journal lines from the start when none is left."""

    async def delete_filed_lines(self, ids):
        await super().delete_filed_lines(ids)
        await self._writer.call("spoil", lambda db: db.execute("DELETE FROM sqlite_sequence") and None)


def amending(change):
    """A store that changes amendments on their way in."""

    class Amended(InboxStore):
        async def accept(self, channel, account, batch, positions, amendments=()):
            changed = [new for each in amendments for new in change(each)]
            return await super().accept(channel, account, batch, positions, changed)

    return Amended


def whoever(amendment: Amendment) -> list[Amendment]:
    """As if everybody had written everything."""
    return [amendment.model_copy(update={"sender": "@alice:hs.test"})]


class TrustsAnybody(amending(whoever)):
    """Lets anybody edit and take back."""


class StopsAgain(InboxStore):
    """Takes the repetition of a stop for a new one."""

    async def accept(self, channel, account, batch, positions, amendments=()):
        rows = await super().accept(channel, account, batch, positions, amendments)
        new = {row.message.native_id for row in rows}
        again = [
            each.model_copy(update={"native_id": ""}) for each in amendments if each.native_id not in new
        ]
        await super().accept(channel, account, [], {}, again)
        return rows


class StopsNothing(amending(lambda each: [] if each.kind in ("stop", "leave") else [each])):
    """Forgets to stop."""


class EditsWhatRuns(InboxStore):
    """Changes the text of a turn that runs, and lets that be answered."""

    async def accept(self, channel, account, batch, positions, amendments=()):
        running = {row.message.native_id for row in await self.rows(states=[InboxState.RUNNING])}
        late = [each for each in amendments if each.kind == "replace" and each.native_id in running]
        others = [each for each in amendments if each not in late]
        rows = await super().accept(channel, account, batch, positions, others)
        spoil = "UPDATE inbox SET payload = json_set(payload, '$.text', ?) WHERE native_id = ?"
        values = [(each.text, each.native_id) for each in late]
        await self._writer.call("spoil", lambda db: db.executemany(spoil, values) and None)
        return rows


class NotesNothing(InboxStore):
    """Drops edits and deletions of what was answered."""

    async def accept(self, channel, account, batch, positions, amendments=()):
        over = await self.rows(states=[InboxState.ANSWERED, InboxState.SETTLED], limit=1000)
        late = {row.message.native_id for row in over}
        others = [each for each in amendments if each.native_id not in late]
        return await super().accept(channel, account, batch, positions, others)


class WithdrawsLate(InboxStore):
    """Only remembers what is taken back while it runs, and lets the turn be answered."""

    async def accept(self, channel, account, batch, positions, amendments=()):
        rows = await super().accept(channel, account, batch, positions)
        running = {row.message.native_id for row in await self.rows(states=[InboxState.RUNNING])}
        now = [each for each in amendments if each.native_id not in running]
        await super().accept(channel, account, [], {}, now)
        return rows


class TakesOutOfTurns(MaintenanceStore):
    """Takes a message out of a turn although the turn has done something."""

    async def recover(self):
        await super().recover()
        spoil = "UPDATE inbox SET state = 'ignored' WHERE state = 'ready' AND withdrawn IS NOT NULL"
        await self._writer.call("spoil", lambda db: db.execute(spoil) and None)


class PostsDrafts(OutboxStore):
    """Takes a draft that answers nothing for a message."""

    async def post(self, outbound, **belongings):
        return await super().post([replace(new, hold=False) for new in outbound], **belongings)


class SendsDrafts(TurnStore):
    """Takes a draft for a message."""

    async def complete(self, turn, completion):
        given = [replace(new, hold=False) for new in completion.outbound]
        return await super().complete(turn, replace(completion, outbound=given))


class PostsAgain(OutboxStore):
    """Forgets what was posted once."""

    async def post(self, outbound, *, once=None, **belongings):
        return await super().post(outbound, **belongings)


class PostsOneTopic(OutboxStore):
    """Takes all topics for one."""

    async def post(self, outbound, *, once=None, **belongings):
        return await super().post(outbound, once=once and ("topic", once[1]), **belongings)


class ApprovesTwice(OutboxStore):
    """Lets a draft be approved again and again."""

    async def approve(self, outbox_id, text=None):
        spoil = "UPDATE outbox SET state = 'held' WHERE id = ?"
        await self._writer.call("spoil", lambda db: db.execute(spoil, (outbox_id,)) and None)
        return await super().approve(outbox_id, text)


class AdmitsAll(InboxStore):
    """Has no quarantine."""

    async def accept(self, channel, account, batch, positions, amendments=()):
        given = [replace(entry, quarantine=None) for entry in batch]
        return await super().accept(channel, account, given, positions, amendments)


class AdmitsUnproven(InboxStore):
    """Lets a message in, and keeps its sender a stranger."""

    async def admit(self, inbox_id):
        session = await super().admit(inbox_id)
        spoil = (
            "UPDATE inbox SET payload = json_set(payload, '$.sender.verified', json('false')) WHERE id = ?"
        )
        await self._writer.call("spoil", lambda db: db.execute(spoil, (inbox_id,)) and None)
        return session


class ForgetsIgnored(MaintenanceStore):
    """Throws ignored rows away, keys and all."""

    async def prune(self, *, older_than_s):
        done = await super().prune(older_than_s=older_than_s)
        await self._writer.call("spoil", lambda db: db.execute("DELETE FROM seen") and None)
        return done


class EveryKind(InboxStore):
    """Takes every message for a background job."""

    async def background_jobs(self, *, open_only=False, limit=50):
        return await self.rows(limit=limit)


class MergesPlaces(TurnStore):
    """Knows no conversation in several places."""

    async def claim(self, session, *, merge=1):
        alike = "UPDATE inbox SET payload = replace(payload, 'other', 'room') WHERE payload IS NOT NULL"
        await self._writer.call("spoil", lambda db: db.execute(alike) and None)
        return await super().claim(session, merge=merge)


class MergesSenders(TurnStore):
    """Makes one turn of what several people have written."""

    async def claim(self, session, *, merge=1):
        alike = "UPDATE inbox SET payload = replace(payload, '@bob', '@alice') WHERE payload IS NOT NULL"
        await self._writer.call("spoil", lambda db: db.execute(alike) and None)
        return await super().claim(session, merge=merge)


class MovesWhatRuns(InboxStore):
    """Takes a message away from whoever works on it."""

    async def ready_work(self, sessions):
        move = "UPDATE inbox SET session = ? WHERE id = ? AND session <> ?"
        for row_id, session in sessions.items():
            given = (str(session), row_id, str(session))
            await self._writer.call("spoil", lambda db, g=given: db.execute(move, g) and None)
        return 1 if sessions else 0


class PassesOnForEver(OutboxStore):
    """Puts what is made beside what it stood for."""

    async def pass_on(self, row, outbound, *, usage, purpose):
        [posted] = await self.post([outbound])
        return posted


class SwapsAnything(StateStore):
    """Puts a text in the place of one that nobody has read."""

    async def swap(self, topic, old, new):
        await self.write(topic, new)
        return True


BROKEN = [
    (SwapsAnything, "test_what_another_process_has_written_is_not_overwritten"),
    (MergesPlaces, "test_of_a_conversation_in_several_places_a_turn_is_of_one"),
    (MergesSenders, "test_a_turn_is_of_one_sender"),
    (MovesWhatRuns, "test_what_waits_is_worked_on_where_it_belongs_by_now"),
    (PassesOnForEver, "test_what_a_row_stood_for_goes_out_in_its_place"),
    (EveryKind, "test_background_jobs_are_found_among_all_messages"),
    (ForgetsKeys, "test_background_jobs_are_found_among_all_messages"),
    (TrustsAnybody, "test_an_edited_message_says_the_new_text"),
    (TrustsAnybody, "test_what_was_taken_back_is_not_answered"),
    (EditsWhatRuns, "test_an_edit_while_the_model_works_is_asked_again"),
    (EditsWhatRuns, "test_what_was_taken_back_before_an_edit_stays_so"),
    (EditsWhatRuns, "test_a_model_knows_what_was_done_for_the_text_before"),
    (NotesNothing, "test_an_edit_of_an_answered_message_is_noted"),
    (NotesNothing, "test_a_deletion_of_an_answered_message_is_noted"),
    (WithdrawsLate, "test_a_running_turn_is_lost_with_its_last_message"),
    (TakesOutOfTurns, "test_a_start_after_a_crash_knows_what_was_taken_back"),
    (StopsAgain, "test_a_stop_that_comes_again_stops_nothing"),
    (StopsNothing, "test_a_stop_ends_what_came_before_it"),
    (StopsNothing, "test_who_has_left_says_nothing_more"),
    (PostsAgain, "test_a_topic_is_posted_once_for_a_value"),
    (PostsOneTopic, "test_a_topic_is_posted_once_for_a_value"),
    (SendsDrafts, "test_a_draft_is_not_sent"),
    (PostsDrafts, "test_a_rejected_draft_is_never_sent"),
    (ApprovesTwice, "test_an_approved_draft_goes_its_way_once"),
    (ApprovesTwice, "test_a_rejected_draft_is_never_sent"),
    (AdmitsAll, "test_what_is_in_quarantine_is_kept_and_not_answered"),
    (AdmitsUnproven, "test_what_is_let_in_is_answered_once"),
    (ForgetsIgnored, "test_an_ignored_message_is_recognised_for_ever"),
    (ForgetsKeys, "test_what_is_known_is_a_success_without_work"),
    (ForgetsKeys, "test_a_finished_message_does_not_come_again"),
    (KeepsBodies, "test_of_an_ignored_message_only_its_having_been_there_is_kept"),
    (ClaimsWhatWaits, "test_a_retry_keeps_the_order"),
    (MergesTicks, "test_a_tick_is_never_merged"),
    (NewTurns, "test_a_recovered_turn_is_the_same_turn"),
    (NoFence, "test_an_older_claim_has_lost_the_turn"),
    (SendsSeparately, "test_an_older_claim_has_lost_the_turn"),
    (SendsSeparately, "test_a_turn_is_settled_with_its_last_answer"),
    (DropsSteps, "test_steps_survive_the_start"),
    (AlwaysNew, "test_steps_survive_the_start"),
    (NewestFirst, "test_a_destination_gets_its_messages_in_order"),
    (ForgetsDoubt, "test_after_a_crash_only_the_uncertain_is_uncertain"),
    (NewKeys, "test_a_row_goes_its_way_with_the_same_key"),
    (SettlesEarly, "test_a_turn_is_settled_with_its_last_answer"),
    (EternalLease, "test_a_lease_has_one_holder"),
    (ForgetsOpenOnes, "test_what_ended_long_ago_is_forgotten"),
    (ReusesLineIds, "test_the_journal_holds_lines_until_they_are_done"),
]


MORE = {"test_a_start_after_a_crash_knows_what_was_taken_back": {"acted": True}}


@pytest.mark.parametrize(("broken", "test"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
async def test_the_contract_sees_a_broken_store(broken, test, tmp_path):
    """The named test of the contract fails on a store with this defect, and passes on a sound one."""
    clock = ManualClock()
    for kind, folder in ((None, "sound"), (broken, "broken")):
        (tmp_path / folder).mkdir()
        async with await opened_with(kind, tmp_path / folder / "gateway.db", clock) as store:
            run = getattr(QueueContract(), test)
            given = {"store": store, "clock": clock, **MORE.get(test, {})}
            wanted = {name: given[name] for name in signature(run).parameters}
            if kind is None:
                await run(**wanted)
            else:
                with pytest.raises((AssertionError, pytest.fail.Exception, ValueError)):
                    await run(**wanted)
