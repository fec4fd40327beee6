"""
Jobs, ledger and digest as SQL. Functions that change something run on the writer's connection, inside of a
transaction; the others on the reader's.
"""
# ruff: noqa: S608 - only constants of this module are put into statements; every value is a parameter

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from agent_core.messages import Audience
from gateway.queue.errors import TooManyJobs
from gateway.queue.model import Collected, Entry, Job, JobKind, JobState, Outcome
from gateway.queue.sql.codec import Raw, error_text, instant, load_json, session_or_none, to_json, whole_text
from gateway.queue.sql.engine import Connection

_JOB = (
    "id, kind, text, timing, session, account, person, audience, context, state, created_at, next_at,"
    " last_at, revision, note"
)
_ENTRY = "name, instant, until, ticks, at, outcome, reason, tokens, calls, took_s, said"


def add_job(db: Connection, job: Job, at_most: int, persons: Sequence[str]) -> None:
    """Insert a job, within the person's limit."""
    whose = tuple(dict.fromkeys((job.person, *persons)))
    marks = ", ".join("?" * len(whose))
    (count,) = db.execute(
        f"SELECT COUNT(*) FROM jobs WHERE state <> 'done' AND person IN ({marks})", whose
    ).fetchone()
    if count >= at_most:
        raise TooManyJobs(at_most)
    db.execute(
        f"INSERT INTO jobs ({_JOB}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            job.id,
            job.kind.value,
            whole_text(job.text),
            job.timing,
            str(job.session),
            job.account,
            whole_text(job.person),
            job.audience.value,
            to_json(job.context),
            job.state.value,
            job.created_at.timestamp(),
            _seconds(job.next_at),
            _seconds(job.last_at),
            job.revision,
            job.note,
        ),
    )


def jobs(db: Connection, *, done: bool, job_id: str | None = None) -> list[Raw]:
    """Jobs, the next one first."""
    where, arguments = (
        ("id = ?", (job_id,)) if job_id is not None else ("TRUE" if done else "state <> 'done'", ())
    )
    return db.execute(
        f"SELECT {_JOB} FROM jobs WHERE {where} ORDER BY state, next_at IS NULL, next_at, id", arguments
    ).fetchall()


def jobs_until(db: Connection, until: float) -> list[Raw]:
    """Jobs that wait for an instant up to then, the next one first."""
    return db.execute(
        f"SELECT {_JOB} FROM jobs WHERE state = 'active' AND next_at <= ? ORDER BY next_at, id", (until,)
    ).fetchall()


def set_state(db: Connection, job_id: str, state: JobState, next_at: datetime | None) -> list[Raw]:
    """Change what a person wants; the job as it is then."""
    db.execute(
        "UPDATE jobs SET state = ?, next_at = ?, note = '', revision = revision + 1 WHERE id = ?",
        (state.value, _seconds(next_at), job_id),
    )
    return jobs(db, done=True, job_id=job_id)


def job_fired(
    db: Connection,
    job_id: str,
    revision: int,
    fired: datetime,
    *,
    next_at: datetime | None,
    note: str,
    now: float,
) -> bool:
    """Go on to the next instant, unless a person has changed the job meanwhile."""
    state = JobState.ACTIVE if next_at is not None else JobState.DONE
    cursor = db.execute(
        "UPDATE jobs SET last_at = CASE WHEN last_at > ? THEN last_at ELSE ? END, next_at = ?, state = ?,"
        " note = ?, ended_at = ? WHERE id = ? AND revision = ? AND state = 'active'",
        (
            fired.timestamp(),
            fired.timestamp(),
            _seconds(next_at),
            state.value,
            error_text(note),
            now if state is JobState.DONE else None,
            job_id,
            revision,
        ),
    )
    return cursor.rowcount == 1


def note(db: Connection, entry: Entry, now: float) -> None:
    """Add a line, or count a skip in the line before."""
    at, skipped = entry.instant.timestamp(), entry.outcome is Outcome.SKIPPED
    known = (
        "SELECT 1 FROM ledger WHERE name = :name AND :at BETWEEN instant AND until AND (outcome <> 'skipped'"
    )
    # A tick in the middle of a row of others that were skipped may have been skipped for a reason of its own.
    known += " OR instant = :at OR reason = :reason) LIMIT 1" if skipped else ") LIMIT 1"
    asked = {"name": entry.name, "at": at, "reason": error_text(entry.reason)}
    if db.execute(known, asked).fetchone() is not None:
        return
    if skipped:
        last = db.execute(
            "SELECT id, outcome, reason, until FROM ledger WHERE name = ? ORDER BY id DESC LIMIT 1",
            (entry.name,),
        ).fetchone()
        if (
            last is not None
            and last[1:3] == (Outcome.SKIPPED.value, error_text(entry.reason))
            and last[3] < at
            and not _has_line_between(db, entry.name, last[3], at)
        ):
            db.execute(
                "UPDATE ledger SET until = ?, ticks = ticks + 1, at = ? WHERE id = ?", (at, now, last[0])
            )
            return
    db.execute(
        f"INSERT INTO ledger ({_ENTRY}) VALUES (?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?)",
        (
            entry.name,
            at,
            at,
            now,
            entry.outcome.value,
            error_text(entry.reason),
            entry.tokens,
            entry.calls,
            entry.took_s,
            entry.said,
        ),
    )


def _has_line_between(db: Connection, name: str, after: float, before: float) -> bool:
    """Whether a row of skips would be drawn over another line, as after a clock that was wrong."""
    query = "SELECT 1 FROM ledger WHERE name = ? AND instant > ? AND instant <= ? LIMIT 1"
    return db.execute(query, (name, after, before)).fetchone() is not None


def ledger(db: Connection, name: str | None, limit: int) -> list[Raw]:
    """Lines, newest first."""
    where, arguments = ("", ()) if name is None else (" WHERE name = ?", (name,))
    return db.execute(
        f"SELECT {_ENTRY} FROM ledger{where} ORDER BY id DESC LIMIT ?", (*arguments, limit)
    ).fetchall()


def was_said(db: Connection, said: str, since: float) -> bool:
    """Whether something with this fingerprint went out since then."""
    query = (
        "SELECT 1 FROM ledger WHERE said = ? AND said <> '' AND outcome IN ('delivered', 'collected')"
        " AND at >= ? LIMIT 1"
    )
    return db.execute(query, (said, since)).fetchone() is not None


def collect(db: Connection, alerts: Sequence[Collected]) -> None:
    """Keep alerts for the digest."""
    db.executemany(
        "INSERT INTO collected (channel, person, text, at) VALUES (?, ?, ?, ?)",
        [(one.channel, one.person, whole_text(one.text), one.at.timestamp()) for one in alerts],
    )


def collected(db: Connection) -> list[Collected]:
    """What waits for the digest, oldest first."""
    rows = db.execute("SELECT id, channel, person, text, at FROM collected ORDER BY id")
    return [
        Collected(channel, person, text, instant(at), row_id) for row_id, channel, person, text, at in rows
    ]


def forget_collected(db: Connection, ids: Sequence[int]) -> None:
    """They are in the outbox now."""
    db.executemany("DELETE FROM collected WHERE id = ?", [(row_id,) for row_id in ids])


def prune(db: Connection, before: float) -> int:
    """Forget what is long over; a line of the ledger stays as the last one of its name."""
    gone = db.execute(
        "DELETE FROM ledger WHERE at < ? AND id NOT IN (SELECT MAX(id) FROM ledger GROUP BY name)", (before,)
    ).rowcount
    done = db.execute(
        "DELETE FROM jobs WHERE state = 'done' AND COALESCE(ended_at, created_at) < ?", (before,)
    )
    return gone + done.rowcount


def job_of(raw: Raw) -> Job | None:
    """A row of ``SELECT {_JOB}``; None if it is damaged."""
    job_id, kind, text, timing, session, account, person, audience, context, state = raw[:10]
    created_at, next_at, last_at, revision, said = raw[10:15]
    key = session_or_none(session)
    if key is None:
        return None
    try:
        known = load_json(context)
    except (json.JSONDecodeError, TypeError):
        known = {}
    return Job(
        id=job_id,
        kind=JobKind(kind),
        text=text,
        timing=timing,
        session=key,
        account=account,
        person=person,
        created_at=instant(created_at),
        audience=Audience(audience),
        context=known,
        state=JobState(state),
        next_at=None if next_at is None else instant(next_at),
        last_at=None if last_at is None else instant(last_at),
        revision=revision,
        note=said,
    )


def entry_of(raw: Raw) -> Entry:
    """A row of ``SELECT {_ENTRY}``."""
    name, at, until, ticks, noted_at, outcome, reason, tokens, calls, took_s, said = raw
    return Entry(
        name=name,
        instant=instant(at),
        outcome=Outcome(outcome),
        reason=reason,
        tokens=tokens,
        calls=calls,
        took_s=took_s,
        said=said,
        at=instant(noted_at),
        until=instant(until),
        ticks=ticks,
    )


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()
