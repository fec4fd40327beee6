"""Counts the rows of the queue by state, and measures how long the oldest has waited."""

# ruff: noqa: S608 - only constants of this module are put into statements

from __future__ import annotations

from gateway.store.sql.engine import ConnectionPort
from gateway.store.sql.state_moves import LONGEST_S, UNINDEXED_STATE
from gateway.store.states import BUDGET, PLACE, InboxState, OutboxState, StoreStats

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
    asked = (now, now + LONGEST_S)
    waiting, asked_at = db.execute(
        f"SELECT COUNT(DISTINCT session), MIN(accepted_at) FROM ({_ASKED}) AS waiting", asked
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
