"""
What is planned, and what became of it: jobs of the schedule, the run ledger, alerts that wait for the digest.

`PlanStore` is a port beside `WorkStore`, kept by the same adapter in the same database, because an alert, its
line in the history, its entry in the ledger and its place in the digest must become true in one transaction
(`rows.Completion`). Values are frozen; times are aware, in UTC. All methods may raise `StoreUnavailable`:
then nothing of the call has happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from agent_core.messages import Audience, SessionKey
from agent_core.models import Message

if TYPE_CHECKING:
    from gateway.queue.model import NewOutbound

__all__ = [
    "Collected",
    "Entry",
    "Job",
    "JobKind",
    "JobState",
    "OtherHistory",
    "Outcome",
    "PlanStore",
    "TooManyJobs",
]

OtherHistory = tuple[SessionKey, tuple[Message, ...]]
"""Lines for the history of a session that is not the turn's."""


class TooManyJobs(Exception):
    """There are as many jobs as one person may have."""

    temporary = False

    def __init__(self, limit: int) -> None:
        self.public = f"You have {limit} jobs already, which is the limit; remove one first."
        self.fields = {"limit": limit}
        super().__init__(self.public)


class JobKind(StrEnum):
    """What a job does when it is due."""

    REMIND = "remind"
    """Its text is sent as it is; no model is asked."""
    ASK = "ask"
    """Its text is asked of the model, and the answer is sent."""


class JobState(StrEnum):
    """Whether a job will run again."""

    ACTIVE = "active"
    PAUSED = "paused"
    DONE = "done"
    """It was for once, and has run."""


@dataclass(frozen=True, slots=True)
class Job:
    """
    Something to be done at a time, for a person, in a conversation.

    Args:
        id: Short, for people to type.
        kind, text: What is done.
        timing: When, as ``gateway.proactive.jobs.triggers`` reads and writes it.
        session, account: The conversation in which it answers, and the bot's address there.
        person: Who wanted it; without this person's right to speak it does not run.
        audience: Who can read along there.
        context: The channel's note of the message that it was wanted in, to answer it.
        next_at: The scheduled instant that is waited for; None: there is none.
        last_at: The scheduled instant that was run last.
        revision: Grows with every change that a person makes.
        note: Why it did not run the last time; empty if it did.
    """

    id: str
    kind: JobKind
    text: str
    timing: str
    session: SessionKey
    account: str
    person: str
    created_at: datetime
    audience: Audience = Audience.DIRECT
    context: Mapping[str, Any] = field(default_factory=dict)
    state: JobState = JobState.ACTIVE
    next_at: datetime | None = None
    last_at: datetime | None = None
    revision: int = 1
    note: str = ""


class Outcome(StrEnum):
    """What became of a tick or a job."""

    SKIPPED = "skipped"
    SILENT = "silent"
    DELIVERED = "delivered"
    COLLECTED = "collected"
    """It waits for the digest."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Entry:
    """
    A line of the run ledger.

    Args:
        name: Whose: the heartbeat's channel, or ``job:ID``.
        instant: The scheduled instant; with ``name`` the identity of what ran.
        outcome, reason: What became of it and why.
        tokens, calls, took_s: What it cost.
        said: The fingerprint of what was said, to recognise a repetition.
        at: When that was noted.
        until, ticks: A line of SKIPPED stands for so many ticks in a row, up to that instant.
    """

    name: str
    instant: datetime
    outcome: Outcome
    reason: str = ""
    tokens: int = 0
    calls: int = 0
    took_s: float = 0.0
    said: str = ""
    at: datetime | None = None
    until: datetime | None = None
    ticks: int = 1


@dataclass(frozen=True, slots=True)
class Collected:
    """An alert that waits for the digest to ``person`` on ``channel``; ``id`` is 0 before it is stored."""

    channel: str
    person: str
    text: str
    at: datetime
    id: int = 0


class PlanStore(Protocol):
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

    # ── digest and notices ──
    async def collected(self) -> list[Collected]:
        """What waits for the digest, oldest first."""
        ...

    async def post_planned(
        self,
        what: str,
        value: str,
        outbound: Sequence[NewOutbound],
        *,
        history: Sequence[OtherHistory] = (),
        collected: Sequence[int] = (),
    ) -> bool:
        """
        Put something into the outbox, unless ``what`` has the value ``value`` already; with
        it, in one transaction, its lines in histories, the removal of what was collected, and the value.
        """
        ...

    async def prune_plans(self, *, older_than_s: float) -> int:
        """Forget lines of the ledger and jobs that were done longer ago than this. Returns how many."""
        ...
