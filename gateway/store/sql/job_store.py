"""
Stores scheduled jobs, the run ledger, and the alerts that wait for the digest. Functions that change
something run on the writer's connection, inside a transaction.
"""
# ruff: noqa: S608 - only constants of this module are put into statements; every value is a parameter

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from agent_core.messages import Audience
from gateway.store.model import CollectedAlert, Job, JobKind, JobState, LedgerEntry, RunOutcome
from gateway.store.sql.engine import NOTHING, ConnectionPort, Store, named_lock
from gateway.store.sql.row_codec import (
    Raw,
    context_or_empty,
    dump_context,
    error_text,
    session_or_none,
    whole_text,
)
from gateway.store.sql.row_codec import instant as moment
from gateway.store.store_errors import TooManyJobs

_JOB = (
    "id, kind, text, timing, session, account, person, audience, context, state, created_at, next_at,"
    " last_at, revision, note"
)
_ENTRY = "name, instant, until, ticks, at, outcome, reason, tokens, calls, took_s, said"


def delete_job(db: ConnectionPort, job_id: str) -> bool:
    """Delete a job and what it has watched; return whether there was one."""
    db.execute("DELETE FROM positions WHERE name = ?", (f"watch:{job_id}",))
    return db.execute("DELETE FROM jobs WHERE id = ?", (job_id,)).rowcount > 0


class JobStore(Store):
    """Stores scheduled jobs, the run ledger and the digest's alerts."""

    async def add_job(self, job: Job, *, at_most: int, persons: Sequence[str] = ()) -> None:
        """Store a new job; a person (all ``persons``) may have ``at_most`` open. Raises TooManyJobs."""
        whose = tuple(dict.fromkeys((job.person, *persons)))
        marks = ", ".join("?" * len(whose))
        open_jobs = f"SELECT COUNT(*) FROM jobs WHERE state <> 'done' AND person IN ({marks})"
        values = (
            job.id,
            job.kind.value,
            whole_text(job.text),
            job.timing,
            str(job.session),
            job.account,
            whole_text(job.person),
            job.audience.value,
            dump_context(job.context),
            job.state.value,
            job.created_at.timestamp(),
            _seconds(job.next_at),
            _seconds(job.last_at),
            job.revision,
            job.note,
        )

        def write(db: ConnectionPort) -> None:
            (count,) = db.execute(open_jobs, whose).fetchone()
            if count >= at_most:
                raise TooManyJobs(at_most)
            db.execute(f"INSERT INTO jobs ({_JOB}) VALUES ({', '.join('?' * len(values))})", values)

        await self._writer.call("add_job", write, locks=[named_lock("jobs", person) for person in whose])

    async def jobs(self, *, done: bool = False, until: datetime | None = None) -> list[Job]:
        """Return jobs, the next first; ``done`` includes ended ones, ``until`` selects those due by then."""
        if until is not None:
            query = f"SELECT {_JOB} FROM jobs WHERE state = 'active' AND next_at <= ? ORDER BY next_at, id"
            before = (until.timestamp(),)
            raws = await self._reader.call("jobs_until", lambda db: db.execute(query, before).fetchall())
        else:
            raws = await self._reader.call("jobs", lambda db: _jobs(db, done=done))
        return [job for job in map(_job_of, raws) if job is not None]

    async def job(self, job_id: str) -> Job | None:
        """Return one job."""
        raws = await self._reader.call("job", lambda db: _jobs(db, done=True, job_id=job_id))
        return _job_of(raws[0]) if raws else None

    async def set_job_state(
        self,
        job_id: str,
        state: JobState,
        next_at: datetime | None,
        *,
        note: str = "",
        timing: str | None = None,
    ) -> Job | None:
        """
        Pause a job, because of ``note``, or resume it, also with another ``timing``.

        Return it as it is now, None if there is none.
        """

        def write(db: ConnectionPort) -> list[Raw]:
            db.execute(
                "UPDATE jobs SET state = ?, next_at = ?, note = ?, timing = COALESCE(?, timing),"
                " revision = revision + 1 WHERE id = ?",
                (state.value, _seconds(next_at), note, timing, job_id),
            )
            return _jobs(db, done=True, job_id=job_id)

        raws = await self._writer.call("set_job_state", write, locks=NOTHING)
        return _job_of(raws[0]) if raws else None

    async def remove_job(self, job_id: str) -> bool:
        """Remove a job on a person's request; return whether there was one."""
        return await self._writer.call("remove_job", lambda db: delete_job(db, job_id), locks=NOTHING)

    async def record_run(
        self, job_id: str, revision: int, instant: datetime, next_at: datetime | None, *, note: str = ""
    ) -> bool:
        """
        Record that a scheduled instant was handled (or skipped: ``note``) and set the next; else done.

        False, without effect, if a person has changed the job since ``revision``; the inbox recognises the
        instant later.
        """
        state, fired = JobState.ACTIVE if next_at is not None else JobState.DONE, instant.timestamp()
        ended_at = self._now() if state is JobState.DONE else None
        query = (
            "UPDATE jobs SET last_at = CASE WHEN last_at > ? THEN last_at ELSE ? END, next_at = ?, state = ?,"
            " note = ?, ended_at = ? WHERE id = ? AND revision = ? AND state = 'active'"
        )
        values = (
            fired,
            fired,
            _seconds(next_at),
            state.value,
            error_text(note),
            ended_at,
            job_id,
            revision,
        )
        return await self._writer.call(
            "job_fired", lambda db: db.execute(query, values).rowcount == 1, locks=NOTHING
        )

    async def note(self, entry: LedgerEntry) -> None:
        """Add a ledger entry. A known (name, instant) adds nothing; repeated skips are counted."""
        now = self._now()
        locks = [named_lock("ledger", entry.name)]
        await self._writer.call("note", lambda db: note(db, entry, now), locks=locks)

    async def ledger(self, *, name: str | None = None, limit: int = 50) -> list[LedgerEntry]:
        """Return lines of the ledger, newest first."""
        where, asked = ("", (limit,)) if name is None else (" WHERE name = ?", (name, limit))
        query = f"SELECT {_ENTRY} FROM ledger{where} ORDER BY id DESC LIMIT ?"
        raws = await self._reader.call("ledger", lambda db: db.execute(query, asked).fetchall())
        return [_entry_of(raw) for raw in raws]

    async def was_said(self, said: str, *, since: datetime) -> bool:
        """Return True if a text with this fingerprint was delivered or collected since then."""
        query = (
            "SELECT 1 FROM ledger WHERE said = ? AND said <> '' AND outcome IN ('delivered', 'collected')"
            " AND at >= ? LIMIT 1"
        )
        asked = said, since.timestamp()
        return await self._reader.call("was_said", lambda db: db.execute(query, asked).fetchone() is not None)

    async def watch_states(self) -> dict[str, str]:
        """Return what each job that watches something has noted, by its id."""
        query, asked = "SELECT name, value FROM positions WHERE substr(name, 1, 6) = ?", ("watch:",)
        raws = await self._reader.call("watch_states", lambda db: db.execute(query, asked).fetchall())
        return {name.removeprefix("watch:"): value for name, value in raws}

    async def list_collected_alerts(self) -> list[CollectedAlert]:
        """Return the alerts that wait for the digest, oldest first."""
        query = "SELECT id, channel, person, text, at FROM collected ORDER BY id"
        raws = await self._reader.call("collected", lambda db: db.execute(query).fetchall())
        return [
            CollectedAlert(channel, person, text, moment(at), row_id)
            for row_id, channel, person, text, at in raws
        ]

    async def prune_plans(self, *, older_than_s: float) -> int:
        """Delete ledger lines and done jobs that are older than this; return how many."""
        before = self._now() - older_than_s

        def write(db: ConnectionPort) -> int:
            # The last ledger line of each name stays.
            lines = "DELETE FROM ledger WHERE at < ? AND id NOT IN (SELECT MAX(id) FROM ledger GROUP BY name)"
            done = "DELETE FROM jobs WHERE state = 'done' AND COALESCE(ended_at, created_at) < ?"
            return db.execute(lines, (before,)).rowcount + db.execute(done, (before,)).rowcount

        return await self._writer.call("prune_plans", write, locks=NOTHING)


def _jobs(db: ConnectionPort, *, done: bool, job_id: str | None = None) -> list[Raw]:
    where, arguments = (
        ("id = ?", (job_id,)) if job_id is not None else ("TRUE" if done else "state <> 'done'", ())
    )
    return db.execute(
        f"SELECT {_JOB} FROM jobs WHERE {where} ORDER BY state, next_at IS NULL, next_at, id", arguments
    ).fetchall()


def note(db: ConnectionPort, entry: LedgerEntry, now: float) -> None:
    """Add a line, or count a skip in the previous line."""
    at, skipped = entry.instant.timestamp(), entry.outcome is RunOutcome.SKIPPED
    known = (
        "SELECT 1 FROM ledger WHERE name = :name AND :at BETWEEN instant AND until AND (outcome <> 'skipped'"
    )
    # A tick within a run of other skipped ticks may have been skipped for a reason of its own.
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
            and last[1:3] == (RunOutcome.SKIPPED.value, error_text(entry.reason))
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


def _has_line_between(db: ConnectionPort, name: str, after: float, before: float) -> bool:
    """Return True if a run of skips would extend across another entry, as after a wrong clock."""
    query = "SELECT 1 FROM ledger WHERE name = ? AND instant > ? AND instant <= ? LIMIT 1"
    return db.execute(query, (name, after, before)).fetchone() is not None


def collect(db: ConnectionPort, alerts: Sequence[CollectedAlert]) -> None:
    """Store alerts for the digest."""
    db.executemany(
        "INSERT INTO collected (channel, person, text, at) VALUES (?, ?, ?, ?)",
        [(one.channel, one.person, whole_text(one.text), one.at.timestamp()) for one in alerts],
    )


def delete_digest_alerts(db: ConnectionPort, ids: Sequence[int]) -> None:
    """Delete alerts that are in the outbox now."""
    db.executemany("DELETE FROM collected WHERE id = ?", [(row_id,) for row_id in ids])


def _job_of(raw: Raw) -> Job | None:
    """Convert a row of ``SELECT {_JOB}``; None if it is damaged."""
    job_id, kind, text, timing, session, account, person, audience, context, state = raw[:10]
    created_at, next_at, last_at, revision, said = raw[10:15]
    key = session_or_none(session)
    if key is None:
        return None
    return Job(
        id=job_id,
        kind=JobKind(kind),
        text=text,
        timing=timing,
        session=key,
        account=account,
        person=person,
        created_at=moment(created_at),
        audience=Audience(audience),
        context=context_or_empty(context),
        state=JobState(state),
        next_at=None if next_at is None else moment(next_at),
        last_at=None if last_at is None else moment(last_at),
        revision=revision,
        note=said,
    )


def _entry_of(raw: Raw) -> LedgerEntry:
    name, at, until, ticks, noted_at, outcome, reason, tokens, calls, took_s, said = raw
    return LedgerEntry(
        name=name,
        instant=moment(at),
        outcome=RunOutcome(outcome),
        reason=reason,
        tokens=tokens,
        calls=calls,
        took_s=took_s,
        said=said,
        at=moment(noted_at),
        until=moment(until),
        ticks=ticks,
    )


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()
