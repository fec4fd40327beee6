"""
Applies amendments to accepted messages: edits, withdrawals, stops, and releases from quarantine. As SQL. A
begun turn is a unit, because its steps fit the question as it was: an edit ends it and its messages wait
again, with the effects noted for the next model. Amendments of answered messages become a note (`LineNote`).
A message leaves a turn only if no step is lost, or if all are withdrawn; until then it is marked in
``withdrawn``. With the last one all rows leave ``running`` and the handler's claim is lost.
"""
# ruff: noqa: S608 - only constants of this package are put into statements; every value is a parameter

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent_core.messages import (
    Amendment,
    InboundMessage,
    LineNote,
    MessageNotes,
    SessionKey,
)
from agent_core.prompt import CORRECTION_PREFIX
from gateway.store.shared import SHARED
from gateway.store.sql.engine import ConnectionPort
from gateway.store.sql.locking import NAMED, OUTBOX_OF_CHANNEL, conversation_condition, names_of
from gateway.store.sql.row_codec import (
    Raw,
    dump,
    error_text,
    key_text,
    read_payload,
    sender_of,
    stripped_payload,
    with_note,
)
from gateway.store.sql.state_store import inbox_sources, outbox_sources
from gateway.store.states import UNINVITED, IllegalMove, InboxState, OutboxState

AS_EDITED = "edited"
"""The reason for which a turn is stopped whose messages are asked again."""
_AT_ONCE = 500
_SAID = ("message", "alone")
"""What people write: questions, and what has a turn of its own, such as commands."""
_ROW = "id, session, state, turn, payload, kind"
_QUOTED = 120
_WORK = (InboxState.READY, InboxState.RUNNING)
_OPEN = (*_WORK, InboxState.QUARANTINED)
_OVER = (InboxState.ANSWERED, InboxState.SETTLED)
_ENDED = (*_OVER, InboxState.DEAD)
_MAX_RESTARTS = 3
"""Each costs a model call, and the others in a room wait. Three leave room for slips of the hand."""
_OUTCOMES = {"done": "", "failed": " without success"}
_UNSENT = (OutboxState.PENDING, OutboxState.SENDING, OutboxState.UNCERTAIN, OutboxState.HELD)


@dataclass(frozen=True, slots=True)
class Note:
    """A message to be accepted in a session, for its history alone (`MessageContext.noted`)."""

    session: str
    message: InboundMessage


@dataclass(slots=True)
class Effects:
    """The effects of amendments: the running turns that were stopped (session, turn, why), and notes."""

    stopped: list[tuple[str, str, str]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


def ignore(
    db: ConnectionPort,
    where: str,
    arguments: Sequence[str | float],
    reason: str,
    now: float,
    *,
    only: Collection[InboxState] = (),
) -> int:
    """Make rows IGNORED without their texts, with ``only`` from these states alone; return how many."""
    sources, error = inbox_sources(InboxState.IGNORED, *only), error_text(reason)
    rows = db.execute(f"SELECT id, payload FROM inbox WHERE {sources} AND {where}", tuple(arguments))
    move = (
        "UPDATE inbox SET state = 'ignored', error = ?, ended_at = ?, next_at = NULL, payload = ?"
        f" WHERE {sources} AND id = ?"
    )
    return sum(
        db.execute(move, (error, now, stripped_payload(payload), row_id)).rowcount
        for row_id, payload in rows.fetchall()
    )


def note(db: ConnectionPort, inbox_id: int, name: str, value: object) -> None:
    """Put a value into the notes of an accepted message."""
    (payload,) = db.execute("SELECT payload FROM inbox WHERE id = ?", (inbox_id,)).fetchone()
    changed = with_note(payload, name, value)
    db.execute("UPDATE inbox SET payload = ? WHERE id = ?", (changed, inbox_id))


def edited_payload(payload: str | None) -> str | None:
    """Return a payload with its newest text, for a message that is asked again, as far as it can be read."""
    message = read_payload(payload)
    return payload if message is None or message.notes.edited is None else dump(_as_edited(message))


def forget_steps(db: ConnectionPort, turn: str | None) -> None:
    """Drop the steps of a turn that nobody will resume."""
    db.execute(
        "DELETE FROM turn_steps WHERE turn = :turn AND NOT EXISTS"
        " (SELECT 1 FROM inbox WHERE state IN ('ready', 'running') AND turn = :turn)",
        {"turn": turn},
    )


def amend(
    db: ConnectionPort,
    channel: str,
    account: str,
    amendments: Iterable[Amendment],
    *,
    new: Mapping[str, int],
    now: float,
) -> Effects:
    """Apply amendments in order; ``new`` are the ids of the rows that came with them."""
    amender = _Amender(db, (channel, account), now)
    for each in amendments:
        match each.kind:
            case "replace":
                amender.replace(each)
            case "withdraw":
                amender.withdraw(each)
            case "leave":
                amender.leave(each)
            case "stop":
                amender.stop(each, new)
            case "bounce":
                amender.bounce(each)
    return amender.effects


@dataclass(slots=True)
class _Amender:
    """Applies the amendments of one batch; ``place`` is its channel and account."""

    db: ConnectionPort
    place: tuple[str, str]
    now: float
    effects: Effects = field(default_factory=Effects)

    def replace(self, amendment: Amendment) -> None:
        row = self._row(amendment)
        message = None if row is None else read_payload(row[4])
        if row is None or message is None or message.sender.address != amendment.sender:
            return
        row_id, session, state, turn, _, kind = row
        now_says = _as_edited(message).text
        named_now = amendment.names_bot and message.context.not_named
        if message.notes.redacted or (amendment.text == now_says and not named_now):
            return
        if named_now:
            message = message.with_context(replace(message.context, not_named=False))
        edited = replace(message.notes, edited=amendment.text)
        changed = _as_edited(message.with_notes(edited))
        if turn is None:
            if state == InboxState.QUARANTINED:  # a person may have seen the text, and decides on that
                _store(self.db, row_id, message, edited)
            elif state == InboxState.READY:
                self.db.execute("UPDATE inbox SET payload = ? WHERE id = ?", (dump(changed), row_id))
        elif state in _WORK and kind == "message" and self._may_ask_again(session, turn, state):
            self.db.execute("UPDATE inbox SET payload = ? WHERE id = ?", (dump(changed), row_id))
            self._ask_again(session, turn, state)
        else:
            message = _store(self.db, row_id, message, edited)
            if state in _OVER and kind in _SAID and amendment.text != now_says:
                self.effects.notes.append(
                    _correction(self.db, session, turn, row_id, message, before=now_says)
                )

    def _may_ask_again(self, session: str, turn: str, state: str) -> bool:
        """Return True if an edit may end the turn: a running one whose messages were not restarted often."""
        return state == InboxState.READY or self._count_restarts(session, turn) < _MAX_RESTARTS

    def _count_restarts(self, session: str, turn: str) -> int:
        """Return the number of restarts of this turn's messages."""
        counts = [message.notes.begun_anew for _, message in self._open_in(session, turn)]
        return max(counts, default=0)

    def _open_in(self, session: str, turn: str) -> list[tuple[int, InboundMessage]]:
        """Return the messages of a turn that has not ended, as far as they can be read."""
        of_turn = f"session = ? AND turn = ? AND {inbox_sources(InboxState.IGNORED, *_WORK)}"
        rows = self.db.execute(f"SELECT id, payload FROM inbox WHERE {of_turn}", (session, turn)).fetchall()
        return [(row_id, message) for row_id, payload in rows if (message := read_payload(payload))]

    def _ask_again(self, session: str, turn: str, state: str) -> None:
        """
        End a turn that has begun; its messages wait again, but for those that were withdrawn.

        Their attempts count anew, unless somebody goes on editing: what fails always is given up then, too.
        """
        gone = "session = ? AND turn = ? AND withdrawn IS NOT NULL"
        ignore(self.db, gone, (session, turn), "withdrawn", self.now, only=_WORK)
        often = self._count_restarts(session, turn) >= _MAX_RESTARTS
        self._prepare_again(session, turn)
        afresh = "" if often else "attempts = 0, deferrals = 0, first_deferred_at = NULL, "
        waiting = f"{afresh}next_at = NULL, waits_for = NULL, turn = NULL, tail = NULL, error = NULL"
        self.db.execute(
            f"UPDATE inbox SET state = 'ready', {waiting}"
            f" WHERE session = ? AND turn = ? AND {inbox_sources(InboxState.READY, InboxState.RUNNING)}",
            (session, turn),
        )
        self.db.execute(
            f"UPDATE inbox SET {waiting} WHERE session = ? AND turn = ? AND state = 'ready'", (session, turn)
        )
        forget_steps(self.db, turn)
        if state == InboxState.RUNNING:
            self.effects.stopped.append((session, turn, AS_EDITED))

    def _prepare_again(self, session: str, turn: str) -> None:
        """
        Give each message of a turn its newest text, and record at it what was done in the turn: any may be
        asked without the others.
        """
        for row_id, message in self._open_in(session, turn):
            again = _as_edited(message)
            done = _done_in(self.db, turn, again.notes.done_before)
            notes = replace(again.notes, begun_anew=again.notes.begun_anew + 1, done_before=done)
            _store(self.db, row_id, again, notes)

    def withdraw(self, amendment: Amendment) -> None:
        row = self._row(amendment)
        message = None if row is None else read_payload(row[4])
        if row is None or message is None or message.sender.address != amendment.sender:
            return
        self._withdraw(row, message)
        # The ids that `take_back` gives to copies.
        copies = "session = ? AND id > ? AND substr(native_id, length(native_id) - 5) = ' again'"
        for copy in self.db.execute(f"SELECT {_ROW} FROM inbox WHERE {copies}", (row[1], row[0])).fetchall():
            copied = read_payload(copy[4])
            if copied is not None and message.native_id in copied.notes.copies:
                self._withdraw(copy, copied)

    def _withdraw(self, row: Raw, message: InboundMessage) -> None:
        if row[2] in _OVER and not message.notes.redacted:
            self.effects.notes += _withdrawals(self.db, row[3], row[0], row[1], message)
        if row[2] in _ENDED:
            _blank(self.db, row[0], row[4])
            self._blank_corrections(message)
        elif row[3] is not None:
            _store(self.db, row[0], message, replace(message.notes, redacted=True))
        self._take_away("id = ?", (row[0],), "withdrawn")

    def _blank_corrections(self, message: InboundMessage) -> None:
        """Take the text out of the notes about edits of a message that is taken back."""
        edits = range(1, message.notes.edit_count + 1)
        names = [f"{message.native_id} edited {number}" for number in edits]
        self.effects.notes = [each for each in self.effects.notes if each.message.native_id not in names]
        for name in names:
            row = self._row(Amendment(kind="withdraw", native_id=name))
            if row is not None and row[2] in _ENDED:
                _blank(self.db, row[0], row[4])
            elif row is not None:
                ignore(self.db, "id = ? AND turn IS NULL", (row[0],), "withdrawn", self.now, only=_WORK)

    def leave(self, amendment: Amendment) -> None:
        if amendment.session is None:
            return
        in_it, sessions = conversation_condition(amendment.session)
        where, there = f"channel = ? AND account = ? AND {in_it}", (*self.place, *sessions)
        self._take_away(where, there, "left")
        self._leave_shared(amendment.session)
        self.db.execute(
            f"UPDATE outbox SET state = 'dead', ended_at = ?, next_at = NULL, error = 'left'"
            f" WHERE {outbox_sources(OutboxState.DEAD, *_UNSENT)} AND {OUTBOX_OF_CHANNEL} AND account = ?"
            f" AND {in_it}",
            (self.now, *there),
        )

    def _leave_shared(self, left: SessionKey) -> None:
        """Take away the messages of that place that are processed in the shared conversation of the owner."""
        rows = self.db.execute(
            "SELECT id, payload FROM inbox WHERE channel = ? AND account = ? AND session = ?"
            f" AND {inbox_sources(InboxState.IGNORED, *_OPEN)} ORDER BY id",
            (*self.place, str(SHARED)),
        ).fetchall()
        for row_id, payload in rows:
            message = read_payload(payload)
            said = None if message is None else message.session
            if said is not None and (said.channel, said.conversation) == (left.channel, left.conversation):
                self._take_away("id = ?", (row_id,), "left")

    def stop(self, amendment: Amendment, new: Mapping[str, int]) -> None:
        if amendment.session is None:
            return
        session, before = str(amendment.session), 1 << 62
        if amendment.native_id:
            asked = new.get(key_text(amendment.native_id))
            if asked is None:
                return  # a repetition: it has stopped its rows already, and later rows are not meant
            before = asked
        if amendment.sender:
            gone = self._stop_of(amendment.sender, session, before)
        else:
            gone = self._take_away("session = ? AND id < ?", (session, before), "stopped", only=_WORK)
        if amendment.native_id:
            note(self.db, before, "stopped", gone)

    def _stop_of(self, sender: str, session: str, before: int) -> int:
        """Stop the sender's own rows alone: in a room, only the owner can stop others."""
        rows = self.db.execute(
            "SELECT id, payload FROM inbox WHERE session = ? AND id < ?"
            f" AND {inbox_sources(InboxState.IGNORED, *_WORK)} ORDER BY id",
            (session, before),
        ).fetchall()
        theirs = [row_id for row_id, payload in rows if sender_of(payload) == sender]
        gone = 0
        for first in range(0, len(theirs), _AT_ONCE):
            ids = theirs[first : first + _AT_ONCE]
            where = f"id IN ({', '.join('?' * len(ids))})"
            gone += self._take_away(where, ids, "stopped", only=_WORK)
        return gone

    def bounce(self, amendment: Amendment) -> None:
        """Record at a sent row why it did not arrive; the row stays sent."""
        self.db.execute(
            "UPDATE outbox SET error = ? WHERE state = 'sent'"
            " AND channel = ? AND account = ? AND provider_id = ?",
            (error_text(f"undeliverable: {amendment.text}"), *self.place, key_text(amendment.native_id)),
        )

    def _row(self, amendment: Amendment) -> Raw | None:
        row: Raw | None = self.db.execute(
            f"SELECT {_ROW} FROM inbox WHERE {NAMED} ORDER BY id DESC LIMIT 1",
            (*self.place, *names_of(amendment)),
        ).fetchone()
        return row

    def _take_away(
        self, where: str, arguments: Sequence[str | int], why: str, *, only: Collection[InboxState] = _OPEN
    ) -> int:
        """Mark rows but no notes, and make IGNORED those that can be; return how many were newly marked."""
        where = f"kind <> 'note' AND {where}"
        work = inbox_sources(InboxState.IGNORED, *_WORK)
        turns = self.db.execute(
            f"SELECT DISTINCT session, turn, state FROM inbox WHERE turn IS NOT NULL AND {work} AND {where}",
            tuple(arguments),
        ).fetchall()
        marked = self.db.execute(
            "UPDATE inbox SET withdrawn = ? WHERE withdrawn IS NULL"
            f" AND {inbox_sources(InboxState.IGNORED, *only)} AND {where}",
            (why, *arguments),
        ).rowcount
        ignore(self.db, f"turn IS NULL AND {where}", arguments, why, self.now, only=only)
        for session, turn, state in turns:
            gone = ignore_withdrawn(self.db, session, turn, self.now)
            if gone and state == InboxState.RUNNING:
                self.effects.stopped.append((session, turn, why))
        return marked


def _blank(db: ConnectionPort, row_id: int, payload: str | None) -> None:
    """Take the text and files of an ended message out of the store; who, when, and its state stay."""
    blank = with_note(stripped_payload(payload), "redacted", value=True)
    db.execute("UPDATE inbox SET payload = ? WHERE id = ?", (blank, row_id))


def blank_withdrawn(db: ConnectionPort, turn: str) -> None:
    """Blank the messages of an ended turn that were taken back while it ran."""
    states = ", ".join(f"'{state}'" for state in _ENDED)
    rows = db.execute(
        f"SELECT id, payload FROM inbox WHERE turn = ? AND withdrawn = 'withdrawn' AND state IN ({states})",
        (turn,),
    ).fetchall()
    for row_id, payload in rows:
        _blank(db, row_id, payload)


def list_edit_notes(db: ConnectionPort, turn: str) -> list[Note]:
    """Return the notes for messages that were edited while their turn ran on, which has answered them."""
    rows = db.execute(
        "SELECT id, session, payload FROM inbox WHERE turn = ? AND withdrawn IS NULL"
        " AND kind IN ('message', 'alone')"
        " AND state IN ('answered', 'settled')",
        (turn,),
    ).fetchall()
    return [
        _correction(db, session, turn, row_id, message, before=message.text)
        for row_id, session, payload in rows
        if (message := read_payload(payload)) is not None and message.notes.edited not in (None, message.text)
    ]


def _correction(
    db: ConnectionPort, session: str, turn: str, row_id: int, message: InboundMessage, *, before: str
) -> Note:
    """Count an edit of an answered message, which said ``before``; return its note."""
    count = message.notes.edit_count + 1
    _store(db, row_id, message, replace(message.notes, edit_count=count))
    text = f"{CORRECTION_PREFIX}{_quote(before)}]\n{message.notes.edited}"
    line = LineNote(turn=turn, id=f"{_line_of(db, turn, row_id)[0]}.edited {count}")
    return _note(session, message, f"edited {count}", text, line)


def _store(db: ConnectionPort, row_id: int, message: InboundMessage, notes: MessageNotes) -> InboundMessage:
    """Store a message with other notes; return it."""
    changed = message.with_notes(notes)
    db.execute("UPDATE inbox SET payload = ? WHERE id = ?", (dump(changed), row_id))
    return changed


def _as_edited(message: InboundMessage) -> InboundMessage:
    """Return a message with its newest text as its own."""
    if message.notes.edited is None:
        return message
    said = message.model_copy(update={"text": message.notes.edited})
    return said.with_notes(replace(message.notes, edited=None))


def notes_for_withdrawn(db: ConnectionPort, turn: str) -> list[Note]:
    """Return the notes for messages that were taken back while their turn ran, which has answered them."""
    rows = db.execute(
        "SELECT id, session, payload FROM inbox WHERE turn = ? AND withdrawn = 'withdrawn'"
        " AND state IN ('answered', 'settled')",
        (turn,),
    ).fetchall()
    notes: list[Note] = []
    for row_id, session, payload in rows:
        if (message := read_payload(payload)) is not None:
            notes += _withdrawals(db, turn, row_id, session, message)
    return notes


def _withdrawals(
    db: ConnectionPort, turn: str, row_id: int, session: str, message: InboundMessage
) -> list[Note]:
    """Return what takes an answered message out of the history: its turn, or its own lines if others stay."""
    line, others = _line_of(db, turn, row_id)
    edits = message.notes.edit_count if others else 0
    gone = [line, *(f"{line}.edited {count + 1}" for count in range(edits))] if others else [turn]
    return [
        _note(session, message, f"withdrawn {number}", "", LineNote(undoes=each))
        for number, each in enumerate(gone)
    ]


def _line_of(db: ConnectionPort, turn: str, row_id: int) -> tuple[str, bool]:
    """Return the id of an answered message's line, and whether the turn has others that were not redacted."""
    query = "SELECT id, payload FROM inbox WHERE turn = ? AND state IN ('answered', 'settled') ORDER BY id"
    rows = db.execute(query, (turn,)).fetchall()
    others = any(other != row_id and not is_redacted(payload) for other, payload in rows)
    return f"{turn}.{[other for other, _ in rows].index(row_id)}", others


def is_redacted(payload: str | None) -> bool:
    """Return whether the sender of a message has taken it back."""
    message = read_payload(payload)
    return message is not None and message.notes.redacted


def _note(session: str, message: InboundMessage, what: str, text: str, line: LineNote) -> Note:
    noted = message.model_copy(
        update={
            "native_id": f"{message.native_id} {what}",
            "text": text,
            "attachments": (),
            "background": (),
        }
    )
    context = replace(message.context, noted=line, notes=replace(message.notes, edited=None))
    return Note(session, noted.with_context(context))


def _quote(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _QUOTED else f"{words[:_QUOTED]} […]"


def _done_in(db: ConnectionPort, turn: str, before: Mapping[str, int]) -> dict[str, int]:
    """Return which tools were used in a turn, how often, and with what success, and ``before`` it."""
    done = dict(before)
    rows = db.execute("SELECT tool, outcome FROM receipts WHERE turn = ?", (turn,)).fetchall()
    for tool, outcome in rows:
        name = f"{tool}{_OUTCOMES.get(outcome, ' with an unknown outcome')}"
        done[name] = done.get(name, 0) + 1
    return done


def ignore_withdrawn(db: ConnectionPort, session: str, turn: str, now: float) -> bool:
    """
    Make the marked rows of a turn IGNORED if that is possible now; return whether it was.

    It is possible if all of its rows are marked, or if the turn waits and has no steps yet.
    """
    work = inbox_sources(InboxState.IGNORED, *_WORK)
    mine = "session = ? AND turn = ?"
    rows = db.execute(
        f"SELECT state, withdrawn FROM inbox WHERE {work} AND {mine}", (session, turn)
    ).fetchall()
    whys = {why for _, why in rows if why is not None}
    waits = all(state == InboxState.READY for state, _ in rows)
    if not all(why is not None for _, why in rows) and not (waits and whys and not _has_steps(db, turn)):
        return False
    for why in whys:
        ignore(db, f"{mine} AND withdrawn = ?", (session, turn, why), why, now, only=_WORK)
    forget_steps(db, turn)
    return True


def _has_steps(db: ConnectionPort, turn: str) -> bool:
    return db.execute("SELECT 1 FROM turn_steps WHERE turn = ? LIMIT 1", (turn,)).fetchone() is not None


def admit(db: ConnectionPort, inbox_id: int, *, welcome: bool = False) -> str:
    """
    Release a quarantined message as first shown; return its session. Raises IllegalMove.

    An edit of it is answered only for somebody who may write anyway.
    """
    query = "SELECT state, session, payload, error FROM inbox WHERE id = ?"
    row = db.execute(query, (inbox_id,)).fetchone()
    state = "no such row" if row is None else row[0]
    message = None if row is None else read_payload(row[2])
    refused = IllegalMove(f"inbox row {inbox_id}: {state} → {InboxState.READY}")
    if message is None or message.context.invitation:
        raise refused
    admitted = read_payload(edited_payload(row[2])) or message
    if not message.sender.verified or (row[3] == UNINVITED and not welcome):
        sender = message.sender.model_copy(update={"verified": True})
        admitted = message.model_copy(update={"sender": sender})
        admitted = admitted.with_notes(replace(message.notes, edited=None, admitted=True))
    moved = db.execute(
        "UPDATE inbox SET state = 'ready', payload = ?, error = NULL, ended_at = NULL"
        f" WHERE id = ? AND {inbox_sources(InboxState.READY, InboxState.QUARANTINED)}",
        (dump(admitted), inbox_id),
    )
    if moved.rowcount != 1:
        raise refused
    return str(row[1])
