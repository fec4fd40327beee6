"""
Jobs, their ledger and the digest.

The SQL is in ``jobs_sql.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gateway.queue.model import Collected, Entry, Job, JobState
from gateway.queue.sql import jobs_sql
from gateway.queue.sql.base import Part
from gateway.queue.sql.engine import NOTHING, named_lock


class JobStore(Part):
    """Jobs, ledger and digest."""

    async def add_job(self, job: Job, *, at_most: int, persons: Sequence[str] = ()) -> None:
        """
        Keep a job.

        Args:
            job: The job; its id must be new.
            at_most: How many jobs that are not done the person may have, this one included.
            persons: All addresses that are this person.

        Raises:
            TooManyJobs: There are so many already; nothing was kept.
        """
        locks = [named_lock("jobs", person) for person in (job.person, *persons)]
        await self._writer.call(
            "add_job", lambda db: jobs_sql.add_job(db, job, at_most, persons), locks=locks
        )

    async def jobs(self, *, done: bool = False, until: datetime | None = None) -> list[Job]:
        """
        All jobs, the next one first; with ``done`` also those that were for once and have run, with ``until``
        only those that wait for an instant up to then.
        """
        if until is not None:
            raws = await self._reader.call(
                "jobs_until", lambda db: jobs_sql.jobs_until(db, until.timestamp())
            )
        else:
            raws = await self._reader.call("jobs", lambda db: jobs_sql.jobs(db, done=done))
        return [job for job in map(jobs_sql.job_of, raws) if job is not None]

    async def job(self, job_id: str) -> Job | None:
        """One job."""
        raws = await self._reader.call("job", lambda db: jobs_sql.jobs(db, done=True, job_id=job_id))
        return jobs_sql.job_of(raws[0]) if raws else None

    async def set_job_state(self, job_id: str, state: JobState, next_at: datetime | None) -> Job | None:
        """A person pauses or resumes a job; returns it as it is now, None if there is no such job."""
        raws = await self._writer.call(
            "set_job_state",
            lambda db: jobs_sql.set_state(db, job_id, state, next_at),
            locks=NOTHING,
        )
        return jobs_sql.job_of(raws[0]) if raws else None

    async def remove_job(self, job_id: str) -> bool:
        """A person removes a job; whether there was one."""
        query = "DELETE FROM jobs WHERE id = ?"
        return await self._writer.call(
            "remove_job", lambda db: db.execute(query, (job_id,)).rowcount > 0, locks=NOTHING
        )

    async def job_fired(
        self, job_id: str, revision: int, instant: datetime, next_at: datetime | None, *, note: str = ""
    ) -> bool:
        """
        A scheduled instant was dealt with (run, or not run because of ``note``); the next one is waited for.
        Without a next one the job is done.

        Nothing happens, and False is returned, if a person has changed the job since ``revision``: what they
        want now counts, and the instant is recognised by the inbox if it comes again.
        """
        now = self._now()
        return await self._writer.call(
            "job_fired",
            lambda db: jobs_sql.job_fired(db, job_id, revision, instant, next_at=next_at, note=note, now=now),
            locks=NOTHING,
        )

    async def note(self, entry: Entry) -> None:
        """
        Add a line. A known (name, instant) adds nothing; a skip for the same reason as the line before is
        counted there.
        """
        now = self._now()
        locks = [named_lock("ledger", entry.name)]
        await self._writer.call("note", lambda db: jobs_sql.note(db, entry, now), locks=locks)

    async def ledger(self, *, name: str | None = None, limit: int = 50) -> list[Entry]:
        """Lines, newest first."""
        raws = await self._reader.call("ledger", lambda db: jobs_sql.ledger(db, name, limit))
        return [jobs_sql.entry_of(raw) for raw in raws]

    async def was_said(self, said: str, *, since: datetime) -> bool:
        """Whether something with this fingerprint was delivered or collected since then."""
        return await self._reader.call("was_said", lambda db: jobs_sql.was_said(db, said, since.timestamp()))

    async def collected(self) -> list[Collected]:
        """What waits for the digest, oldest first."""
        return await self._reader.call("collected", jobs_sql.collected)

    async def prune_plans(self, *, older_than_s: float) -> int:
        """Forget lines of the ledger and jobs that were done longer ago than this. Returns how many."""
        before = self._now() - older_than_s
        return await self._writer.call("prune_plans", lambda db: jobs_sql.prune(db, before), locks=NOTHING)
