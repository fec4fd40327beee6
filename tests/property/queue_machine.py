"""
The machine that does the same to a `Queue` and to the model: taking in, turns, and what is compared.

What else can happen to a store is in `queue_rules.py`.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from agent_core.messages import Sender, SessionKey
from agent_core.models import Message
from gateway.store.states import InboxState, OutboxState
from gateway.store.stores import Completion, LostTurn, Turn
from tests.clock import EPOCH, ManualClock
from tests.contract.queue_data import BOT, out, pending, step
from tests.doubles.broken_queue import opened_with
from tests.property.queue_model import Model, Row, Send

SESSIONS = [SessionKey("matrix", f"!{name}") for name in "abc"]
BY_TEXT = {str(session): session for session in SESSIONS}
session_keys = st.sampled_from(SESSIONS)
indexes = st.integers(0, 1000)
delays = st.sampled_from([0.0, 5.0, 50.0])
GONE = (InboxState.IGNORED, InboxState.ANSWERED, InboxState.SETTLED)
"""States in which a text is no longer kept, or may be forgotten."""
ACTS = ["complete", "complete", "bury", "retry", "deferral", "release", "start", "finish", "steps"]
MOVES = ["sending", "uncertain", "sent", "again", "perhaps", "dead", "park"]


def sender_of(native: str) -> str:
    return "@bob:hs.test" if int(native.removeprefix("!")[1:]) % 5 == 2 else "@alice:hs.test"


class TurnMachine(RuleBasedStateMachine):
    """Does the same to the store and to the model, and compares after each step."""

    kind = None

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="squidbot-machine-"))
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.model = Model()
        self.turns: list[Turn] = []

    def run(self, call):
        return self.runner.run(call)

    def open(self) -> None:
        self.store = self.run(
            opened_with(self.kind, self.folder / "gateway.db", self.clock, synchronous="normal")
        )

    @initialize()
    def begin_with_something_to_do(self) -> None:
        self.open()
        for session in SESSIONS:
            self.take(session, [(number, "message") for number in range(3)])

    def teardown(self) -> None:
        self.run(self.store.aclose())
        self.runner.close()
        shutil.rmtree(self.folder)

    # ── taking in ──
    @rule(
        session=session_keys,
        batch=st.lists(
            st.tuples(
                st.integers(0, 30), st.sampled_from(["message", "tick", "ignored", "alone", "quarantined"])
            ),
            max_size=4,
        ),
    )
    def accept(self, session, batch):
        self.take(session, batch)

    def take(self, session, batch):
        entries, expected, first_alone = [], [], {}
        for number, what in batch:
            native = f"{session.conversation}{number}"
            kind = "tick" if what == "tick" else "message"
            marks = {
                "ignored": {"ignore": "no"},
                "quarantined": {"quarantine": "why"},
                "alone": {"alone": True},
            }
            sender = Sender(address=sender_of(native), verified=True)
            entries.append(pending(native, session=session, kind=kind, sender=sender, **marks.get(what, {})))
            if not self.model.known(native) and native not in expected:
                expected.append(native)
                first_alone[native] = what == "alone"
        rows = self.run(self.store.inbox.accept("matrix", BOT, entries, {}))
        assert [row.message.native_id for row in rows] == expected
        last = max((row.id for row in self.model.rows), default=0)
        assert all(row.id > last for row in rows)
        for row in rows:
            assert row.id > last
            last = row.id
            tick = row.message.kind == "tick"
            native = row.message.native_id
            self.model.rows.append(
                Row(
                    row.id, native, str(session), tick, row.state,
                    alone=first_alone[native], sender=sender_of(native), ended_at=self.model.now,
                    text=row.message.text,
                )
            )  # fmt: skip

    # ── turns ──
    # One rule for several acts in a row rather than a rule for each: whole stories then happen often enough.
    @rule(
        acts=st.lists(
            st.tuples(
                st.sampled_from(["turn", "turn", "send", "move"]),
                session_keys,
                indexes,
                st.lists(session_keys, max_size=3),
                delays,
            ),
            min_size=1,
            max_size=6,
        )
    )
    def live(self, acts):
        for kind, session, index, replies, delay_s in acts:
            if kind == "turn":
                self.work(session, index, replies, delay_s)
            elif kind == "send":
                self.send_what_is_due(session, certainly=index % 2 == 0)
            elif self.model.sends:
                newest = sorted(self.model.sends, key=lambda send: -send.id)
                self.move(newest[index % min(6, len(newest))], MOVES[index % len(MOVES)], delay_s)

    def work(self, session, index, replies, delay_s):
        """Take the session's turn, or claim one, and do something with it, or nothing."""
        running = [turn for turn in self.turns if turn.session == session and self.rows_of(turn)]
        turn = running[0] if running else self.claim(session, 1 + index % 3)
        act = [*ACTS, "leave"][index % (len(ACTS) + 1)]
        if turn is not None and act != "leave":
            self.perform(turn, act, replies, delay_s)

    @rule(session=session_keys, merge=st.integers(1, 3))
    def claim_what_may_run(self, session, merge):
        """A claim beside whatever is going on."""
        self.claim(session, merge)

    @precondition(lambda self: any(not self.rows_of(turn) for turn in self.turns))
    @rule(
        index=indexes, act=st.sampled_from(ACTS), replies=st.lists(session_keys, max_size=2), delay_s=delays
    )
    def come_too_late(self, index, act, replies, delay_s):
        """Whoever has lost the turn, or has ended it, can do nothing."""
        lost = [turn for turn in self.turns if not self.rows_of(turn)]
        self.perform(lost[-1 - index % min(4, len(lost))], act, replies, delay_s)

    def rows_of(self, turn: Turn) -> list[Row]:
        return self.model.owned(turn.id, turn.fence)

    def claim(self, session, merge) -> Turn | None:
        expected = self.model.claimable(str(session), merge)
        turn = self.run(self.store.turns.claim(session, merge=merge))
        assert [row.id for row in (turn.rows if turn else ())] == [row.id for row in expected]
        if turn is None:
            return None
        old = expected[0].turn
        assert turn.id == old if old else all(turn.id != other.id for other in self.turns)
        assert turn.fence > max(row.fence for row in expected)
        self.model.start(expected, turn.id, turn.fence)
        assert (turn.attempts, turn.deferrals) == (expected[0].attempts, expected[0].deferrals)
        self.turns.append(turn)
        return turn

    def perform(self, turn: Turn, act: str, replies, delay_s: float) -> None:
        rows = self.rows_of(turn)
        outbound = [out(f"{turn.id}:{n}", session=session, hold=n == 1) for n, session in enumerate(replies)]
        number = len(replies)
        lines = [Message(role="user", content="x", id=turn.id, turn=turn.id, timestamp=EPOCH)]
        calls = {
            "complete": lambda: self.store.turns.complete(turn, Completion(outbound=outbound, history=lines)),
            "bury": lambda: self.store.turns.dead_letter(turn, "no", outbound),
            "retry": lambda: self.store.turns.retry(turn, "later", delay_s=delay_s, deferral=False),
            "deferral": lambda: self.store.turns.retry(turn, "later", delay_s=delay_s, deferral=True),
            "release": lambda: self.store.turns.release(turn),
            "start": lambda: self.store.turns.record_step_start(turn, step(number)),
            "finish": lambda: self.store.turns.record_step_result(turn, step(number, result={"n": number})),
            "steps": lambda: self.store.turns.steps(turn),
        }
        if not rows:
            with pytest.raises(LostTurn):
                self.run(calls[act]())
            return
        done = self.run(calls[act]())
        match act:
            case "complete" | "bury":
                self.ended(turn, rows, done, buried=act == "bury")
            case "retry" | "deferral" | "release":
                for row in rows:
                    row.go(InboxState.READY)
                    row.attempts -= act != "retry"
                    row.deferrals += act == "deferral"
                    row.next_at = None if act == "release" else self.model.now + delay_s
            case "start" | "finish":
                self.model.steps.setdefault(turn.id, {})[number] = act == "finish"
            case "steps":
                found = {each.number: each.result is not None for each in done}
                assert found == self.model.steps.get(turn.id, {})

    def ended(self, turn: Turn, rows: list[Row], made, *, buried: bool) -> None:
        if not buried:
            self.model.journal[str(turn.session)] = self.model.journal.get(str(turn.session), 0) + 1
        for row in rows:
            answered = InboxState.ANSWERED if made else InboxState.SETTLED
            row.go(InboxState.DEAD if buried else answered)
        if not buried:
            gone = [(row.sender, each) for row in rows if row.marked for each in self.model.lines_gone(row)]
            edited = [row for row in rows if row.newest not in (None, row.text) and not row.marked]
            edited = [row for row in edited if not (row.tick or row.alone)]
            told = [(row.sender, self.model.corrected(row)) for row in edited]
            self.noted(str(turn.session), told + gone)
        self.model.steps.pop(turn.id, None)
        for number, row in enumerate(made):
            assert row.inbox_id == rows[-1].id
            assert row.state is (OutboxState.HELD if number == 1 else OutboxState.PENDING)
            session = str(row.message.session)
            self.model.sends.append(Send(row.id, rows[-1].id, turn.id, session, row.message.text, row.state))

    def noted(self, session, notes):
        """Compare what is new in the store with these notes; and take them into the model."""
        known = {row.id for row in self.model.rows}
        found = self.run(self.store.inbox.rows(states=list(InboxState), limit=10_000))
        new = sorted((row for row in found if row.id not in known), key=lambda row: row.id)
        assert [(row.message.sender.address, row.message.context.noted) for row in new] == notes
        for row, (sender, says) in zip(new, notes, strict=True):
            self.model.rows.append(
                Row(
                    row.id,
                    row.message.native_id,
                    session,
                    False,
                    row.state,
                    alone=True,
                    sender=sender,
                    says=says,
                )
            )

    # ── what must be the same ──
    @invariant()
    def rows_are_the_same(self):
        if not hasattr(self, "store"):
            return
        rows = self.run(self.store.inbox.rows(states=list(InboxState), limit=10_000))
        assert {row.id: (row.state, row.attempts, row.deferrals) for row in rows} == {
            row.id: (row.state, row.attempts, row.deferrals) for row in self.model.rows
        }
        said = {row.id: row.text for row in self.model.rows if row.says is None and row.state not in GONE}
        assert {row.id: row.message.text for row in rows if row.id in said} == said
        sends = self.run(self.store.outbox.rows(limit=10_000))
        assert {row.id: (row.state, row.attempts) for row in sends} == {
            send.id: (send.state, send.attempts) for send in self.model.sends
        }
        assert len({row.message.id for row in sends}) == len(sends)

    @invariant()
    def views_are_the_same(self):
        if not hasattr(self, "store"):
            return
        for session in SESSIONS:
            assert self.run(self.store.turns.due_in(session)) == pytest.approx(
                self.model.due_in(str(session))
            )
        waiting = {session: self.model.due_in(str(session)) for session in SESSIONS}
        assert dict(self.run(self.store.turns.open_sessions())) == {
            session: pytest.approx(due) for session, due in waiting.items() if due is not None
        }
        for busy in ([], SESSIONS[:1]):
            names = [str(session) for session in busy]
            offered = self.run(self.store.outbox.next_sends("matrix", BOT, busy=busy))
            assert [row.id for row in offered] == [send.id for send in self.model.due_sends(names)]
            idle = [send for send in self.model.heads(names) if send.state is not OutboxState.SENDING]
            due = [max(0.0, (send.next_at or 0.0) - self.model.now) for send in idle]
            expected = min(due) if due else None
            assert self.run(self.store.outbox.next_send_in("matrix", BOT, busy=busy)) == pytest.approx(
                expected
            )
        stats = self.run(self.store.maintenance.stats())
        counts = Counter(row.state.value for row in self.model.rows)
        assert stats.inbox == {state.value: counts[state.value] for state in InboxState}
        out_counts = Counter(send.state.value for send in self.model.sends)
        assert stats.outbox == {state.value: out_counts[state.value] for state in OutboxState}
        assert stats.journal_lines == sum(self.model.journal.values())
