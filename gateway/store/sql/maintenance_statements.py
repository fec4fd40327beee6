"""
Recovers, lists, counts, repairs and deletes rows, as SQL, for the operator and for the daemon's own
maintenance. Functions that change something run on the writer's connection, the others on the reader's.
"""

# ruff: noqa: S608 - only constants of this package are put into statements; every value is a parameter

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from gateway.store.sql import crash_records
from gateway.store.sql.amendments import edited_payload, forget_steps, ignore, is_redacted
from gateway.store.sql.engine import ConnectionPort
from gateway.store.sql.inbox_statements import seconds_to_claim
from gateway.store.sql.row_codec import INBOX, OUTBOX, Raw, key_digest, sender_of
from gateway.store.sql.state_store import MAX_DELAY_S, UNINDEXED_STATE, inbox_sources, outbox_sources
from gateway.store.states import (
    BUDGET,
    PLACE,
    QUARANTINE_S,
    UNINVITED,
    UNINVITED_S,
    InboxState,
    OutboxState,
    StoreStats,
)

_Key = TypeVar("_Key", int, str, tuple[str, str])
PAGE_ROWS = 250
# Most rows are in these states: a scan backwards from the end finds some sooner than an index does.
_COMMON = frozenset({InboxState.SETTLED, InboxState.IGNORED, OutboxState.SENT})


def recover(db: ConnectionPort, now: float) -> None:
    """Recover all rows. Nobody works on them; those in flight were so when the process died."""
    crash_records.record(db, now)
    db.execute(
        f"UPDATE inbox SET state = 'ready' WHERE {inbox_sources(InboxState.READY, InboxState.RUNNING)}"
    )
    for target, doubt in ((OutboxState.PENDING, "IS NULL"), (OutboxState.UNCERTAIN, "IS NOT NULL")):
        sending = outbox_sources(target, OutboxState.SENDING)
        db.execute(f"UPDATE outbox SET state = ? WHERE {sending} AND uncertain_at {doubt}", (target.value,))


def work_in(db: ConnectionPort, sessions: Mapping[int, str]) -> int:
    """Move waiting messages to these sessions; return how many were in another one."""
    move = "UPDATE inbox SET session = ? WHERE id = ? AND state = 'ready' AND session <> ?"
    return sum(db.execute(move, (key, row_id, key)).rowcount for row_id, key in sessions.items())


def due_now(db: ConnectionPort, waits_for: str) -> None:
    """End every wait for this."""
    db.execute(
        "UPDATE inbox SET next_at = NULL, waits_for = NULL WHERE state = 'ready' AND waits_for = ?",
        (waits_for,),
    )
    db.execute(
        "UPDATE outbox SET next_at = NULL, waits_for = NULL WHERE state IN ('pending', 'uncertain')"
        " AND waits_for = ?",
        (waits_for,),
    )


def open_sessions(db: ConnectionPort, now: float) -> list[tuple[str, float]]:
    """Return sessions with a waiting head, the longest waiting first, and in how many seconds it is due."""
    rows = db.execute(
        "SELECT session, next_at FROM inbox WHERE id IN"
        " (SELECT MIN(id) FROM inbox WHERE state = 'ready' AND session NOT IN"
        " (SELECT session FROM inbox WHERE state = 'running') GROUP BY session) ORDER BY id"
    )
    return [(session, seconds_to_claim(db, session, next_at, now)) for session, next_at in rows.fetchall()]


def waiting_people(db: ConnectionPort) -> list[tuple[str, str]]:
    """Return sessions with a waiting head, and the address of its sender."""
    rows = db.execute(
        "SELECT session, payload FROM inbox WHERE id IN"
        " (SELECT MIN(id) FROM inbox WHERE state = 'ready' GROUP BY session)"
    )
    return [(session, address) for session, payload in rows if (address := sender_of(payload))]


def due_in(db: ConnectionPort, session: str, now: float) -> float | None:
    """Return the seconds until the head of a session is due; None if nothing waits, or a turn runs."""
    if db.execute(
        "SELECT 1 FROM inbox WHERE state = 'running' AND session = ? LIMIT 1", (session,)
    ).fetchone():
        return None
    head = db.execute(
        "SELECT next_at FROM inbox WHERE state = 'ready' AND session = ? ORDER BY id LIMIT 1", (session,)
    ).fetchone()
    if head is None:
        return None
    return seconds_to_claim(db, session, head[0], now)


def inbox(
    db: ConnectionPort, states: Sequence[InboxState], session: str | None, errors: Sequence[str], limit: int
) -> list[Raw]:
    """Return rows of the inbox, newest first; ``errors`` are patterns, one of which fits a row's error."""
    where = "" if session is None else " AND session = ?"
    where += f" AND ({' OR '.join(['error LIKE ?'] * len(errors))})" if errors else ""
    arguments = (*(() if session is None else (session,)), *errors)
    if not states and not where:
        return db.execute(
            f"SELECT {INBOX} FROM inbox WHERE state <> 'ignored' ORDER BY id DESC LIMIT ?", (limit,)
        ).fetchall()
    states = states or [state for state in InboxState if state is not InboxState.IGNORED]
    return _newest(db, f"SELECT {INBOX} FROM inbox", states, limit, where=where, arguments=arguments)


_HELD = "SELECT id FROM outbox WHERE state = 'held' ORDER BY id"


def list_new_quarantine(db: ConnectionPort, known: Collection[int], limit: int) -> tuple[list[Raw], set[int]]:
    """Return quarantined rows, oldest first."""
    new, all_known = _besides(
        db, "SELECT id FROM inbox WHERE state = 'quarantined' ORDER BY id", known, limit
    )
    query = f"SELECT {INBOX} FROM inbox WHERE state = 'quarantined' AND id BETWEEN ? AND ? ORDER BY id"
    return _of_these(db, query, new), all_known


def new_drafts(db: ConnectionPort, known: Collection[int], limit: int) -> tuple[list[Raw], set[int]]:
    """Return drafts, oldest first; of an answer in several parts the first one."""
    new, all_known = _besides(db, _HELD, known, limit)
    query = (
        f"SELECT {OUTBOX} FROM outbox WHERE state = 'held' AND id BETWEEN ? AND ? AND NOT EXISTS"
        " (SELECT 1 FROM outbox AS part WHERE part.inbox_id = outbox.inbox_id AND part.state = 'held'"
        " AND part.id < outbox.id) ORDER BY id"
    )
    return _of_these(db, query, new), all_known


# A later commit may have a lower id, so the highest id seen proves nothing.
def _besides(
    db: ConnectionPort, waiting: str, known: Collection[int], limit: int
) -> tuple[list[int], set[int]]:
    ids = [row_id for (row_id,) in db.execute(waiting)]
    new = [row_id for row_id in ids if row_id not in known][:limit]
    return new, {*new, *(row_id for row_id in ids if row_id in known)}


def _of_these(db: ConnectionPort, query: str, ids: Sequence[int]) -> list[Raw]:
    """Return these rows, in order, a page of ids at a time."""
    found: list[Raw] = []
    for page in pages(ids):
        these = frozenset(page)
        found += (row for row in db.execute(query, (page[0], page[-1])).fetchall() if row[0] in these)
    return found


def inbox_row(db: ConnectionPort, inbox_id: int) -> tuple[Raw, list[Raw]] | None:
    """Return one row, and the messages that were or will be sent for its turn."""
    row = db.execute(f"SELECT {INBOX} FROM inbox WHERE id = ?", (inbox_id,)).fetchone()
    if row is None:
        return None
    sends = db.execute(
        f"SELECT {OUTBOX} FROM outbox WHERE inbox_id = :id OR (turn = :turn AND inbox_id ="
        " (SELECT tail FROM inbox WHERE id = :id)) ORDER BY id",
        {"id": inbox_id, "turn": row[11]},
    ).fetchall()
    return row, sends


def outbox(db: ConnectionPort, states: Sequence[OutboxState], limit: int) -> list[Raw]:
    """Return rows of the outbox, newest first."""
    if not states:
        return db.execute(f"SELECT {OUTBOX} FROM outbox ORDER BY id DESC LIMIT ?", (limit,)).fetchall()
    return _newest(db, f"SELECT {OUTBOX} FROM outbox", states, limit)


def _newest(
    db: ConnectionPort,
    select: str,
    states: Sequence[InboxState | OutboxState],
    limit: int,
    *,
    where: str = "",
    arguments: Sequence[str] = (),
) -> list[Raw]:
    found: list[Raw] = []
    for state in set(states):
        column = UNINDEXED_STATE if state in _COMMON and "session" not in where else "state"
        found += db.execute(
            f"{select} WHERE {column} = ?{where} ORDER BY id DESC LIMIT ?", (state.value, *arguments, limit)
        )
    return sorted(found, key=lambda row: -row[0])[:limit]


def _newest_ids(sessions: int) -> str:
    """Return the query for the newest accepted message of a person in each of so many sessions."""
    # One look into the index for each session and state, however many rows a session has.
    return (
        f"WITH asked(name) AS (VALUES {', '.join(['(?)'] * sessions)}),"
        " accepted(taken) AS (VALUES ('ready'), ('running'), ('answered'), ('settled'))"
        " SELECT MAX((SELECT MAX(id) FROM inbox WHERE session = name AND state = taken"
        " AND kind IN ('message', 'alone'))) FROM asked, accepted GROUP BY name"
    )


def newest_messages(db: ConnectionPort, sessions: Collection[str]) -> list[Raw]:
    """Return the newest accepted message of a person in each session that has one."""
    found: list[Raw] = []
    for page in pages(list(sessions)):
        newest = db.execute(_newest_ids(len(page)), page).fetchall()
        if ids := [row_id for (row_id,) in newest if row_id is not None]:
            these = ", ".join("?" * len(ids))
            found += db.execute(f"SELECT {INBOX} FROM inbox WHERE id IN ({these})", ids).fetchall()
    return found


def requeue(db: ConnectionPort, inbox_id: int) -> str | None:
    """Retry what failed permanently; return the session. Not what was forgotten or taken back."""
    row = db.execute(
        "SELECT state, session, payload, tail, turn FROM inbox WHERE id = ?", (inbox_id,)
    ).fetchone()
    if row is None:
        return None
    state, session, payload, tail, turn = row
    changed = 0
    if payload is not None and state != InboxState.ANSWERED and not is_redacted(payload):
        changed = db.execute(
            "UPDATE inbox SET state = 'ready', attempts = 0, deferrals = 0, first_deferred_at = NULL,"
            " next_at = NULL, withdrawn = NULL, turn = NULL, tail = NULL, error = NULL, ended_at = NULL,"
            " payload = ?"
            f" WHERE id = ? AND payload IS NOT NULL AND {inbox_sources(InboxState.READY, InboxState.DEAD)}",
            (edited_payload(payload), inbox_id),
        ).rowcount
    elif state == InboxState.ANSWERED:
        changed = db.execute(
            "UPDATE outbox SET state = 'pending', attempts = 0, next_at = NULL, uncertain_at = NULL,"
            " error = NULL, ended_at = NULL WHERE inbox_id = ? AND turn = ?"
            f" AND {outbox_sources(OutboxState.PENDING, OutboxState.DEAD, OutboxState.UNKNOWN)}"
            " AND payload IS NOT NULL AND COALESCE(error, '') <> 'left'"
            " AND substr(COALESCE(error, ''), 1, 8) <> 'rejected'",
            (tail, turn),
        ).rowcount
    return str(session) if changed else None


def drop(db: ConnectionPort, inbox_id: int, now: float) -> bool:
    """Give up a message, and its unsent answers."""
    row = db.execute("SELECT state, tail, turn FROM inbox WHERE id = ?", (inbox_id,)).fetchone()
    if row is None or row[0] == InboxState.RUNNING:
        return False
    state, tail, turn = row
    changed = ignore(db, "id = ?", (inbox_id,), "dropped", now)
    if changed:
        forget_steps(db, turn)
    # An answer to several messages is given up with an answered one, but not with one that merely failed.
    hangs_on = tail if state == InboxState.ANSWERED else inbox_id
    changed += db.execute(
        "UPDATE outbox SET state = 'dead', ended_at = ?, next_at = NULL, error = 'dropped' WHERE inbox_id = ?"
        f" AND {outbox_sources(OutboxState.DEAD)}",
        (now, hangs_on),
    ).rowcount
    return changed > 0


def reset_session(db: ConnectionPort, session: str, now: float) -> None:
    """Drop what waits in a session, and the lines that its history does not have yet."""
    turns = db.execute(
        "SELECT DISTINCT turn FROM inbox WHERE state = 'ready' AND session = ? AND turn IS NOT NULL",
        (session,),
    ).fetchall()
    ignore(db, "session = ?", (session,), "reset", now, only=[InboxState.READY])
    for (turn,) in turns:
        forget_steps(db, turn)
    db.execute("DELETE FROM history_journal WHERE session = ?", (session,))


def last_ids(db: ConnectionPort) -> tuple[int, int]:
    """Return the highest ids of inbox and outbox."""
    inbox_id, outbox_id = db.execute(
        "SELECT (SELECT MAX(id) FROM inbox), (SELECT MAX(id) FROM outbox)"
    ).fetchone()
    return inbox_id or 0, outbox_id or 0


# Selected by id, not by the state, which most rows share.
INBOX_ENDED = (
    f"payload IS NOT NULL AND ended_at < ? AND ({UNINDEXED_STATE} IN ('settled', 'dead', 'ignored')"
    f" OR ({UNINDEXED_STATE} = 'answered' AND NOT EXISTS"
    " (SELECT 1 FROM outbox WHERE inbox_id = inbox.tail AND outbox.turn = inbox.turn"
    " AND outbox.state NOT IN ('sent', 'dead'))))"
)
OUTBOX_ENDED = f"payload IS NOT NULL AND ended_at < ? AND {UNINDEXED_STATE} IN ('sent', 'dead')"


_CHOSEN = "id BETWEEN ? AND ? AND "


def chosen(
    db: ConnectionPort, table: str, condition: str, *, first: int, last: int, before: float
) -> list[int]:
    """Return those of these ids whose rows meet a condition."""
    found = db.execute(f"SELECT id FROM {table} WHERE {_CHOSEN}{condition}", (first, last, before))
    return [row_id for (row_id,) in found]


def pages(ids: Sequence[_Key]) -> Iterator[Sequence[_Key]]:
    """Split the keys into pieces that keep a transaction or a statement short."""
    return (ids[first : first + PAGE_ROWS] for first in range(0, len(ids), PAGE_ROWS))


# A row that others refer to stays, and so does the last one: its number must not be assigned again.
IGNORED_LONG_AGO = (
    f"{UNINDEXED_STATE} = 'ignored' AND ended_at < ? AND id < (SELECT MAX(id) FROM inbox)"
    " AND NOT EXISTS (SELECT 1 FROM outbox WHERE inbox_id = inbox.id)"
)


def keep_digests(db: ConnectionPort, table: str, condition: str, ids: Sequence[int], before: float) -> int:
    """Replace these rows by digests of their keys, if that is still allowed; return how many."""
    query = f"DELETE FROM {table} WHERE {_CHOSEN}{condition} RETURNING channel, account, native_id, ended_at"
    rows = db.execute(query, (ids[0], ids[-1], before)).fetchall()
    see(db, rows)
    return len(rows)


def see(db: ConnectionPort, keys: Sequence[tuple[str, str, str, float]]) -> None:
    """Store digests of messages' keys, each with its end time, by which repetitions are recognised."""
    db.executemany(
        "INSERT INTO seen (digest, day) VALUES (?, ?) ON CONFLICT (digest) DO NOTHING",
        [(key_digest(*key), int(ended_at // 86_400)) for *key, ended_at in keys],
    )


def end_quarantine(db: ConnectionPort, now: float) -> int:
    """End the quarantine of rows that nobody released; return how many."""
    waited = [InboxState.QUARANTINED]
    where = "(accepted_at < ? OR (accepted_at < ? AND error = ?))"
    values = (now - QUARANTINE_S, now - UNINVITED_S, UNINVITED)
    return ignore(db, where, values, "quarantine_expired", now, only=waited)


def forget_payloads(db: ConnectionPort, table: str, condition: str, ids: Sequence[int], before: float) -> int:
    """Delete the payloads of ended rows from the first to the last of these ids; return how many."""
    query = f"UPDATE {table} SET payload = NULL WHERE {_CHOSEN}{condition}"
    return db.execute(query, (ids[0], ids[-1], before)).rowcount


ALERTS = "alert "
"""Topics that begin so are kept: what they are about is told again only when it has changed."""


def posts_of_events(db: ConnectionPort) -> list[tuple[str, str]]:
    """Return what was posted once, as topics and values, except alerts; the other values never come again."""
    rows = db.execute("SELECT topic, value FROM once").fetchall()
    return [(topic, value) for topic, value in rows if not topic.startswith(ALERTS)]


def ended_keys(db: ConnectionPort, keys: Sequence[str]) -> set[str]:
    """Return those of these keys whose messages have ended and are forgotten."""
    marks = ", ".join("?" * len(keys))
    query = f"SELECT key FROM outbox WHERE key IN ({marks}) AND payload IS NULL"
    return {key for (key,) in db.execute(query, tuple(keys)).fetchall()}


def forget_posts(db: ConnectionPort, posts: Sequence[tuple[str, str]]) -> None:
    """Forget that these were posted, unless the topic has another value by now."""
    db.executemany("DELETE FROM once WHERE topic = ? AND value = ?", posts)


_ASKED = (
    "SELECT asked.session, asked.turn, asked.accepted_at"
    " FROM inbox AS asked JOIN turn_steps AS step ON step.turn = asked.turn"
    " WHERE asked.state = 'ready' AND asked.next_at > ? AND asked.next_at <= ?"
    " AND step.kind = 'approval' AND step.result IS NULL"
)
"""The turns that wait for a person's decision and have not been told of one yet."""

_PUT_OFF = (
    "SELECT session FROM inbox WHERE state = 'ready' AND next_at > ? AND next_at <= ?"
    f" AND waits_for IN ('{BUDGET}', '{PLACE}')"
)
"""The sessions whose head waits until a time that its sender knows."""
_OURS = (
    "SELECT MIN(accepted_at) FROM inbox WHERE kind <> 'background_job' AND (state = 'running'"
    " OR (state = 'ready'"
    f" AND (turn IS NULL OR turn NOT IN (SELECT turn FROM ({_ASKED}) AS waiting))"
    f" AND session NOT IN ({_PUT_OFF})))"
)
"""
The oldest unanswered message. Sessions with a postponed head are left out: everything there waits for it.
"""


def count(db: ConnectionPort, now: float) -> StoreStats:
    """Return counts by state, and ages at ``now`` (seconds since the epoch)."""
    counted_in = dict(db.execute("SELECT state, COUNT(*) FROM inbox GROUP BY state").fetchall())
    counted_out = dict(db.execute("SELECT state, COUNT(*) FROM outbox GROUP BY state").fetchall())
    asked = (now, now + MAX_DELAY_S)
    waiting, asked_at = db.execute(
        f"SELECT COUNT(DISTINCT turn), MIN(accepted_at) FROM ({_ASKED}) AS waiting", asked
    ).fetchone()
    (drafted_at,) = db.execute("SELECT MIN(created_at) FROM outbox WHERE state = 'held'").fetchone()
    (kept_at,) = db.execute("SELECT MIN(accepted_at) FROM inbox WHERE state = 'quarantined'").fetchone()
    questions = [at for at in (asked_at, drafted_at, kept_at) if at is not None]
    (accepted_at,) = db.execute(_OURS, asked + asked).fetchone()
    (created_at,) = db.execute(
        "SELECT MIN(created_at) FROM outbox WHERE state IN ('pending', 'sending', 'uncertain')"
    ).fetchone()
    (jobs,) = db.execute(
        "SELECT COUNT(*) FROM inbox WHERE kind = 'background_job'"
        f" AND {UNINDEXED_STATE} IN ('ready', 'running')"
    ).fetchone()
    (lines,) = db.execute("SELECT COUNT(*) FROM history_journal").fetchone()
    return StoreStats(
        inbox={state.value: counted_in.get(state.value, 0) for state in InboxState},
        outbox={state.value: counted_out.get(state.value, 0) for state in OutboxState},
        oldest_unanswered_s=None if accepted_at is None else max(0.0, now - accepted_at),
        oldest_unsent_s=None if created_at is None else max(0.0, now - created_at),
        journal_lines=lines,
        waiting_for_yes=waiting,
        oldest_question_s=max(0.0, now - min(questions)) if questions else None,
        background_jobs=jobs,
    )
