"""
Moves messages through the outbox, as SQL. Each move is one statement that names its allowed source states,
taken from the table in ``gateway/store/states.py``. If the statement finds no such row, the row is looked up
once to say what is wrong. ``uncertain_at`` is kept while a message that may have arrived is sent again, so
that after a crash in between the message does not look as if it had never left.
"""
# ruff: noqa: S608 - only constants of this package are put into statements; every value is a parameter

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent_core.messages import OutboundKind, OutboundMessage
from gateway.store.sql import crash_records
from gateway.store.sql.engine import ConnectionPort, Cursor
from gateway.store.sql.row_codec import OUTBOX, Raw, dump, instant, payload_object
from gateway.store.sql.state_store import MAX_DELAY_S, inbox_sources, outbox_sources, wait_s
from gateway.store.states import DROPPED_REASONS, IllegalMove, InboxState, OutboxState

_OPEN = "state IN ('pending', 'sending', 'uncertain')"
_NOT_HELD = tuple(state for state in OutboxState if state is not OutboxState.HELD)


def insert(
    db: ConnectionPort,
    messages: Sequence[tuple[OutboundMessage, str]],
    *,
    inbox_id: int | None,
    turn: str | None,
    now: float,
    held: Sequence[bool] = (),
) -> list[int]:
    """Insert messages, each with its JSON, into the outbox, some as drafts; return their ids."""
    ids: list[int] = []
    for number, (message, payload) in enumerate(messages):
        (row_id,) = db.execute(
            "INSERT INTO outbox (inbox_id, turn, key, channel, account, session, payload, state, created_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
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
        ).fetchone()
        ids.append(int(row_id))
    return ids


def _moved(db: ConnectionPort, cursor: Cursor, row_id: int, target: OutboxState) -> None:
    if cursor.rowcount != 1:
        raise IllegalMove(f"outbox row {row_id}: {_state(db, row_id)} → {target}")


def _state(db: ConnectionPort, row_id: int) -> str:
    found = db.execute("SELECT state FROM outbox WHERE id = ?", (row_id,)).fetchone()
    return "no such row" if found is None else str(found[0])


def start(db: ConnectionPort, row_id: int) -> None:
    """Move to ``sending`` and count one more attempt."""
    # A row that is already `sending` may start again: nobody recorded how the earlier try ended.
    sources = outbox_sources(OutboxState.SENDING, also=(OutboxState.SENDING,))
    query = f"UPDATE outbox SET state = 'sending', attempts = attempts + 1 WHERE id = ? AND {sources}"
    _moved(db, db.execute(query, (row_id,)), row_id, OutboxState.SENDING)


def probe(db: ConnectionPort, row_id: int) -> None:
    """Move to ``sending`` because the server is asked; the time of its uncertainty is kept."""
    sources = outbox_sources(OutboxState.SENDING, OutboxState.UNCERTAIN, also=(OutboxState.SENDING,))
    query = f"UPDATE outbox SET state = 'sending' WHERE id = ? AND {sources}"
    _moved(db, db.execute(query, (row_id,)), row_id, OutboxState.SENDING)


def to_uncertain(db: ConnectionPort, row_id: int, now: float) -> None:
    """Move to ``uncertain``."""
    query = (
        "UPDATE outbox SET state = 'uncertain', uncertain_at = COALESCE(uncertain_at, ?)"
        f" WHERE id = ? AND {outbox_sources(OutboxState.UNCERTAIN)}"
    )
    _moved(db, db.execute(query, (now, row_id)), row_id, OutboxState.UNCERTAIN)


def move_to_sent(
    db: ConnectionPort,
    row_id: int,
    inbox_id: int | None,
    provider_id: str,
    now: float,
    *,
    said: Callable[[ConnectionPort], None] | None = None,
) -> None:
    """
    Move to ``sent``, and settle the turn if this was its last message.

    ``said`` adds a line to a history; the line is committed with the first move to ``sent`` and only then.
    """
    if said is not None and _state(db, row_id) != OutboxState.SENT:
        said(db)
    # A message that was dropped or already recorded while it was on its way has arrived nevertheless.
    sources = outbox_sources(OutboxState.SENT, also=(OutboxState.DEAD, OutboxState.SENT))
    query = (
        "UPDATE outbox SET state = 'sent', provider_id = ?, ended_at = ?, next_at = NULL, error = NULL"
        f" WHERE id = ? AND {sources}"
    )
    _moved(db, db.execute(query, (provider_id, now, row_id)), row_id, OutboxState.SENT)
    if inbox_id is not None:
        settle(db, row_id, now)


def replace_sent(db: ConnectionPort, row_id: int, now: float) -> str | None:
    """Move to ``sent``, because another message goes out in its place; return its turn."""
    sources = outbox_sources(OutboxState.SENT, OutboxState.SENDING, OutboxState.UNCERTAIN)
    query = (
        "UPDATE outbox SET state = 'sent', ended_at = ?, next_at = NULL, error = NULL"
        f" WHERE id = ? AND {sources}"
    )
    _moved(db, db.execute(query, (now, row_id)), row_id, OutboxState.SENT)
    (turn,) = db.execute("SELECT turn FROM outbox WHERE id = ?", (row_id,)).fetchone()
    return None if turn is None else str(turn)


def settle(db: ConnectionPort, row_id: int, now: float) -> None:
    """Settle the inbox rows of this outbox row's turn if all of its messages were sent."""
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


def record_failure(
    db: ConnectionPort,
    row_id: int,
    error: str,
    *,
    next_at: float | None,
    certain: bool,
    now: float,
    waits_for: str | None = None,
) -> bool:
    """
    Record a failed send: dead, or to be retried. What a person has given up meanwhile stays given up.

    Returns whether this call made it dead.
    """
    if next_at is None:
        target = OutboxState.DEAD
        sources = outbox_sources(target, *_NOT_HELD)
        crash_records.forget_deaths(db, crash_records.send_item(row_id))
    else:
        target = OutboxState.PENDING if certain else OutboxState.UNCERTAIN
        tried = (OutboxState.SENDING, OutboxState.UNCERTAIN)
        sources = outbox_sources(target, *tried, also=(OutboxState.PENDING,) if certain else ())
    cursor = db.execute(
        "UPDATE outbox SET state = :state, error = :error, next_at = :next_at, waits_for = :waits_for,"
        " ended_at = CASE :state WHEN 'dead' THEN :now ELSE ended_at END,"
        " uncertain_at = CASE :state WHEN 'pending' THEN NULL"
        " WHEN 'uncertain' THEN COALESCE(uncertain_at, :now) ELSE uncertain_at END"
        f" WHERE id = :id AND {sources}",
        {
            "state": target.value,
            "error": error,
            "next_at": next_at,
            "waits_for": waits_for,
            "now": now,
            "id": row_id,
        },
    )
    if cursor.rowcount != 1 and _state(db, row_id) != OutboxState.DEAD:
        _moved(db, cursor, row_id, target)
    return target is OutboxState.DEAD and cursor.rowcount == 1


def apologise(db: ConnectionPort, row_id: int, message: tuple[OutboundMessage, str], now: float) -> None:
    """Insert an apology for a dead row; only one for all parts of an answer."""
    inbox_id, turn = db.execute("SELECT inbox_id, turn FROM outbox WHERE id = ?", (row_id,)).fetchone()
    parts = db.execute("SELECT payload FROM outbox WHERE inbox_id = ? AND turn = ?", (inbox_id, turn))
    kinds = {(payload_object(payload) or {}).get("kind") for (payload,) in parts.fetchall()}
    if OutboundKind.APOLOGY not in kinds:
        insert(db, [message], inbox_id=inbox_id, turn=turn, now=now)


def to_unknown(db: ConnectionPort, row_id: int, error: str) -> None:
    """Move to ``unknown``: a person decides, and a retry begins with a clean crash record."""
    crash_records.forget_deaths(db, crash_records.send_item(row_id))
    query = (
        "UPDATE outbox SET state = 'unknown', next_at = NULL, error = ?"
        f" WHERE id = ? AND {outbox_sources(OutboxState.UNKNOWN)}"
    )
    _moved(db, db.execute(query, (error, row_id)), row_id, OutboxState.UNKNOWN)


def approve(db: ConnectionPort, row_id: int, text: str | None, now: float) -> Raw:
    """Move from ``held`` to ``pending``, as if it were created now; return the row."""
    row = _row_or_none(db, row_id)
    if row is None or row[7] != OutboxState.HELD:
        raise IllegalMove(f"outbox row {row_id}: {_state(db, row_id)} → {OutboxState.PENDING}")
    message = OutboundMessage.model_validate_json(row[6])
    changed: dict[str, object] = {"created_at": instant(now)}
    if text is not None:
        changed["text"] = text
    query = (
        "UPDATE outbox SET state = 'pending', payload = ?, created_at = ?"
        f" WHERE id = ? AND {outbox_sources(OutboxState.PENDING, OutboxState.HELD)}"
    )
    cursor = db.execute(query, (dump(message.model_copy(update=changed)), now, row_id))
    _moved(db, cursor, row_id, OutboxState.PENDING)
    return _row(db, row_id)


def reject(db: ConnectionPort, row_id: int, error: str, now: float) -> Raw:
    """Move to ``dead``, or note of what has failed that a person has given it up; return the row."""
    waiting = outbox_sources(OutboxState.DEAD, OutboxState.HELD, OutboxState.UNKNOWN)
    failed = (
        f"state = 'dead' AND COALESCE(error, '') NOT IN {DROPPED_REASONS}"
        " AND substr(COALESCE(error, ''), 1, 8) <> 'rejected'"
    )
    given_up = f"{waiting} OR {failed}"
    query = f"UPDATE outbox SET state = 'dead', ended_at = ?, error = ? WHERE id = ? AND ({given_up})"
    _moved(db, db.execute(query, (now, error, row_id)), row_id, OutboxState.DEAD)
    return _row(db, row_id)


def _row(db: ConnectionPort, row_id: int) -> Raw:
    found = _row_or_none(db, row_id)
    assert found is not None
    return found


def _row_or_none(db: ConnectionPort, row_id: int) -> Raw | None:
    found: Raw | None = db.execute(f"SELECT {OUTBOX} FROM outbox WHERE id = ?", (row_id,)).fetchone()
    return found


# The partial index outbox_open is read in its own order, one group per session.
def _heads(busy: Sequence[str]) -> str:
    """Return the query of the oldest open row per session, a placeholder for each busy one."""
    others = f" AND session NOT IN ({', '.join('?' * len(busy))})" if busy else ""
    return (
        f"SELECT MIN(id) FROM outbox WHERE channel = ? AND account = ? AND {_OPEN}{others} GROUP BY session"
    )


def heads(
    db: ConnectionPort, channel: str, account: str, busy: Sequence[str], *, limit: int, now: float
) -> list[Raw]:
    """Return the oldest open row of each session that is not busy, if it is due."""
    return db.execute(
        f"SELECT {OUTBOX} FROM outbox WHERE id IN ({_heads(busy)})"
        " AND (next_at IS NULL OR next_at <= ? OR next_at > ?) ORDER BY id LIMIT ?",
        (channel, account, *busy, now, now + MAX_DELAY_S, limit),
    ).fetchall()


def next_send_in(
    db: ConnectionPort, channel: str, account: str, busy: Sequence[str], now: float
) -> float | None:
    """Return the seconds until one of the oldest open rows that nobody is sending is due."""
    (due_at,) = db.execute(
        f"SELECT MIN(COALESCE(next_at, 0)) FROM outbox WHERE id IN ({_heads(busy)}) AND state <> 'sending'",
        (channel, account, *busy),
    ).fetchone()
    return None if due_at is None else wait_s(due_at, now)
