"""
Operations on check-ins and jobs: ``squidbot heartbeat …`` and ``squidbot cron …``.

With a daemon everything can be asked; on a home folder at rest the jobs can be listed and changed, and what
is to be run at once runs at the next start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any

import anyio

from agent_core.messages import Audience, SessionKey
from channels.base import ChannelError
from channels.heartbeat.schedule import tick_name
from gateway.errors import NeedsDaemon, NotFound
from gateway.operations.arguments import RequestInvalid, parse_session, within
from gateway.operations.send import access_of
from gateway.proactive.jobs.service import JobPlace, JobService
from gateway.proactive.jobs.trigger_parsing import TriggerRequest, zone_name
from gateway.proactive.jobs.triggers import TriggerInvalid, zone_of
from gateway.proactive.owner_contact import OwnerContact
from gateway.queue.errors import TooManyJobs
from gateway.queue.model import Job, JobKind, JobState, LedgerEntry
from gateway.queue.stores import JobStore, Pending, Queue, StateStore
from gateway.routing.conversations import Conversations

if TYPE_CHECKING:
    from agent_core.ports import Clock
    from channels.heartbeat.channel import HeartbeatChannel
    from gateway.settings import Settings
    from gateway.supervision.gateway import Proactive

PLAN_OPERATIONS = frozenset(
    {
        "cron_list",
        "cron_add",
        "cron_remove",
        "cron_pause",
        "cron_resume",
        "cron_run",
        "heartbeat_log",
        "heartbeat_now",
    }
)
_WAIT_S = 50.0
_LOOK_EVERY_S = 0.2
_CHARS_PER_TOKEN = 4
_LONGEST_TEXT = 20_000


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """
    The parts that these operations use.

    ``owner`` are all addresses; ``conversations`` finds a run's session; ``heartbeat`` is a running daemon's
    channel; ``running``: a daemon runs due jobs.
    """

    plans: JobStore
    service: JobService
    target: OwnerContact
    owner: Sequence[str]
    zone: tzinfo | None
    conversations: Conversations
    clock: Clock
    heartbeat: HeartbeatChannel | None = None
    running: bool = False


def schedule_context(proactive: Proactive, conversations: Conversations) -> PlannedJob:
    """The parts of a running gateway for these operations."""
    return PlannedJob(
        proactive.plans,
        proactive.jobs,
        proactive.owner_contact,
        proactive.owner,
        proactive.zone,
        conversations,
        proactive.clock,
        proactive.heartbeat,
        running=True,
    )


def planned_at_rest(settings: Settings, state: StateStore, plans: JobStore, clock: Clock) -> PlannedJob:
    """The same for a home folder that no daemon works on."""
    scheduling, heartbeat = settings.agents.schedule, settings.agents.heartbeat
    return PlannedJob(
        plans=plans,
        service=JobService(
            plans, scheduling, zone=zone_name(scheduling.timezone, heartbeat.timezone), clock=clock
        ),
        target=OwnerContact(state),
        owner=(*(alias.address for alias in settings.owner.aliases), "local"),
        zone=zone_of(zone_name(scheduling.timezone, heartbeat.timezone)),
        conversations=Conversations(access_of(settings), shared=settings.owner.conversation == "shared"),
        clock=clock,
    )


class PlanOperations:
    """The part of `gateway.operations.service.Operations` for check-ins and jobs."""

    _store: Queue
    _planned: PlannedJob | None

    def _plan(self) -> PlannedJob:
        if self._planned is None:
            raise RequestInvalid("this gateway has no schedule")
        return self._planned

    # ── jobs ──

    async def cron_list(self, every: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - called by name
        """The jobs, the next one first; ``every``: also finished ones. Words only of the owner's own."""
        planned = self._plan()
        return {"jobs": [_job_row(planned, job) for job in await planned.plans.jobs(done=every)]}

    async def cron_add(
        self,
        text: str,
        *,
        at: str = "",
        after: str = "",
        every: str = "",
        cron: str = "",
        hook: str = "",
        zone: str = "",
        ask: bool = False,
        session: str | None = None,
    ) -> dict[str, Any]:
        """Add a job for the conversation ``session``, or for the owner where the owner is reached."""
        planned = self._plan()
        if not text.strip():
            raise RequestInvalid("the text is empty; write what squidbot is to send or ask")
        if len(text) > _LONGEST_TEXT:
            raise RequestInvalid(f"the text has {len(text)} characters; {_LONGEST_TEXT} are allowed")
        if not planned.service.is_enabled:
            raise RequestInvalid("jobs are switched off: agents.schedule.enabled is false")
        if sum(map(bool, (at, after, every, cron, hook))) != 1:
            raise RequestInvalid("say when, with exactly one of --at, --in, --every, --cron and --hook")
        when = at or (f"in {after}" if after else f"every {every}" if every else "")
        place = await (self._place_of(parse_session(session)) if session else self._place_of_owner())
        try:
            request = TriggerRequest(at=when, cron=cron, hook=hook, zone=zone)
            kind = JobKind.ASK if ask else JobKind.REMIND
            job = await planned.service.add(place, request, text=text, kind=kind)
        except TriggerInvalid as error:
            raise RequestInvalid(str(error)) from error
        except TooManyJobs as error:
            raise RequestInvalid(error.public) from error
        return {"job": _job_row(planned, job)}

    async def cron_remove(self, id: str) -> dict[str, Any]:  # noqa: A002 - the word that people type
        """Remove a job."""
        job = await self._job(id)
        return {"id": job.id, "changed": await self._plan().service.remove(job)}

    async def cron_pause(self, id: str) -> dict[str, Any]:  # noqa: A002
        """Pause a job until it is resumed."""
        return await self._paused(id, paused=True)

    async def cron_resume(self, id: str) -> dict[str, Any]:  # noqa: A002
        """Resume a job; runs that fell due meanwhile are skipped."""
        return await self._paused(id, paused=False)

    async def cron_run(self, id: str) -> dict[str, Any]:  # noqa: A002
        """Run a job now, in addition to its schedule, also while it is paused."""
        from gateway.proactive.jobs.scheduler import job_message  # noqa: PLC0415 - `status` does without it

        planned, job = self._plan(), await self._job(id)
        now = planned.clock.now()
        instant = now.replace(microsecond=now.microsecond // 1000 * 1000)
        message = job_message(job, instant, late=False, forced=True)
        pending = Pending(message, session=planned.conversations.conversation_for(message))
        rows = await self._store.inbox.accept(message.channel, message.account, [pending], {})
        return {"id": job.id, "inbox": rows[0].id if rows else None, "running": planned.running}

    async def _paused(self, job_id: str, *, paused: bool) -> dict[str, Any]:
        planned, job = self._plan(), await self._job(job_id)
        if job.state is JobState.DONE:
            raise RequestInvalid(f"{job.id} was to run once, and has run")
        try:
            changed = await planned.service.set_paused(job, paused=paused)
        except TriggerInvalid as error:
            raise RequestInvalid(f"{job.id} cannot be resumed: {error}") from error
        return {"job": _job_row(planned, changed or job)}

    async def _job(self, job_id: str) -> Job:
        job = await self._plan().plans.job(job_id.strip().lower())
        if job is None:
            raise NotFound(f"there is no job {job_id!r}; `squidbot cron list` lists the jobs")
        return job

    async def _place_of(self, session: SessionKey) -> JobPlace:
        rows = await self._store.inbox.rows(session=session, limit=50)
        said = next((row.message for row in rows if row.message.kind == "message"), None)
        if said is None or not said.sender.address:
            raise NotFound(f"{session} has no recent messages; `squidbot sessions list` lists the sessions")
        person = said.sender.address
        if said.audience is Audience.GROUP:
            speakers = [row.message.sender.address for row in rows]
            person = next((address for address in speakers if self._is_owner(address)), person)
        owner = self._plan().owner if self._is_owner(person) else ()
        return JobPlace(session, said.account, person, said.audience, said.context, persons=owner)

    def _is_owner(self, address: str) -> bool:
        return address in self._plan().owner

    async def _place_of_owner(self) -> JobPlace:
        planned = self._plan()
        reached = await planned.target.reach(topic=f"job {planned.clock.now().isoformat()}")
        target = reached.target
        if target is None:
            raise RequestInvalid(
                f"{reached.why}; write to me directly first, set agents.heartbeat.target, or name a "
                "conversation with --session"
            )
        person = target.person or next(iter(planned.owner), "")
        return JobPlace(target.session, target.account, person, persons=planned.owner)

    # ── check-ins ──

    async def heartbeat_log(self, limit: int = 30, jobs: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002
        """The outcomes of check-ins (with ``jobs`` also of jobs), newest first."""
        planned = self._plan()
        entries = await planned.plans.ledger(limit=within(limit) if jobs else 1000)
        shown = [entry for entry in entries if jobs or not entry.name.startswith("job:")]
        return {"entries": [_entry_row(planned, entry) for entry in shown[: within(limit)]]}

    async def heartbeat_now(self, dry_run: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002
        """Run a check-in now and return its result; ``dry_run`` only says what would happen."""
        planned = self._plan()
        heartbeat = planned.heartbeat
        if heartbeat is None:
            raise NeedsDaemon("no heartbeat is running; start the daemon with the heartbeat enabled")
        if dry_run:
            return await self._dry_run(planned, heartbeat)
        try:
            instant, found = await heartbeat.now()
        except ChannelError as error:
            raise RequestInvalid(str(error)) from error
        if not found.text:
            return {"at": tick_name(instant), "outcome": "skipped", "reason": found.reason, "tokens": 0}
        entry = await self._outcome(planned, heartbeat.name, instant)
        if entry is None:
            return {"at": tick_name(instant), "outcome": "running", "reason": "", "tokens": 0}
        return _entry_row(planned, entry)

    async def _dry_run(self, planned: PlannedJob, heartbeat: HeartbeatChannel) -> dict[str, Any]:
        now = planned.clock.now()
        found, following = await heartbeat.would_find(now), heartbeat.schedule.next_run(now)
        known = await planned.target.get()
        return {
            "at": tick_name(now),
            "outcome": "would ask" if found.text else "would skip",
            "reason": found.reason,
            "prompt": found.text,
            "tokens": len(found.text) // _CHARS_PER_TOKEN,
            "active": heartbeat.schedule.is_open(now),
            "next": None if following is None else tick_name(following),
            "target": planned.target.setting or (str(known.session) if known is not None else ""),
        }

    async def _outcome(self, planned: PlannedJob, name: str, instant: datetime) -> LedgerEntry | None:
        with anyio.move_on_after(_WAIT_S):
            while True:
                for entry in await planned.plans.ledger(name=name, limit=5):
                    if entry.instant <= instant <= (entry.until or entry.instant):
                        return entry
                await anyio.sleep(_LOOK_EVERY_S)
        return None


def _job_row(planned: PlannedJob, job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "state": job.state.value,
        "kind": job.kind.value,
        "when": planned.service.timing_text(job),
        "timing": job.timing,
        "next": None if job.next_at is None else _local_time(job.next_at, planned.zone),
        "last": None if job.last_at is None else _local_time(job.last_at, planned.zone),
        "next_at": None if job.next_at is None else job.next_at.astimezone(planned.zone).isoformat(),
        "last_at": None if job.last_at is None else job.last_at.astimezone(planned.zone).isoformat(),
        "timezone": planned.service.zone,
        "person": job.person,
        "session": str(job.session),
        "text": job.text if planned.conversations.access.may_show(job.session, job.person) else None,
        "note": job.note,
    }


def _entry_row(planned: PlannedJob, entry: LedgerEntry) -> dict[str, Any]:
    return {
        "at": _local_time(entry.instant, planned.zone),
        "until": _local_time(entry.until or entry.instant, planned.zone),
        "ticks": entry.ticks,
        "name": entry.name,
        "outcome": entry.outcome.value,
        "reason": entry.reason,
        "tokens": entry.tokens,
        "calls": entry.calls,
        "took_s": entry.took_s,
    }


def _local_time(at: datetime, zone: tzinfo | None) -> str:
    return f"{at.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"
