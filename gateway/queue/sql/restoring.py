"""
What is changed in a database that is older than what a gateway has done since, before one opens it.

Between the moment that it shows and now another copy of it was alive. What that did nobody wrote down here,
so whatever was open is not to be done again as if nothing had happened:

- an answer on its way may have arrived: it becomes ``uncertain``, and the channel's rule decides (Matrix
  looks for its mark in the room, mail in the Sent folder; who cannot look asks a person);
- a question that waited may have been answered, and its answer's id was made of a turn that this database
  does not know, so nobody can look for it: it goes to the quarantine, where a person lets it in or drops it;
- a check-in of the heartbeat is past: it is ignored;
- a grant that was revoked since must not come back.
"""
# ruff: noqa: S608 - only constants of this package are put into statements; every value is a parameter

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.queue.sql.moves import offline_sources
from gateway.queue.states import InboxState

RESTORED = "restored"
"""The reason on everything that was parked because of a restore."""


@dataclass(frozen=True, slots=True)
class Parked:
    """How many answers are looked for, questions wait for a person, check-ins were dropped, jobs paused."""

    answers: int = 0
    questions: int = 0
    ticks: int = 0
    jobs: int = 0


class Runs(Protocol):
    """Whatever runs statements inside of a transaction."""

    def execute(self, text: str, parameters: Any = ..., /) -> Any:
        """Run one; what it gives has ``rowcount`` and ``fetchall``."""
        ...


def set_aside_open_work(
    db: Runs,
    *,
    backed_up_at: float,
    now: float,
    runs_once: Callable[[str], bool],
    quarantine: InboxState = InboxState.QUARANTINED,
    has_jobs: bool = True,
    has_grants: bool = True,
) -> Parked:
    """
    Change what must be changed, inside of a transaction.

    Args:
        backed_up_at: The moment that the database shows.
        runs_once: Whether a job of this timing runs a single time.
        quarantine: Where questions wait for a person.
        has_jobs: Whether the tables have them.
        has_grants: As that.
    """
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
        f" WHERE {offline_sources(quarantine)}",
        (quarantine.value, RESTORED, now, now),  # a quarantine ends a month after it began, which is now
    ).rowcount
    jobs = _past_jobs(db, now, runs_once) if has_jobs else 0
    if has_grants:
        db.execute("DELETE FROM grants")
    return Parked(answers, questions, ticks, jobs)


def _past_jobs(db: Runs, now: float, runs_once: Callable[[str], bool]) -> int:
    """Jobs that came due since: single ones wait for a person, the others go on with their next time."""
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
