"""
Parks the open work of a restored database before a gateway opens it. Another copy was in use since the
backup. Sends in progress become ``uncertain`` (the channel probes, or a person decides); waiting questions
may have been answered under unknown ids and are quarantined; heartbeat runs are ignored; revoked grants must
not come back.
"""
# ruff: noqa: S608 - only constants of this package are put into statements; every value is a parameter

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.store.sql.state_store import offline_sources
from gateway.store.states import InboxState

RESTORED = "restored"
"""The reason on everything that a restore parked."""


@dataclass(frozen=True, slots=True)
class QuarantineCounts:
    """The numbers of uncertain answers, quarantined questions, dropped heartbeat runs and paused jobs."""

    answers: int = 0
    questions: int = 0
    ticks: int = 0
    jobs: int = 0


class StatementRunner(Protocol):
    """Anything that runs statements inside a transaction."""

    def execute(self, text: str, parameters: Any = ..., /) -> Any:
        """Run a statement; its result has ``rowcount`` and ``fetchall``."""


def set_aside_open_work(
    db: StatementRunner, *, backed_up_at: float, now: float, runs_once: Callable[[str], bool]
) -> QuarantineCounts:
    """Park the open work in a transaction; ``runs_once`` is True for one-time timings."""
    answers = db.execute(
        "UPDATE outbox SET state = 'uncertain', uncertain_at = COALESCE(uncertain_at, ?),"
        " next_at = NULL WHERE state IN ('pending', 'sending', 'uncertain')",
        (backed_up_at,),
    ).rowcount
    ticks = db.execute(
        "UPDATE inbox SET state = 'ignored', error = ?, ended_at = ?, payload = NULL"
        f" WHERE {offline_sources(InboxState.IGNORED)} AND kind = 'tick'",
        (RESTORED, now),
    ).rowcount
    questions = db.execute(
        "UPDATE inbox SET state = ?, error = ?, accepted_at = ?, ended_at = ?, next_at = NULL"
        f" WHERE {offline_sources(InboxState.QUARANTINED)}",
        (
            InboxState.QUARANTINED.value,
            RESTORED,
            now,
            now,
        ),  # a quarantine ends a month after it began, which is now
    ).rowcount
    jobs = _past_jobs(db, now, runs_once)
    db.execute("DELETE FROM grants")
    return QuarantineCounts(answers, questions, ticks, jobs)


def _past_jobs(db: StatementRunner, now: float, runs_once: Callable[[str], bool]) -> int:
    """Handle jobs that came due: one-time jobs wait for a person, others continue."""
    paused = 0
    due = db.execute(
        "SELECT id, timing FROM jobs WHERE state = 'active' AND next_at IS NOT NULL AND next_at <= ?", (now,)
    ).fetchall()
    for job, timing in due:
        if runs_once(timing):
            paused += 1
            db.execute(
                "UPDATE jobs SET state = 'paused', revision = revision + 1, note = ? WHERE id = ?",
                (RESTORED, job),
            )
        else:
            db.execute("UPDATE jobs SET next_at = ?, revision = revision + 1 WHERE id = ?", (now, job))
    return paused
