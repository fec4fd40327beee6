"""
A model of `Queue` that fits on a page: lists in memory and the tables of moves, no SQL, no threads.

It says what a store must answer; `test_queue_machine.py` compares.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agent_core.messages import LineNote
from gateway.store.states import INBOX_MOVES, OUTBOX_MOVES, InboxState, OutboxState

IN, OUT = InboxState, OutboxState
OPEN = (OUT.PENDING, OUT.SENDING, OUT.UNCERTAIN)


@dataclass
class Row:
    id: int
    native: str
    session: str
    tick: bool
    state: InboxState
    attempts: int = 0
    deferrals: int = 0
    next_at: float | None = None
    turn: str | None = None
    fence: int = 0
    alone: bool = False
    sender: str = "@alice:hs.test"
    marked: str | None = None
    ended_at: float = 0.0
    text: str = ""
    newest: str | None = None
    redacted: bool = False
    edits: int = 0
    begun_anew: int = 0
    says: dict[str, str] | None = None

    def go(self, state: InboxState) -> None:
        assert state in INBOX_MOVES[self.state], (self.state, state)
        self.state = state


@dataclass
class Send:
    id: int
    tail: int | None
    turn: str | None
    session: str
    text: str
    state: OutboxState = OUT.PENDING
    attempts: int = 0
    next_at: float | None = None
    doubt: bool = False
    unwanted: bool = False

    def go(self, state: OutboxState) -> None:
        assert state in OUTBOX_MOVES[self.state], (self.state, state)
        self.state = state


@dataclass
class Model:
    now: float = 0.0
    rows: list[Row] = field(default_factory=list)
    sends: list[Send] = field(default_factory=list)
    journal: dict[str, int] = field(default_factory=dict)
    steps: dict[str, dict[int, bool]] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)

    def of(self, session: str, state: InboxState) -> list[Row]:
        return [
            row
            for row in sorted(self.rows, key=lambda row: row.id)
            if (row.session, row.state) == (session, state)
        ]

    def known(self, native: str) -> bool:
        return native in self.forgotten or any(row.native == native for row in self.rows)

    def due_in(self, session: str) -> float | None:
        ready = self.of(session, IN.READY)
        if self.of(session, IN.RUNNING) or not ready:
            return None
        wait = self.wait(ready[0])
        return 0.0 if wait and self.overtaking(ready) else wait

    def wait(self, row: Row) -> float:
        return max(0.0, (row.next_at or 0.0) - self.now)

    def overtaking(self, ready: list[Row]) -> Row | None:
        """What no model answers does not wait for a head that waits for its retry."""
        return next((row for row in ready if row.alone and not self.wait(row)), None)

    def claimable(self, session: str, merge: int) -> list[Row]:
        if self.due_in(session) != 0.0:
            return []
        ready = self.of(session, IN.READY)
        head = ready[0] if not self.wait(ready[0]) else self.overtaking(ready)
        assert head is not None
        others = [row for row in ready if row is not head]
        if head.turn is not None and self.clear(head.turn):
            return self.claimable(session, merge)
        if head.turn is not None:
            return [head, *(row for row in others if row.turn == head.turn)]
        taken = [head]
        for row in others:
            stops = (
                head.tick
                or row.tick
                or head.alone
                or row.alone
                or row.turn is not None
                or row.sender != head.sender
                or (row.next_at or 0.0) > self.now
                or any(
                    each.alone and each.session == session and head.id < each.id < row.id
                    for each in self.rows
                )
            )
            if stops or len(taken) == merge:
                break
            taken.append(row)
        return taken

    def start(self, rows: list[Row], turn: str, fence: int) -> None:
        for row in rows:
            row.go(IN.RUNNING)
            row.attempts += 1
            row.turn, row.fence, row.next_at = turn, fence, None

    def owned(self, turn: str, fence: int) -> list[Row]:
        return [row for row in self.rows if (row.state, row.turn, row.fence) == (IN.RUNNING, turn, fence)]

    def settle(self, send: Send) -> None:
        mine = [other for other in self.sends if other.turn == send.turn]
        if send.turn is not None and all(other.state is OUT.SENT for other in mine):
            for row in self.rows:
                if row.turn == send.turn and row.state is IN.ANSWERED:
                    row.go(IN.SETTLED)

    def heads(self, busy: list[str]) -> list[Send]:
        heads: dict[str, Send] = {}
        for send in sorted(self.sends, key=lambda send: send.id):
            if send.state in OPEN and send.session not in busy:
                heads.setdefault(send.session, send)
        return list(heads.values())

    def due_sends(self, busy: list[str]) -> list[Send]:
        due = [send for send in self.heads(busy) if (send.next_at or 0.0) <= self.now]
        return sorted(due, key=lambda send: send.id)

    def recover(self) -> None:
        for row in self.rows:
            if row.state is IN.RUNNING:
                row.go(IN.READY)
        for send in self.sends:
            if send.state is OUT.SENDING:
                send.go(OUT.UNCERTAIN if send.doubt else OUT.PENDING)

    def requeue(self, row: Row) -> bool:
        if row.state is IN.DEAD:
            row.go(IN.READY)
            row.attempts = row.deferrals = 0
            row.next_at = row.turn = row.marked = None
            row.text, row.newest = row.newest or row.text, None
            return True
        if row.state is not IN.ANSWERED:
            return False
        lost = [
            send
            for send in self.sends
            if send.turn == row.turn and send.state in (OUT.DEAD, OUT.UNKNOWN) and not send.unwanted
        ]
        for send in lost:
            send.go(OUT.PENDING)
            send.attempts, send.next_at, send.doubt = 0, None, False
        return bool(lost)

    def drop(self, row: Row) -> bool:
        if row.state is IN.RUNNING:
            return False
        if row.state is IN.ANSWERED:
            unsent = [send for send in self.sends if send.turn == row.turn]
            # An older turn's apology hangs on the same row.
            tail = max((send.tail or 0 for send in unsent), default=0)
            unsent += [send for send in self.sends if send.tail == tail and send not in unsent]
        else:
            unsent = [send for send in self.sends if send.tail == row.id]
        gone = [send for send in unsent if send.state in (*OPEN, OUT.UNKNOWN, OUT.HELD)]
        for send in gone:
            send.go(OUT.DEAD)
            send.next_at = None
        if row.state in (IN.READY, IN.DEAD, IN.QUARANTINED):
            self.ignore([row])
            return True
        return bool(gone)

    def reset(self, session: str) -> None:
        self.ignore(self.of(session, IN.READY))
        self.journal.pop(session, None)

    def ignore(self, rows: list[Row]) -> None:
        for row in rows:
            row.go(IN.IGNORED)
            row.next_at, row.ended_at = None, self.now
            if not any(
                other.turn == row.turn and other.state in (IN.READY, IN.RUNNING) for other in self.rows
            ):
                self.steps.pop(row.turn or "", None)

    # ── amendments ──
    def take_away(self, rows: list[Row], why: str) -> list[str]:
        """Returns the turns that ran and have lost all; a note is no question, and nobody takes it away."""
        rows = [row for row in rows if row.says is None]
        rows = [row for row in rows if row.state in (IN.READY, IN.RUNNING, IN.QUARANTINED)]
        for row in rows:
            row.marked = row.marked or why
        running = {row.turn for row in rows if row.state is IN.RUNNING}
        self.ignore([row for row in rows if row.turn is None])
        cleared = {row.turn for row in rows if row.turn is not None and self.clear(row.turn)}
        return sorted(turn for turn in running & cleared if turn)

    def withdraw(self, row: Row) -> tuple[list[str], list[LineNote]]:
        """Returns the turns that were stopped, and what the new notes say, in their order."""
        notes: list[LineNote] = []
        if row.state in (IN.ANSWERED, IN.SETTLED) and not row.redacted:
            notes = self.lines_gone(row)
            # What was to correct the words is not said any more, if nobody has taken it up.
            names = {f"{row.native} edited {number + 1}" for number in range(row.edits)}
            self.ignore([each for each in self.rows if each.native in names and each.state is IN.READY])
        row.redacted = row.redacted or row.turn is not None
        if row.state is IN.DEAD:  # nobody asks it again, so nothing of it is kept
            row.text = ""
        return self.take_away([row], "withdrawn"), notes

    def lines_gone(self, row: Row) -> list[LineNote]:
        """The turn goes out of the history with its last message; before that only the message's own lines do."""
        mine = self.answered(row.turn or "")
        line = f"{row.turn}.{mine.index(row)}"
        if all(other is row or other.redacted for other in mine):
            return [LineNote(undoes=row.turn or "")]
        return [LineNote(undoes=line), *(LineNote(undoes=f"{line}.edited {n + 1}") for n in range(row.edits))]

    def answered(self, turn: str) -> list[Row]:
        rows = [row for row in self.rows if row.turn == turn and row.state in (IN.ANSWERED, IN.SETTLED)]
        return sorted(rows, key=lambda row: row.id)

    def edit(self, row: Row, text: str) -> tuple[list[str], list[LineNote]]:
        """The same for an edit: whoever has not answered yet must answer the newest text."""
        if row.redacted or row.state is IN.IGNORED or text == (row.newest or row.text):
            return [], []
        if row.state is IN.QUARANTINED:  # a person decides on what they have seen
            row.newest = text
        elif row.turn is None:
            row.text = text
        elif self.may_ask_again(row) and not (row.tick or row.alone):
            row.text, row.newest = text, None
            return self.ask_again(row.turn), []
        else:
            row.newest = text
            if row.state in (IN.ANSWERED, IN.SETTLED) and not (row.tick or row.alone):
                return [], [self.corrected(row)]
        return [], []

    def may_ask_again(self, row: Row) -> bool:
        mine = [each for each in self.rows if each.turn == row.turn and each.state is IN.RUNNING]
        ran = row.state is IN.RUNNING and max(each.begun_anew for each in mine) < 3
        return row.state is IN.READY or ran

    def corrected(self, row: Row) -> LineNote:
        row.edits += 1
        line = f"{row.turn}.{self.answered(row.turn or '').index(row)}.edited {row.edits}"
        return LineNote(turn=row.turn or "", id=line)

    def ask_again(self, turn: str) -> list[str]:
        """All messages of the turn start afresh, but for those that were taken back."""
        mine = [row for row in self.rows if row.turn == turn and row.state in (IN.READY, IN.RUNNING)]
        ran = any(row.state is IN.RUNNING for row in mine)
        self.ignore([row for row in mine if row.marked])
        often = max((row.begun_anew for row in mine if not row.marked), default=0) >= 3
        for row in mine:
            if not row.marked:
                row.begun_anew += 1
                row.text, row.newest = row.newest or row.text, None
                if row.state is IN.RUNNING:
                    row.go(IN.READY)
                if not often:
                    row.attempts = row.deferrals = 0
                row.next_at = row.turn = None
        self.steps.pop(turn, None)
        return [turn] if ran else []

    def clear(self, turn: str) -> bool:
        mine = [row for row in self.rows if row.turn == turn and row.state in (IN.READY, IN.RUNNING)]
        marked = [row for row in mine if row.marked]
        idle = all(row.state is IN.READY for row in mine) and not self.steps.get(turn)
        if not marked or (len(marked) < len(mine) and not idle):
            return False
        self.ignore(marked)
        return True

    def prune(self, age_s: float) -> None:
        last = max((row.id for row in self.rows), default=0)
        for row in [row for row in self.rows if row.state is IN.IGNORED]:
            hangs = any(send.tail == row.id for send in self.sends)
            if row.ended_at < self.now - age_s and row.id != last and not hangs:
                self.rows.remove(row)
                self.forgotten.add(row.native)
