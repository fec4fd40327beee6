"""
Background jobs: started by a turn for its person, done beside the conversation, answered there once. The row
of a job is a message in the inbox (`gateway.store.background_job_rows`); `gateway.turns.background_job_turn`
does it. What is here starts, lists and stops jobs: for a model in a conversation, and for the operator. A
person sees and stops their own jobs only, and in a shared room only those of this room, as with scheduled
jobs. A job cannot start jobs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, replace
from datetime import timedelta

import anyio
import anyio.to_thread
import structlog

from agent_core.errors import AgentError, StorageUnavailable, ToolDenied, ToolFailed, ToolRetry
from agent_core.language import _
from agent_core.memory_ports import MemoryPort
from agent_core.messages import Amendment, OrderNote
from agent_core.ports import Clock
from agent_core.provenance import Origins, join_origins, to_json, untrusted_origin
from agent_core.text import one_line
from gateway.proactive.jobs.job_service import JobPlace
from gateway.proactive.run_ledger import ledger_name
from gateway.store.background_job_rows import BackgroundJob, BackgroundState, job_message, job_of
from gateway.store.model import LedgerEntry, RunOutcome
from gateway.store.stores import HistoryJournal, Pending, Queue, StoreUnavailable

_OPEN_HERE, _OPEN_OF_PERSON, _OPEN = 10, 20, 100
"""The last `_OPEN_OF_PERSON` of all are the owner's."""
_SHOWN = 20
_LOOKED_AT = 500
_RECENT = timedelta(days=7)
_log = structlog.get_logger(__name__)


class TooManyBackgroundJobs(AgentError):
    """Too many background jobs are open already; wait until one has ended, or stop one."""


@dataclass(eq=False)
class BackgroundJobs:
    """Manages background jobs, for all conversations; ``said`` returns a job's output and origins."""

    store: Queue
    ledger: Callable[[str], Awaitable[list[LedgerEntry]]]
    _: KW_ONLY
    said: Callable[[BackgroundJob], Awaitable[tuple[str, Origins]]]
    clock: Clock

    def __post_init__(self) -> None:
        self._starting = anyio.Lock()

    async def start(
        self,
        place: JobPlace,
        text: str,
        *,
        key: str,
        note: OrderNote = OrderNote(),  # noqa: B008 - a frozen value
    ) -> BackgroundJob:
        """Start a job with an order once per ``key``. Raises TooManyBackgroundJobs or StoreUnavailable."""
        message = job_message(
            key,
            text=text,
            place=place.session,
            account=place.account,
            person=place.person,
            audience=place.audience,
            at=self.clock.now(),
            context=place.context,
            note=replace(note, name=one_line(note.name, 60)),
        )
        inbox = self.store.inbox
        async with self._starting:
            known = await inbox.find_by_key(message.channel, message.account, message.native_id)
            if known is None:
                await self._check_room(place)
                rows = await inbox.accept(message.channel, message.account, [Pending(message)], {})
                known = rows[0] if rows else None
                _log.info("background_job.started", session=str(message.session), command=note.command)
        if known is None:  # it ended so long ago that only a digest of it is left
            raise TooManyBackgroundJobs("this job was started before")
        return job_of(known)

    async def _check_room(self, place: JobPlace) -> None:
        rows = await self.store.inbox.background_jobs(open_only=True, limit=_LOOKED_AT)
        jobs = [job for job in map(job_of, rows) if job.state is not BackgroundState.HELD]
        here = [job for job in jobs if job.session == place.session]
        theirs = [job for job in jobs if job.person == place.person]
        most = _OPEN if place.persons else _OPEN - _OPEN_OF_PERSON
        if len(jobs) >= most or len(here) >= _OPEN_HERE or len(theirs) >= _OPEN_OF_PERSON:
            raise TooManyBackgroundJobs(
                f"{len(jobs)} background jobs are open, {len(here)} of them from here"
            )

    async def all(self, *, limit: int = _SHOWN) -> list[BackgroundJob]:
        """All jobs of all people, newest first."""
        return [job_of(row) for row in await self.store.inbox.background_jobs(limit=limit)]

    async def jobs_at(self, place: JobPlace) -> list[BackgroundJob]:
        """Those that may be shown at a place: all open ones and the last week's, newest first."""
        since = self.clock.now() - _RECENT
        jobs = [job for job in await self.all(limit=_LOOKED_AT) if place.owns(job)]
        return [job for job in jobs if job.open or job.created_at >= since][:_SHOWN]

    async def stop(self, job: BackgroundJob) -> bool:
        """End a job; False: it had ended before."""
        if not job.open:
            return False
        if job.state is BackgroundState.HELD:
            return await self.store.inbox.drop(job.inbox_id)
        stop = Amendment(kind="stop", session=job.own)
        await self.store.inbox.accept(job.channel, job.account, [], {}, [stop])
        found = await self.store.inbox.row(job.inbox_id)
        stopped = found is not None and job_of(found[0]).state is BackgroundState.STOPPED
        if stopped:
            _log.info("background_job.stopped", session=str(job.own))
        return stopped

    async def output(self, job: BackgroundJob) -> tuple[str, Origins]:
        """Return a job's output so far and its origins. Raises StoreUnavailable or StorageUnavailable."""
        return await self.said(job)

    async def state_text(self, job: BackgroundJob) -> str:
        """The state of a job in words."""
        if job.state is BackgroundState.HELD:
            return _("held since a backup was restored")
        for one in await self.store.approvals.questions() if job.open else ():
            if one.session == job.own and one.verdict is None:
                return _(
                    "waiting for an answer to `{name}`, which is about `{tool}`", name=one.name, tool=one.tool
                )
        if job.state is not BackgroundState.DONE:
            return _(job.state.value)
        entries = await self.ledger(ledger_name(job.id))
        if not entries or entries[0].outcome is RunOutcome.DELIVERED:
            return _("done")
        return f"{_(entries[0].outcome.value)}: {one_line(entries[0].reason, 120).rstrip('.')}"

    async def summary(self, job: BackgroundJob) -> str:
        """A job in one line."""
        what = one_line(job.name or job.text, 80)
        kind = "command, " if job.command else ""
        at = f"{job.created_at.astimezone():%Y-%m-%d %H:%M %Z}"
        return f"{job.id}: {kind}{await self.state_text(job)}, started {at}" + (f": {what}" if what else "")


class SessionBackgroundJobs:
    """Implements `agent_core.tools.background_tools.BackgroundJobsPort` for one run."""

    def __init__(
        self, jobs: BackgroundJobs, place: JobPlace, *, turn: str, by_heartbeat: bool = False
    ) -> None:
        self._jobs = jobs
        self._place = place
        self._turn = turn
        self._by_heartbeat = by_heartbeat

    async def start(
        self, text: str, *, name: str, command: bool, step: int, origins: Origins, state: str = ""
    ) -> tuple[str, str]:
        """Start a job."""
        note = OrderNote(
            name=name,
            started_by=self._turn,
            command=command,
            origins=to_json(origins),
            by_heartbeat=self._by_heartbeat,
            state=state,
        )
        key = "\0".join((self._turn, str(step), "command" if command else "goal", text))
        try:
            job = await self._jobs.start(self._place, text, key=key, note=note)
        except TooManyBackgroundJobs as error:
            raise ToolDenied(error.public) from error
        except StoreUnavailable as error:
            raise ToolFailed("Nothing was started: the disk accepts no writes now.") from error
        return f"Started as {job.id}. Its answer is sent here automatically when it is done.", job.id

    async def list_text(self) -> tuple[str, Origins]:
        """The jobs, one per line, and whose words they are made of."""
        jobs = await self._all()
        lines = [await self._jobs.summary(job) for job in jobs]
        return "\n".join(lines) or "There are no background jobs.", join_origins(
            *(job.origins for job in jobs)
        )

    async def output(self, job_id: str) -> tuple[str, Origins]:
        """Return a job's summary and output so far. Raises ToolFailed."""
        job = await self._find(job_id)
        try:
            text, origins = await self._jobs.output(job)
            return f"{await self._jobs.summary(job)}\n\n{text}", join_origins(job.origins, origins)
        except (StoreUnavailable, StorageUnavailable) as error:
            raise ToolFailed("It cannot be read now.") from error

    async def stop(self, job_id: str) -> str:
        """End a job."""
        job = await self._find(job_id)
        try:
            stopped = await self._jobs.stop(job)
        except StoreUnavailable as error:
            raise ToolFailed("Nothing was changed: the disk accepts no writes now.") from error
        return f"{job.id} is stopped." if stopped else f"{job.id} has already ended."

    async def _find(self, job_id: str) -> BackgroundJob:
        wanted = job_id.strip().strip("`").lower()
        job = next((job for job in await self._all() if job.id == wanted), None)
        if job is None:
            raise ToolRetry(f"There is no background job {job_id!r} here; `jobs` lists them.")
        return job

    async def _all(self) -> list[BackgroundJob]:
        try:
            return await self._jobs.jobs_at(self._place)
        except StoreUnavailable as error:
            raise ToolFailed("The jobs cannot be read now.") from error


def answer_of(
    memory: MemoryPort, journal: HistoryJournal, output_of: Callable[[str], str]
) -> Callable[[BackgroundJob], Awaitable[tuple[str, Origins]]]:
    """
    Read what a job has answered: from the history of its session, and what is not in its file yet.

    ``output_of`` gives what a command has said so far, and may block.
    """

    async def read(job: BackgroundJob) -> tuple[str, Origins]:
        waiting = [line.message for line in await journal.lines(job.own)]
        tail = await memory.load_history(str(job.own), max_messages=4)
        for line in reversed([*tail.messages, *waiting]):
            if line.role == "assistant":
                return line.content, line.sources
        if job.command:
            # Whose words it could read is known when it has ended.
            said = untrusted_origin("shell", f"the background job {job.id}")
            return await anyio.to_thread.run_sync(output_of, job.id), (said,)
        return "It has written nothing yet.", ()

    return read
