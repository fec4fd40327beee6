"""
What is changed in a database that comes out of a backup, before a gateway opens it.

Between the moment of the backup and now another copy of this database was alive. What it did then nobody
wrote down here, so whatever was open is not to be done again as if nothing had happened:

- an answer on its way may have arrived: it becomes ``uncertain``, and the channel's rule decides (Matrix
  looks for its mark in the room, mail in the Sent folder; who cannot look asks a person);
- a question that waited may have been answered, and its answer's id was made of a turn that this database
  does not know, so nobody can look for it: it goes to the quarantine, where a person lets it in or drops it;
- a check-in of the heartbeat is past: it is ignored.

The file is nobody else's while this works on it.
"""
# ruff: noqa: S608 - only constants of this package are put into statements; every value is a parameter

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from gateway.queue.errors import StoreCorrupt, StoreTooNew
from gateway.queue.sql.moves import offline_sources
from gateway.queue.sqlite.errors import unavailable
from gateway.queue.sqlite.migrations import VERSION
from gateway.queue.sqlite.schema import APPLICATION_ID
from gateway.queue.states import InboxState

__all__ = ["RESTORED", "Parked", "examine_copy", "quarantine_open_work"]

RESTORED = "restored"
_WITH_GRANTS = 9
"""The reason on everything that was parked because of a restore."""


@dataclass(frozen=True, slots=True)
class Parked:
    """How many answers are looked for, questions wait for a person, check-ins were dropped, jobs paused."""

    answers: int = 0
    questions: int = 0
    ticks: int = 0
    jobs: int = 0


def examine_copy(path: Path) -> tuple[int, str, int, int]:
    """
    Whether a copy is whole: its schema, its secret, its highest ids of inbox and outbox.

    Raises:
        StoreTooNew, StoreCorrupt: It cannot be used here.
    """
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            (owner,) = db.execute("PRAGMA application_id").fetchone()
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if owner != APPLICATION_ID:
                raise StoreCorrupt("the database in it is not one of squidbot's", path=str(path))
            if version > VERSION:
                raise StoreTooNew(
                    f"it was made by a later version of squidbot (schema {version}, this version knows "
                    f"{VERSION}); install that version first",
                    path=str(path),
                    found=version,
                    known=VERSION,
                )
            # A view can be without end, and a trigger can do anything: ours has none.
            foreign = db.execute(
                "SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index')"
            ).fetchone()
            if foreign is not None:
                raise StoreCorrupt("the database in it is not as squidbot makes it", path=str(path))
            (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise StoreCorrupt(f"the database in it is damaged ({verdict})", path=str(path))
            found = db.execute("SELECT value FROM meta WHERE name = 'secret'").fetchone()
            if found is None or not isinstance(found[0], str):
                raise StoreCorrupt("the database in it has no identity", path=str(path))
            inbox, outbox = db.execute(
                "SELECT COALESCE((SELECT MAX(id) FROM inbox), 0), COALESCE((SELECT MAX(id) FROM outbox), 0)"
            ).fetchone()
            if not isinstance(inbox, int) or not isinstance(outbox, int):
                raise StoreCorrupt("the database in it is not as squidbot makes it", path=str(path))
            return version, found[0], inbox, outbox
    except sqlite3.DatabaseError as error:
        raise StoreCorrupt(f"the database in it is damaged ({error})", path=str(path)) from error


def quarantine_open_work(
    path: Path, *, backed_up_at: float, now: float, runs_once: Callable[[str], bool]
) -> Parked:
    """
    Change what must be changed, in one transaction.

    Args:
        path: The copy. An older schema stays as it is, apart from what it can hold.
        backed_up_at: The moment of the backup.
        now: The moment of the restore.
        runs_once: Whether a job of this timing runs a single time.

    Raises:
        StoreUnavailable: The disk does not take it.
    """
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            db.execute("BEGIN IMMEDIATE")
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
            # Version 1 had no quarantine; there a person finds it among what has failed.
            state = InboxState.QUARANTINED if version >= 2 else InboxState.DEAD
            questions = db.execute(
                "UPDATE inbox SET state = ?, error = ?, accepted_at = ?, ended_at = ?, next_at = NULL"
                f" WHERE {offline_sources(state)}",
                (state.value, RESTORED, now, now),  # a quarantine ends a month after it began, which is now
            ).rowcount
            jobs = _past_jobs(db, now, runs_once) if version >= 3 else 0
            if version >= _WITH_GRANTS:
                db.execute("DELETE FROM grants")  # one that was revoked since must not come back
            db.execute("COMMIT")
            return Parked(answers, questions, ticks, jobs)
    except sqlite3.Error as error:
        raise unavailable(error, path, "restore") from error


def _past_jobs(db: sqlite3.Connection, now: float, runs_once: Callable[[str], bool]) -> int:
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
