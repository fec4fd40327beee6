"""
The way of a message through the outbox, as SQL.

Each move is one statement that names the states it may start from, taken from the table in
``gateway/queue/states.py``; if it finds no such row, the row is looked up once to say what is wrong.
``uncertain_at`` is kept while a message that may have arrived is sent again, so that a crash in between does
not make it look as if it had never left.
"""
# ruff: noqa: S608 - only constants of this package are put into statements; every value is a parameter

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from agent_core.messages import OutboundMessage
from gateway.queue.sqlite import crash_records, inbox_sql
from gateway.queue.sqlite.codec import OUTBOX, Raw, dump, instant
from gateway.queue.sqlite.due import LONGEST_S, wait_s
from gateway.queue.sqlite.moves import inbox_sources, outbox_sources
from gateway.queue.states import IllegalMove, InboxState, OutboxState

__all__ = [
    "apologise",
    "approve",
    "by_key",
    "failed",
    "heads",
    "insert",
    "next_send_in",
    "probe",
    "reject",
    "sent",
    "settle",
    "start",
    "to_uncertain",
    "to_unknown",
]

_OPEN = "state IN ('pending', 'sending', 'uncertain')"


def insert(
    db: sqlite3.Connection,
    messages: Sequence[tuple[OutboundMessage, str]],
    *,
    inbox_id: int | None,
    turn: str | None,
    now: float,
    held: Sequence[bool] = (),
) -> list[int]:
    """Put messages, each with its JSON, into the outbox, some as drafts; returns their ids."""
    ids: list[int] = []
    for number, (message, payload) in enumerate(messages):
        cursor = db.execute(
            "INSERT INTO outbox (inbox_id, turn, key, channel, account, session, payload, state, created_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                inbox_id,
                turn,
                message.id,
                message.channel,
                message.account,
                str(message.session),
                payload,
                (OutboxState.HELD if any(held[number : number + 1]) else OutboxState.PENDING).value,
                now,
            ),
        )
        ids.append(int(cursor.lastrowid or 0))
    return ids


def _moved(db: sqlite3.Connection, cursor: sqlite3.Cursor, row_id: int, target: OutboxState) -> None:
    if cursor.rowcount != 1:
        raise IllegalMove(f"outbox row {row_id}: {_state(db, row_id)} → {target}")


def _state(db: sqlite3.Connection, row_id: int) -> str:
    found = db.execute("SELECT state FROM outbox WHERE id = ?", (row_id,)).fetchone()
    return "no such row" if found is None else str(found[0])


# Sending what is already `sending` is the move back to pending and forth: nobody came to tell how it ended.
_TO_SENDING = (
    "UPDATE outbox SET state = 'sending', attempts = attempts + 1 WHERE id = ? AND "
    + outbox_sources(OutboxState.SENDING, OutboxState.SENDING)
)


def start(db: sqlite3.Connection, row_id: int) -> None:
    """To ``sending``, one attempt more."""
    _moved(db, db.execute(_TO_SENDING, (row_id,)), row_id, OutboxState.SENDING)


def probe(db: sqlite3.Connection, row_id: int) -> None:
    """To ``sending`` because the server is asked; what is uncertain about it stays noted."""
    query = "UPDATE outbox SET state = 'sending' WHERE id = ? AND state IN ('uncertain', 'sending')"
    _moved(db, db.execute(query, (row_id,)), row_id, OutboxState.SENDING)


_TO_UNCERTAIN = (
    "UPDATE outbox SET state = 'uncertain', uncertain_at = COALESCE(uncertain_at, ?) WHERE id = ? AND "
    + outbox_sources(OutboxState.UNCERTAIN)
)


def to_uncertain(db: sqlite3.Connection, row_id: int, now: float) -> None:
    """To ``uncertain``."""
    _moved(db, db.execute(_TO_UNCERTAIN, (now, row_id)), row_id, OutboxState.UNCERTAIN)


# What was dropped or already told while it was on its way has arrived nevertheless: the truth wins.
_TO_SENT = (
    "UPDATE outbox SET state = 'sent', provider_id = ?, ended_at = ?, next_at = NULL, error = NULL"
    " WHERE id = ? AND " + outbox_sources(OutboxState.SENT, OutboxState.DEAD, OutboxState.SENT)
)


def sent(
    db: sqlite3.Connection,
    row_id: int,
    inbox_id: int | None,
    provider_id: str,
    now: float,
    *,
    said: tuple[str, str] | None = None,
) -> None:
    """
    To ``sent``; settles the turn if this was its last.

    ``said`` is a session with a line for its history, which is committed with the first move and only then.
    """
    if said is not None and _state(db, row_id) != OutboxState.SENT:
        inbox_sql.journal(db, said[0], said[1:])
    _moved(db, db.execute(_TO_SENT, (provider_id, now, row_id)), row_id, OutboxState.SENT)
    if inbox_id is not None:
        settle(db, row_id, now)


def settle(db: sqlite3.Connection, row_id: int, now: float) -> None:
    """If everything of the turn of this outbox row was sent, its inbox rows are settled."""
    tail, turn = db.execute("SELECT inbox_id, turn FROM outbox WHERE id = ?", (row_id,)).fetchone()
    left = db.execute(
        "SELECT 1 FROM outbox WHERE inbox_id = ? AND turn = ? AND state <> 'sent' LIMIT 1", (tail, turn)
    )
    if left.fetchone() is None:
        db.execute(
            "UPDATE inbox SET state = 'settled', ended_at = ?"
            f" WHERE {inbox_sources(InboxState.SETTLED, InboxState.ANSWERED)} AND turn = ?"
            " AND session = (SELECT session FROM inbox WHERE id = ?)",
            (now, turn, tail),
        )


_TO_DEAD = (
    "UPDATE outbox SET state = 'dead', ended_at = ?, next_at = NULL, error = ? WHERE id = ? AND "
    + outbox_sources(OutboxState.DEAD)
)
_TO_PENDING = (
    "UPDATE outbox SET state = 'pending', next_at = ?, waits_for = ?, error = ?, uncertain_at = NULL"
    " WHERE id = ? AND state IN ('pending', 'sending', 'uncertain')"
)
_STAYS_UNCERTAIN = (
    "UPDATE outbox SET state = 'uncertain', next_at = ?, waits_for = ?, error = ?,"
    " uncertain_at = COALESCE(uncertain_at, ?) WHERE id = ? AND state IN ('sending', 'uncertain')"
)


def failed(
    db: sqlite3.Connection,
    row_id: int,
    error: str,
    *,
    next_at: float | None,
    certain: bool,
    now: float,
    waits_for: str | None = None,
) -> bool:
    """
    Not sent: dead, or to be tried again. What a person has given up meanwhile stays given up.

    Returns whether it has become dead by this.
    """
    if next_at is None:
        target, cursor = OutboxState.DEAD, db.execute(_TO_DEAD, (now, error, row_id))
        crash_records.acquit(db, crash_records.of_send(row_id))
    elif certain:
        target, cursor = OutboxState.PENDING, db.execute(_TO_PENDING, (next_at, waits_for, error, row_id))
    else:
        target = OutboxState.UNCERTAIN
        cursor = db.execute(_STAYS_UNCERTAIN, (next_at, waits_for, error, now, row_id))
    if cursor.rowcount != 1 and _state(db, row_id) != OutboxState.DEAD:
        _moved(db, cursor, row_id, target)
    return target is OutboxState.DEAD and cursor.rowcount == 1


def apologise(db: sqlite3.Connection, row_id: int, message: tuple[OutboundMessage, str], now: float) -> None:
    """Put an apology beside a dead row; only one for all the parts of an answer."""
    inbox_id, turn = db.execute("SELECT inbox_id, turn FROM outbox WHERE id = ?", (row_id,)).fetchone()
    known = db.execute(
        "SELECT 1 FROM outbox WHERE inbox_id = ? AND turn = ? AND json_extract(payload, '$.kind') = 'apology'"
        " LIMIT 1",
        (inbox_id, turn),
    )
    if known.fetchone() is None:
        insert(db, [message], inbox_id=inbox_id, turn=turn, now=now)


_TO_UNKNOWN = (
    "UPDATE outbox SET state = 'unknown', next_at = NULL, error = ? WHERE id = ? AND "
    + outbox_sources(OutboxState.UNKNOWN)
)


def to_unknown(db: sqlite3.Connection, row_id: int, error: str) -> None:
    """To ``unknown``: a person decides, and what they try again begins anew."""
    crash_records.acquit(db, crash_records.of_send(row_id))
    _moved(db, db.execute(_TO_UNKNOWN, (error, row_id)), row_id, OutboxState.UNKNOWN)


def approve(db: sqlite3.Connection, row_id: int, text: str | None, now: float) -> Raw:
    """From ``held`` to ``pending``, as if it were made now; returns the row."""
    row = _held(db, row_id, OutboxState.PENDING)
    message = OutboundMessage.model_validate_json(row[6])
    changed: dict[str, object] = {"created_at": instant(now)}
    if text is not None:
        changed["text"] = text
    db.execute(
        "UPDATE outbox SET state = 'pending', payload = ?, created_at = ? WHERE id = ?",
        (dump(message.model_copy(update=changed)), now, row_id),
    )
    return _row(db, row_id)


def reject(db: sqlite3.Connection, row_id: int, error: str, now: float) -> Raw:
    """From ``held`` to ``dead``; returns the row."""
    _held(db, row_id, OutboxState.DEAD)
    db.execute("UPDATE outbox SET state = 'dead', ended_at = ?, error = ? WHERE id = ?", (now, error, row_id))
    return _row(db, row_id)


def _held(db: sqlite3.Connection, row_id: int, target: OutboxState) -> Raw:
    found: Raw | None = db.execute(f"SELECT {OUTBOX} FROM outbox WHERE id = ?", (row_id,)).fetchone()
    if found is None or found[7] != OutboxState.HELD:
        raise IllegalMove(f"outbox row {row_id}: {_state(db, row_id)} → {target}")
    return found


def by_key(db: sqlite3.Connection, key: str) -> Raw | None:
    """The newest row with this key."""
    query = f"SELECT {OUTBOX} FROM outbox WHERE key = ? ORDER BY id DESC LIMIT 1"
    found: Raw | None = db.execute(query, (key,)).fetchone()
    return found


def _row(db: sqlite3.Connection, row_id: int) -> Raw:
    found: Raw = db.execute(f"SELECT {OUTBOX} FROM outbox WHERE id = ?", (row_id,)).fetchone()
    return found


# The partial index outbox_open is read in its own order, one group per session.
_HEADS = (
    f"SELECT MIN(id) FROM outbox WHERE channel = ? AND account = ? AND {_OPEN}"
    " AND session NOT IN (SELECT value FROM json_each(?)) GROUP BY session"
)


def heads(
    db: sqlite3.Connection, channel: str, account: str, busy: Sequence[str], *, limit: int, now: float
) -> list[Raw]:
    """The oldest open row of each session that is not busy, if it is due."""
    return db.execute(
        f"SELECT {OUTBOX} FROM outbox WHERE id IN ({_HEADS})"
        " AND (next_at IS NULL OR next_at <= ? OR next_at > ?) ORDER BY id LIMIT ?",
        (channel, account, json.dumps(busy), now, now + LONGEST_S, limit),
    ).fetchall()


def next_send_in(
    db: sqlite3.Connection, channel: str, account: str, busy: Sequence[str], now: float
) -> float | None:
    """Seconds until one of the oldest rows is due that nobody has in hand."""
    (due_at,) = db.execute(
        f"SELECT MIN(COALESCE(next_at, 0)) FROM outbox WHERE id IN ({_HEADS}) AND state <> 'sending'",
        (channel, account, json.dumps(busy)),
    ).fetchone()
    return None if due_at is None else wait_s(due_at, now)
