"""
Moves messages through the inbox, as SQL: accept, claim, record steps, answer or dead-letter. Every function
runs on the writer's connection inside a transaction (or a savepoint). A claim is recognised by its turn and
fence on rows that are ``running``; whoever does not find them has lost the turn.
"""
# ruff: noqa: S608 - only constants of this package are put into statements; every value is a parameter

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent_core.models import Usage
from gateway.store.model import Turn
from gateway.store.sql import crash_records
from gateway.store.sql.amendments import Note, ignore_withdrawn
from gateway.store.sql.engine import ConnectionPort
from gateway.store.sql.row_codec import INBOX, Raw, dump, key_digest, key_text, read_payload
from gateway.store.sql.state_store import MAX_DELAY_S, inbox_sources, wait_s
from gateway.store.states import InboxState
from gateway.store.store_errors import LostTurn


@dataclass(frozen=True, slots=True)
class NewRow:
    """A message ready to be inserted."""

    native_id: str
    session: str
    kind: str
    payload: str
    state: str
    error: str | None


@dataclass(frozen=True, slots=True)
class ClaimProof:
    """The proof of a claim: turn, fence, session and number of rows."""

    turn: str
    fence: int
    session: str
    tail: int
    rows: int


@dataclass(frozen=True, slots=True)
class TurnClaim:
    """The raw rows of a claimed turn."""

    turn: str
    fence: int
    rows: Sequence[Raw]
    first_deferred_at: float | None
    is_new: bool


def accept(
    db: ConnectionPort,
    channel: str,
    account: str,
    rows: Sequence[NewRow],
    *,
    positions: Mapping[str, str],
    now: float,
) -> list[int | None]:
    """Insert new messages and update the positions. Returns the new id for each row, None if it was known."""
    ids: list[int | None] = []
    for row in rows:
        digest = key_digest(channel, account, row.native_id)
        if db.execute("SELECT 1 FROM seen WHERE digest = ?", (digest,)).fetchone() is not None:
            ids.append(None)
            continue
        inserted = db.execute(
            "INSERT INTO inbox (channel, account, native_id, session, kind, payload, state, error,"
            " accepted_at, ended_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (channel, account, native_id) DO NOTHING RETURNING id",
            (
                channel,
                account,
                row.native_id,
                row.session,
                row.kind,
                row.payload,
                row.state,
                row.error,
                now,
                now if row.state in (InboxState.IGNORED, InboxState.QUARANTINED) else None,
            ),
        ).fetchone()
        ids.append(None if inserted is None else int(inserted[0]))
    for name, value in sorted(positions.items()):
        db.execute(
            "INSERT INTO positions (channel, account, name, value) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (channel, account, name) DO UPDATE SET value = excluded.value",
            (channel, account, name, value),
        )
    return ids


def accept_notes(db: ConnectionPort, notes: Iterable[Note], now: float) -> None:
    """Insert what is only noted in a history; like a command it waits for no turn."""
    for note in notes:
        said, key = note.message, key_text(note.message.native_id)
        row = NewRow(key, note.session, "note", dump(said), InboxState.READY.value, None)
        accept(db, said.channel, said.account, [row], positions={}, now=now)


def rows_by_id(db: ConnectionPort, ids: Iterable[int]) -> list[Raw]:
    """Return these rows, in order."""
    query = f"SELECT {INBOX} FROM inbox WHERE id = ?"
    return [db.execute(query, (row_id,)).fetchone() for row_id in sorted(ids)]


_FENCES = 1 << 20
QUICK = "kind IN ('alone', 'note', 'reaction')"


def _claimable() -> str:
    """Return the query of a session's claimable rows, to be narrowed by further conditions."""
    sources = inbox_sources(InboxState.RUNNING)
    columns = f"{INBOX}, fence, first_deferred_at, withdrawn, waits_for"
    return f"SELECT {columns} FROM inbox WHERE {sources} AND session = ?"


def claim(db: ConnectionPort, session: str, merge: int, now: float) -> TurnClaim | None:
    """Claim the head of a session; return None if nothing was claimed."""
    waiting = db.execute(f"{_claimable()} ORDER BY id LIMIT ?", (session, max(1, merge))).fetchall()
    if not waiting or _is_running(db, session):
        return None
    if not _due(waiting[0], now):
        waiting = overtaking_row(db, session, now) or claimable_rows(db, session, merge, now)
        if not waiting or not _due(waiting[0], now):
            return None
    return _taken(db, session, waiting, now) or claim(db, session, merge, now)


def claim_out_of_band(db: ConnectionPort, session: str, now: float) -> TurnClaim | None:
    """Claim a row that waits for nothing, beside a turn that may be running; one such row at a time."""
    if _is_running(db, session, f" AND {QUICK}"):
        return None
    waiting = overtaking_row(db, session, now)
    return (_taken(db, session, waiting, now) or claim_out_of_band(db, session, now)) if waiting else None


def _taken(db: ConnectionPort, session: str, waiting: Sequence[Raw], now: float) -> TurnClaim | None:
    """Claim these rows as a turn, or all rows of their turn; return None if they were just withdrawn."""
    turn = waiting[0][11]
    is_new = turn is None
    if not is_new:
        of_turn = f"{_claimable()} AND turn = ? ORDER BY id"
        rows = db.execute(of_turn, (session, turn)).fetchall()
        if any(row[16] is not None for row in rows) and ignore_withdrawn(db, session, turn, now):
            rows = db.execute(of_turn, (session, turn)).fetchall()
            if not rows:
                return None
    else:
        rows = _mergeable(db, session, waiting, now)
        turn = f"{rows[0][0]}-{secrets.token_hex(4)}"
    # In part at random: a lost claim is undone by its fence, late perhaps, and must not name the next claim.
    fence = max(row[14] for row in rows) + 1 + secrets.randbelow(_FENCES)
    db.executemany(
        "UPDATE inbox SET state = 'running', turn = ?, fence = ?, tail = ?, attempts = attempts + 1,"
        f" next_at = NULL, waits_for = NULL WHERE id = ? AND {inbox_sources(InboxState.RUNNING)}",
        [(turn, fence, rows[-1][0], row[0]) for row in rows],
    )
    deferred = [row[15] for row in rows if row[15] is not None]
    return TurnClaim(turn, fence, rows, min(deferred) if deferred else None, is_new)


def overtaking_row(db: ConnectionPort, session: str, now: float) -> list[Raw]:
    """Return the oldest due row of a session that need not wait for the head, if there is one."""
    rows = db.execute(f"{_claimable()} AND {QUICK} ORDER BY id", (session,))
    return next(([row] for row in rows if _due(row, now)), [])


AWAITS_APPROVAL = (
    "turn IS NOT NULL AND next_at IS NOT NULL AND next_at > ? AND next_at <= ?"
    " AND EXISTS (SELECT 1 FROM turn_steps AS step WHERE step.turn = inbox.turn"
    " AND step.kind = 'approval' AND step.result IS NULL)"
)
"""
The condition on a turn that waits for a person's approval; others do not wait for it, as it may take long.
"""


def claimable_rows(db: ConnectionPort, session: str, merge: int, now: float) -> list[Raw]:
    """Return the rows of a session from the head on, without turns that wait for a person's approval."""
    query = f"{_claimable()} AND NOT ({AWAITS_APPROVAL}) ORDER BY id LIMIT ?"
    return db.execute(query, (session, now, now + MAX_DELAY_S, max(1, merge))).fetchall()


def seconds_to_claim(db: ConnectionPort, session: str, next_at: float | None, now: float) -> float:
    """Return the seconds until a session has something to claim, if its head is due at ``next_at``."""
    wait = wait_s(next_at, now)
    if not wait:
        return 0.0
    if overtaking_row(db, session, now):
        return 0.0
    return min([wait, *(wait_s(row[13], now) for row in claimable_rows(db, session, 1, now))])


def _is_running(db: ConnectionPort, session: str, which: str = "") -> bool:
    query = f"SELECT 1 FROM inbox WHERE state = 'running' AND session = ?{which} LIMIT 1"
    return db.execute(query, (session,)).fetchone() is not None


def _due(row: Raw, now: float) -> bool:
    return wait_s(row[13], now) == 0.0


def _mergeable(db: ConnectionPort, session: str, waiting: Sequence[Raw], now: float) -> list[Raw]:
    """
    Return the due rows from the head on that may become one turn: same sender and place.

    No other person's message is passed over. A row that is answered alone separates its neighbours, even
    after it overtook them.
    """
    head, *others = waiting
    rows = [head]
    if not others:
        return rows
    parting = f"SELECT MIN(id) FROM inbox WHERE id > ? AND id < ? AND session = ? AND {QUICK}"
    (border,) = db.execute(parting, (head[0], waiting[-1][0], session)).fetchone()
    if head[5] == "message":
        for row in others:
            behind = border is not None and row[0] > border
            if behind or row[5] != "message" or row[11] is not None or not _due(row, now):
                break
            if _author_of(row) != _author_of(head):
                break
            rows.append(row)
    return rows


def _author_of(row: Raw) -> tuple[object, ...]:
    message = read_payload(row[6])
    if message is None:
        return ()
    return row[1], row[2], message.session, message.sender.address, message.sender.verified


def claim_key(turn: Turn) -> ClaimProof:
    """Return the proof of a claim."""
    return ClaimProof(turn.id, turn.fence, str(turn.session), turn.rows[-1].id, len(turn.rows))


_CLAIM = "session = ? AND turn = ? AND fence = ?"
_MINE = f"state = 'running' AND {_CLAIM}"


def _proof(owned: ClaimProof) -> tuple[str, str, int]:
    """Return the arguments of `_CLAIM`."""
    return owned.session, owned.turn, owned.fence


def _claim_condition(target: InboxState) -> str:
    """Return the condition on the rows of a claim that may go to ``target``."""
    return f"{inbox_sources(target, InboxState.RUNNING)} AND {_CLAIM}"


def _check(count: int, owned: ClaimProof) -> None:
    if count != owned.rows:
        raise LostTurn(f"turn {owned.turn} is no longer ours")


def check_claim(db: ConnectionPort, owned: ClaimProof) -> None:
    """Check that a claim still holds. Raises `LostTurn` if it does not."""
    found = db.execute(f"SELECT 1 FROM inbox WHERE {_MINE} LIMIT 1", _proof(owned))
    if found.fetchone() is None:
        raise LostTurn(f"turn {owned.turn} is no longer ours")


def record_step(db: ConnectionPort, owned: ClaimProof, step: tuple[int, str, str, str, str | None]) -> None:
    """Insert or replace a step of a turn."""
    check_claim(db, owned)
    db.execute(
        "INSERT INTO turn_steps (turn, number, kind, digest, request, result) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (turn, number) DO UPDATE SET"
        " kind = excluded.kind, digest = excluded.digest, request = excluded.request,"
        " result = excluded.result",
        (owned.turn, *step),
    )


def end(
    db: ConnectionPort, owned: ClaimProof, state: InboxState, now: float, *, error: str | None = None
) -> bool:
    """End a turn's rows in their final state and drop its steps; True if one was edited or withdrawn."""
    rows = db.execute(
        f"UPDATE inbox SET state = ?, ended_at = ?, tail = ?, error = ? WHERE {_claim_condition(state)}"
        " RETURNING withdrawn, payload",
        (state.value, now, owned.tail, error, *_proof(owned)),
    ).fetchall()
    _check(len(rows), owned)
    db.execute("DELETE FROM turn_steps WHERE turn = ?", (owned.turn,))
    if state is InboxState.DEAD:
        crash_records.forget_deaths(db, crash_records.turn_item(owned.turn))
    return any(why == "withdrawn" or '"edited":' in payload for why, payload in rows)


def return_to_ready(
    db: ConnectionPort,
    owned: ClaimProof,
    *,
    next_at: float | None,
    error: str | None,
    attempts: int,
    deferrals: int,
    now: float,
    waits_for: str | None = None,
) -> None:
    """Move ``running → ready`` and change the counters."""
    cursor = db.execute(
        "UPDATE inbox SET state = 'ready', next_at = ?, waits_for = ?, error = COALESCE(?, error),"
        " attempts = attempts + ?,"
        " deferrals = deferrals + ?,"
        " first_deferred_at = CASE WHEN ? > 0 THEN COALESCE(first_deferred_at, ?) ELSE first_deferred_at END"
        f" WHERE {_claim_condition(InboxState.READY)}",
        (
            next_at,
            waits_for,
            error,
            attempts,
            deferrals,
            deferrals,
            now,
            *_proof(owned),
        ),
    )
    _check(cursor.rowcount, owned)


def undo_claim(db: ConnectionPort, session: str, claimed: TurnClaim | None, now: float) -> None:
    """Undo a claim whose caller is gone."""
    if claimed is not None:
        last, count = claimed.rows[-1][0], len(claimed.rows)
        owned = ClaimProof(claimed.turn, claimed.fence, session, last, count)
        return_to_ready(db, owned, next_at=None, error=None, attempts=-1, deferrals=0, now=now)


def add_usage(db: ConnectionPort, day: str, session: str, purpose: str, usage: Usage) -> None:
    """Add to the usage of a day, a session, a purpose and a model."""
    if not (usage.calls or usage.prompt_tokens or usage.completion_tokens or usage.cost_usd):
        return
    db.execute(
        "INSERT INTO usage (day, session, purpose, model, prompt_tokens, completion_tokens, calls, cost_usd,"
        " cached_tokens, thinking_tokens) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (day, session, purpose, model) DO UPDATE SET"
        " prompt_tokens = usage.prompt_tokens + excluded.prompt_tokens,"
        " completion_tokens = usage.completion_tokens + excluded.completion_tokens,"
        " calls = usage.calls + excluded.calls,"
        " cached_tokens = usage.cached_tokens + excluded.cached_tokens,"
        " thinking_tokens = usage.thinking_tokens + excluded.thinking_tokens,"
        " cost_usd = CASE WHEN excluded.cost_usd IS NULL THEN usage.cost_usd"
        " ELSE COALESCE(usage.cost_usd, 0) + excluded.cost_usd END",
        (
            day,
            session,
            purpose,
            usage.model,
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.calls,
            usage.cost_usd,
            usage.cached_tokens,
            usage.thinking_tokens,
        ),
    )
