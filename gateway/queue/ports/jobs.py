"""Jobs, the ledger of their runs, and the digest."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from gateway.queue.model import Collected, Entry, Job, JobState


class JobStore(Protocol):
    """Jobs, ledger and digest."""

    # ── jobs ──
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
        ...

    async def jobs(self, *, done: bool = False, until: datetime | None = None) -> list[Job]:
        """
        All jobs, the next one first; with ``done`` also those that were for once and have run, with ``until``
        only those that wait for an instant up to then.
        """
        ...

    async def job(self, job_id: str) -> Job | None:
        """One job."""
        ...

    async def set_job_state(self, job_id: str, state: JobState, next_at: datetime | None) -> Job | None:
        """A person pauses or resumes a job; returns it as it is now, None if there is no such job."""
        ...

    async def remove_job(self, job_id: str) -> bool:
        """A person removes a job; whether there was one."""
        ...

    async def job_fired(
        self, job_id: str, revision: int, instant: datetime, next_at: datetime | None, *, note: str = ""
    ) -> bool:
        """
        A scheduled instant was dealt with (run, or not run because of ``note``); the next one is waited for.
        Without a next one the job is done.

        Nothing happens, and False is returned, if a person has changed the job since ``revision``: what they
        want now counts, and the instant is recognised by the inbox if it comes again.
        """
        ...

    # ── ledger ──
    async def note(self, entry: Entry) -> None:
        """
        Add a line. A known (name, instant) adds nothing; a skip for the same reason as the line before is
        counted there.
        """
        ...

    async def ledger(self, *, name: str | None = None, limit: int = 50) -> list[Entry]:
        """Lines, newest first."""
        ...

    async def was_said(self, said: str, *, since: datetime) -> bool:
        """Whether something with this fingerprint was delivered or collected since then."""
        ...

    # ── digest ──
    async def collected(self) -> list[Collected]:
        """What waits for the digest, oldest first."""
        ...

    async def prune_plans(self, *, older_than_s: float) -> int:
        """Forget lines of the ledger and jobs that were done longer ago than this. Returns how many."""
        ...
