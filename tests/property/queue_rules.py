"""What else can happen to a store, as rules: amendments, sending, the care of a person and of the daemon."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from agent_core.messages import Amendment
from gateway.store.states import IllegalMove, InboxState, OutboxState
from tests.contract.queue_data import BOT, out, pending
from tests.property.queue_machine import BY_TEXT, TurnMachine, indexes, session_keys
from tests.property.queue_model import Row, Send


class AmendingMachine(TurnMachine):
    """Messages are taken back, stopped, and left behind."""

    @precondition(lambda self: self.model.rows)
    @rule(index=indexes, honest=st.booleans(), follow=indexes)
    def take_back(self, index, honest, follow):
        """One message or two in a row, by the one who wrote them or by somebody else."""
        for row in self.some_of(index, follow):
            sender = row.sender if honest else "@eve:hs.test"
            asked = Amendment(kind="withdraw", native_id=row.native, sender=sender)
            nothing = ([], [])
            expected = (
                self.model.withdraw(row) if honest and self.readable(row) and self.kept(row) else nothing
            )
            self.amended(row, asked, expected)

    @precondition(lambda self: self.model.rows)
    @rule(index=indexes, honest=st.booleans(), follow=indexes, text=st.sampled_from(["one", "two"]))
    def edit(self, index, honest, follow, text):
        """The same for an edit."""
        for row in self.some_of(index, follow):
            sender = row.sender if honest else "@eve:hs.test"
            asked = Amendment(kind="replace", native_id=row.native, sender=sender, text=text)
            self.amended(row, asked, self.model.edit(row, text) if honest and self.kept(row) else ([], []))

    def some_of(self, index, follow):
        """Messages of people, what runs more often; a note has no name by which anybody could amend it."""
        said = [row for row in self.model.rows if row.says is None]
        running = [row for row in said if row.state is InboxState.RUNNING]
        newest = running if running and index % 2 else sorted(said, key=lambda row: -row.id)
        return [newest[each] for each in {n % min(8, len(newest)) for n in (index, follow) if newest}]

    def amended(self, row, asked, expected):
        done = self.run(self.store.inbox.accept("matrix", BOT, [], {}, [asked]))
        stopped, notes = expected
        assert [each.turn for each in done.stopped] == stopped
        self.noted(row.session, [(row.sender, each) for each in notes])

    def kept(self, row):
        """Of a message that was answered long ago nothing is kept, so nobody can be known as its sender."""
        found = self.run(self.store.inbox.row(row.id))
        return found is not None and bool(found[0].message.sender.address)

    def readable(self, row):
        """An ignored message is of nobody any more; it could not be taken back anyway."""
        return row.state is not InboxState.IGNORED

    @rule(session=session_keys, known=st.booleans(), index=st.integers(0, 30))
    def stop(self, session, known, index):
        """A stop, new or repeated."""
        native = f"{session.conversation}{index if known else f'stop{len(self.model.rows)}'}"
        new = not self.model.known(native)
        asked = Amendment(kind="stop", native_id=native, session=session)
        batch = [pending(native, session=session)]
        done = self.run(self.store.inbox.accept("matrix", BOT, batch, {}, [asked]))
        assert len(done) == new
        if new:
            before = [row for row in self.model.rows if row.session == str(session)]
            before = [row for row in before if row.state in (InboxState.READY, InboxState.RUNNING)]
            fresh = sum(row.marked is None and row.says is None for row in before)
            assert [each.turn for each in done.stopped] == self.model.take_away(before, "stopped")
            assert done[0].message.context.notes.stopped == fresh
            self.model.rows.append(
                Row(done[0].id, native, str(session), False, done[0].state, text=done[0].message.text)
            )
        else:
            assert done.stopped == ()

    @rule(session=session_keys)
    def leave(self, session):
        asked = Amendment(kind="leave", session=session)
        done = self.run(self.store.inbox.accept("matrix", BOT, [], {}, [asked]))
        there = [row for row in self.model.rows if row.session == str(session)]
        assert sorted(each.turn for each in done.stopped) == self.model.take_away(there, "left")
        for send in self.model.sends:
            if send.session == str(session) and send.state.value in (
                "pending",
                "sending",
                "uncertain",
                "held",
            ):
                send.go(OutboxState.DEAD)
                send.next_at, send.unwanted = None, True


class SendingMachine(AmendingMachine):
    """What is in the outbox goes its way, or a person decides about it."""

    @rule(session=session_keys, hold=st.booleans())
    def post(self, session, hold):
        (row,) = self.run(self.store.outbox.post([out("posted", session=session, hold=hold)]))
        self.model.sends.append(Send(row.id, None, None, str(session), "posted", row.state))
        assert row.state is (OutboxState.HELD if hold else OutboxState.PENDING)

    @precondition(lambda self: self.model.sends)
    @rule(index=indexes, agreed=st.booleans())
    def decide(self, index, agreed):
        """A person approves or rejects, a draft or something that is none."""
        held = [send for send in self.model.sends if send.state is OutboxState.HELD]
        send = (held or self.model.sends)[index % len(held or self.model.sends)]
        decision = self.store.outbox.approve if agreed else self.store.outbox.reject
        if send.state is OutboxState.HELD:
            self.run(decision(send.id))
            send.go(OutboxState.PENDING if agreed else OutboxState.DEAD)
            send.unwanted = not agreed
        else:
            with pytest.raises(IllegalMove):
                self.run(decision(send.id))

    def move(self, send, act, delay_s):
        rows = self.run(self.store.outbox.rows(limit=10_000))
        row = next(row for row in rows if row.id == send.id)
        row = replace(row, state=OutboxState.PENDING)  # what the caller holds may be old
        calls = {
            "sending": lambda: self.store.outbox.sending(row),
            "uncertain": lambda: self.store.outbox.uncertain(row),
            "sent": lambda: self.store.outbox.record_send(row, f"${row.id}"),
            "again": lambda: self.store.outbox.record_failure(row, "no", delay_s=delay_s),
            "perhaps": lambda: self.store.outbox.record_failure(row, "no", delay_s=delay_s, certain=False),
            "dead": lambda: self.store.outbox.record_failure(row, "no", delay_s=None),
            "park": lambda: self.store.outbox.needs_review(row, "?"),
        }
        moves = {
            "sending": {"pending": "sending", "sending": "sending", "uncertain": "sending"},
            "uncertain": {"sending": "uncertain", "uncertain": "uncertain"},
            "sent": dict.fromkeys(("sending", "uncertain", "unknown", "dead", "sent"), "sent"),
            "again": {**dict.fromkeys(("pending", "sending", "uncertain"), "pending"), "dead": "dead"},
            "perhaps": {"sending": "uncertain", "uncertain": "uncertain", "dead": "dead"},
            "dead": dict.fromkeys(("pending", "sending", "uncertain", "unknown", "dead"), "dead"),
            "park": {"uncertain": "unknown"},
        }
        new = moves[act].get(send.state.value)
        if new is None:
            with pytest.raises(IllegalMove):
                self.run(calls[act]())
            return
        self.run(calls[act]())
        old, send.state = send.state, OutboxState(new)
        send.attempts += act == "sending"
        send.doubt = (send.doubt or new == "uncertain") and not (act == "again" and new == "pending")
        if act in ("again", "perhaps") and new != "dead":
            send.next_at = self.model.now + delay_s
        elif act in ("sent", "dead", "park") or old is OutboxState.DEAD:
            send.next_at = None
        if act == "sent":
            self.model.settle(send)

    def send_what_is_due(self, session, *, certainly):
        """The whole way of the oldest row."""
        for send in self.model.due_sends([]):
            if send.session == str(session):
                for act in ("sending", "uncertain", "sent") if certainly else ("sending", "sent"):
                    self.move(send, act, 0.0)
                break


class StoreMachine(SendingMachine):
    """All of it."""

    @rule(seconds=st.sampled_from([1.0, 6.0, 60.0]))
    def time_passes(self, seconds):
        self.clock.advance(seconds)
        self.model.now += seconds

    @rule(reopen=st.booleans())
    def restart(self, reopen):
        if reopen:
            self.run(self.store.aclose())
            self.open()
        self.run(self.store.maintenance.recover())
        self.model.recover()

    @precondition(lambda self: self.model.rows)
    @rule(index=indexes, what=st.sampled_from(["requeue", "drop", "admit"]))
    def operate(self, index, what):
        row = self.model.rows[index % len(self.model.rows)]
        if what == "requeue":
            expected = self.model.requeue(row)
            assert self.run(self.store.inbox.requeue(row.id)) == (BY_TEXT[row.session] if expected else None)
        elif what == "admit" and row.state is InboxState.QUARANTINED:
            assert self.run(self.store.inbox.admit(row.id)) == BY_TEXT[row.session]
            row.go(InboxState.READY)
            row.text, row.newest = row.newest or row.text, None  # these senders are proven
        elif what == "admit":
            with pytest.raises(IllegalMove):
                self.run(self.store.inbox.admit(row.id))
        else:
            assert self.run(self.store.inbox.drop(row.id)) == self.model.drop(row)

    @rule(session=session_keys)
    def reset(self, session):
        self.run(self.store.inbox.reset_session(session))
        self.model.reset(str(session))

    @rule()
    def clear_journal(self):
        lines = self.run(self.store.journal.lines())
        self.run(self.store.journal.delete_filed_lines([line.id for line in lines]))
        self.model.journal.clear()

    @rule(age_s=st.sampled_from([0.0, 30.0]))
    def prune(self, age_s):
        """Forgetting changes no state; only a dead message cannot be tried again then, so it is left out."""
        if not any(row.state is InboxState.DEAD for row in self.model.rows) and not any(
            send.state is OutboxState.DEAD for send in self.model.sends
        ):
            self.run(self.store.maintenance.prune(older_than_s=age_s))
            self.model.prune(age_s)
