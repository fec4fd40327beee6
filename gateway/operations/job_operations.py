"""
Operations on check-ins and jobs: ``squidbot heartbeat …``, ``squidbot cron …`` and ``squidbot watch …``. With
a daemon everything can be asked; on a home folder at rest the jobs can be listed and changed, and what is to
be run at once runs at the next start.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from agent_core.errors import ToolError
from agent_core.language import _
from agent_core.operation import InChat, Option, Who, operation
from gateway.errors import NeedsDaemon, NotFound
from gateway.operations.operation_arguments import RequestInvalid, capped_limit, parse_session
from gateway.operations.operation_context import OperationContext, PlannedJob
from gateway.operations.render import chat_text, schedule_text

if TYPE_CHECKING:
    from agent_core.messages import SessionKey
    from agent_core.ports import Clock
    from channels.heartbeat.channel import HeartbeatChannel
    from gateway.proactive.jobs.job_service import JobPlace
    from gateway.proactive.jobs.trigger_parsing import TriggerRequest
    from gateway.routing.conversations import Conversations
    from gateway.settings import Settings
    from gateway.store.model import Job, LedgerEntry
    from gateway.store.stores import JobStore, StateStore
    from gateway.supervision.gateway import Proactive

_CHECK_EVERY_S = 0.2
_CHARS_PER_TOKEN = 4
_MAX_TEXT = 20_000
_NEEDS = ("home", "settings")
_IN_CHECK_IN = " in check-in"
JobId = Annotated[str, Option(help="The job, as `squidbot cron list` shows it.")]


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


def offline_schedule_context(
    settings: Settings, state: StateStore, plans: JobStore, clock: Clock
) -> PlannedJob:
    """Return the schedule context of a home folder that no daemon works on."""
    from gateway.proactive.jobs.job_service import JobService
    from gateway.proactive.jobs.trigger_parsing import zone_name
    from gateway.proactive.jobs.triggers import zone_of
    from gateway.proactive.owner_contact import OwnerContact
    from gateway.routing.conversations import Conversations
    from gateway.settings.accounts import access_of

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


def _plan(context: OperationContext) -> PlannedJob:
    if context.planned is None:
        raise RequestInvalid("this gateway has no schedule")
    return context.planned


def _job_text(answer: Mapping[str, Any]) -> str:
    return schedule_text.job(answer["job"])


@operation("cron list", writes=False, needs=_NEEDS, render=schedule_text.jobs)
async def list_jobs(
    context: OperationContext,
    *,
    every: Annotated[bool, Option("--all", "Include finished jobs.")] = False,
) -> dict[str, Any]:
    """List everybody's jobs, the next one first."""
    planned = _plan(context)
    return {"jobs": [_job_row(planned, job) for job in await planned.plans.jobs(done=every)]}


@operation("cron add", writes=True, needs=_NEEDS, render=_job_text)
async def add_job(
    context: OperationContext,
    text: str,
    *,
    at: str = "",
    after: Annotated[str, Option("--in")] = "",
    every: str = "",
    cron: str = "",
    hook: str = "",
    zone: str = "",
    ask: bool = False,
    session: str | None = None,
) -> dict[str, Any]:
    """
    Add a job; give one of --at, --in, --every, --cron and --hook.

    Args:
        text: The text to send, or with --ask the question for the model.
        at: A time: "2026-11-22 09:00", "7.30pm", "half past six", "friday", "every day 09:00 and 21:00".
        after: Once, after this time: 30m, 1h30, "half an hour", 1d.
        every: Repeatedly: 30m, 2h, "day 09:00", "2 weeks on monday 09:00".
        cron: Five fields, minute hour day month weekday: "0 9 * * 1-5".
        hook: Whenever this webhook of the configuration is called; what it says is added to the text.
        zone: The time zone, such as Europe/Berlin (default: as configured).
        ask: Ask the model and send its answer instead of the text itself.
        session: The conversation (default: the owner's).
    """
    if sum(map(bool, (at, after, every, cron, hook))) != 1:
        raise RequestInvalid("say when, with exactly one of --at, --in, --every, --cron and --hook")
    when = at or (f"in {after}" if after else f"every {every}" if every else "")
    from gateway.proactive.jobs.trigger_parsing import TriggerRequest

    request = TriggerRequest(at=when, cron=cron, hook=hook, zone=zone)
    return await _added(context, request, text, ask=ask, session=session)


async def _added(
    context: OperationContext, request: TriggerRequest, text: str, *, ask: bool, session: str | None
) -> dict[str, Any]:
    """Add a job for the owner, or the people of a conversation; in a conversation for who asks there."""
    from gateway.proactive.jobs.triggers import TriggerInvalid
    from gateway.store.model import JobKind
    from gateway.store.store_errors import TooManyJobs

    planned, caller = _plan(context), context.caller
    if not text.strip():
        raise RequestInvalid("the text is empty; write what squidbot is to send or ask")
    if len(text) > _MAX_TEXT:
        raise RequestInvalid(f"the text has {len(text)} characters; {_MAX_TEXT} are allowed")
    if not planned.service.is_enabled:
        raise RequestInvalid("jobs are switched off: agents.schedule.enabled is false")
    if caller is not None:
        place = caller.place
    else:
        place = await (_place_of(context, parse_session(session)) if session else owner_place(context))
    kind, key = JobKind.ASK if ask else JobKind.REMIND, "" if caller is None else caller.turn
    try:
        job = await planned.service.add(place, request, text=text, kind=kind, key=key)
    except TriggerInvalid as error:
        raise RequestInvalid(str(error)) from error
    except TooManyJobs as error:
        raise RequestInvalid(error.public) from error
    return {"job": _job_row(planned, job)}


@operation(
    "watch add",
    writes=True,
    needs=_NEEDS,
    render=schedule_text.render_new_watch,
    chats=[
        InChat("watch ADDRESS", Who.OWNER, chat_text.watch_text),
        InChat("watch ADDRESS every TIME…", Who.OWNER, chat_text.watch_text),
        InChat("watch ADDRESS in check-in", Who.OWNER, chat_text.watch_text, {"check_in": True}),
        InChat("watch file ADDRESS…", Who.OWNER, chat_text.watch_text, {"kind": "file"}),
        InChat("watch mail ADDRESS…", Who.OWNER, chat_text.watch_text, {"kind": "mail"}),
    ],
)
async def add_watch(
    context: OperationContext,
    address: str,
    *,
    every: str = "1h",
    kind: Literal["web", "file", "mail"] = "web",
    part: str = "",
    text: str = "",
    ask: bool = False,
    check_in: bool = False,
    session: str | None = None,
) -> dict[str, Any]:
    """
    Watch a feed, a page, a JSON document, a file or a mailbox folder, and say what is new there.

    Args:
        address: Where it is: https://…, a path in the workspace, or a folder such as Archive/Bills.
        every: How often to look: 30m, 2h, 1d.
        kind: web; file: a file or folder of the workspace; mail: a folder of a mailbox.
        part: Words: only entries or lines with them count. Of JSON the field: price.eur, items.0.name
        text: What to say before it, or with --ask the question for the model.
        ask: Ask the model about what is new, and send its answer.
        check_in: Say it in the next check-in, not as a message of its own.
        session: The conversation (default: the owner's).
    """
    from gateway.proactive.jobs.trigger_parsing import TriggerRequest

    if context.caller is not None:
        # A path and a time may have blanks, so in a conversation what follows is found behind them.
        typed = f"{address} every {every}" if kind == "web" else address
        check_in = check_in or typed.endswith(_IN_CHECK_IN)
        typed = typed.removesuffix(_IN_CHECK_IN)
        address, _every, every = typed.rpartition(" every ") if " every " in typed else (typed, "", every)
        address = address.strip("<>`'\" ")
    said = text or f"New at {urlsplit(address).hostname or address}:"
    watched = address if kind == "web" else f"{kind}:{address}"
    if kind == "file" and context.files is not None:
        try:
            context.files().roots.place(address)
        except ToolError as error:
            raise RequestInvalid(f"this cannot be watched: {error}") from error
    request = TriggerRequest(at=f"every {every}", watch=watched, part=part, check_in=check_in)
    return await _added(context, request, said, ask=ask, session=session)


@operation(
    "watch list",
    writes=False,
    needs=_NEEDS,
    render=schedule_text.jobs,
    chats=[InChat("watch", Who.OWNER, chat_text.watches_text)],
)
async def list_watches(context: OperationContext) -> dict[str, Any]:
    """List what is watched, and why the last look failed."""
    found = await list_jobs(context)
    return {"jobs": [row for row in found["jobs"] if row["kind"] == "watch"]}


@operation(
    "watch remove",
    writes=True,
    needs=_NEEDS,
    render=lambda answer: f"{answer['id']} is not watched any more",
    chats=[InChat("watch remove ID", Who.OWNER, lambda _answer, _who: _("I do not look at it any more."))],
)
async def remove_watch(context: OperationContext, id: JobId) -> dict[str, Any]:
    """Stop watching something."""
    from gateway.proactive.jobs.job_service import is_watch

    job = await _plan(context).plans.job(id.strip().lower())
    if job is None or not is_watch(job):
        shown = "!watch" if context.caller is not None else "squidbot watch list"
        raise NotFound(f"nothing is watched under the name {id!r}; `{shown}` lists what is")
    return await remove_job(context, id)


@operation(
    "cron remove",
    writes=True,
    needs=_NEEDS,
    render=lambda answer: f"{answer['id']} is removed",
    done="Removed.",
)
async def remove_job(context: OperationContext, id: JobId) -> dict[str, Any]:
    """Remove a job; a run in progress is not interrupted."""
    job = await _job(context, id)
    return {"id": job.id, "changed": await _plan(context).service.remove(job)}


@operation("cron pause", writes=True, needs=_NEEDS, render=_job_text, done="Paused.")
async def pause_job(context: OperationContext, id: JobId) -> dict[str, Any]:
    """Pause a job."""
    return await _paused(context, id, paused=True)


@operation("cron resume", writes=True, needs=_NEEDS, render=_job_text, done="Resumed.")
async def resume_job(context: OperationContext, id: JobId) -> dict[str, Any]:
    """Resume a paused job; runs that fell due during the pause are skipped."""
    return await _paused(context, id, paused=False)


def _started_text(answer: Mapping[str, Any]) -> str:
    return f"{answer['id']} {'runs now' if answer['running'] else 'runs at the next start of squidbot'}"


@operation("cron run", writes=True, needs=_NEEDS, render=_started_text, done="It runs now.")
async def run_job(context: OperationContext, id: JobId) -> dict[str, Any]:
    """Run a job now, in addition to its schedule."""
    from gateway.proactive.jobs.scheduler import job_message
    from gateway.store.stores import Pending

    planned, job = _plan(context), await _job(context, id)
    now = planned.clock.now()
    instant = now.replace(microsecond=now.microsecond // 1000 * 1000)
    message = job_message(job, instant, late=False, forced=True)
    pending = Pending(message, session=planned.conversations.conversation_for(message))
    rows = await context.store.inbox.accept(message.channel, message.account, [pending], {})
    return {"id": job.id, "inbox": rows[0].id if rows else None, "running": planned.running}


async def _paused(context: OperationContext, job_id: str, *, paused: bool) -> dict[str, Any]:
    from gateway.proactive.jobs.triggers import TriggerInvalid
    from gateway.store.model import JobState

    planned, job = _plan(context), await _job(context, job_id)
    if job.state is JobState.DONE:
        raise RequestInvalid(f"{job.id} was to run once, and has run")
    try:
        changed = await planned.service.set_paused(job, paused=paused)
    except TriggerInvalid as error:
        raise RequestInvalid(f"{job.id} cannot be resumed: {error}") from error
    return {"job": _job_row(planned, changed or job)}


async def _job(context: OperationContext, job_id: str) -> Job:
    job = await _plan(context).plans.job(job_id.strip().lower())
    if job is None:
        raise NotFound(f"there is no job {job_id!r}; `squidbot cron list` lists the jobs")
    return job


async def _place_of(context: OperationContext, session: SessionKey) -> JobPlace:
    from agent_core.messages import Audience
    from gateway.proactive.jobs.job_service import JobPlace

    rows = await context.store.inbox.rows(session=session, limit=50)
    said = next((row.message for row in rows if row.message.kind == "message"), None)
    if said is None or not said.sender.address:
        raise NotFound(f"{session} has no recent messages; `squidbot sessions list` lists the sessions")
    person = said.sender.address
    if said.audience is Audience.GROUP:
        speakers = [row.message.sender.address for row in rows]
        person = next((address for address in speakers if _is_owner(context, address)), person)
    owner = _plan(context).owner if _is_owner(context, person) else ()
    return JobPlace(session, said.account, person, said.audience, said.context, persons=owner)


def _is_owner(context: OperationContext, address: str) -> bool:
    return address in _plan(context).owner


async def owner_place(context: OperationContext) -> JobPlace:
    """The place where the owner is told of jobs. Raises RequestInvalid: there is none yet."""
    from gateway.proactive.jobs.job_service import JobPlace

    planned = _plan(context)
    reached = await planned.target.reach(topic=f"job {planned.clock.now().isoformat()}")
    # At rest no channel can be asked who else reads there; the daemon asks before it writes.
    target = reached.target or (None if planned.running else await planned.target.get())
    if target is None:
        raise RequestInvalid(
            f"{reached.why}; write to me directly first, set agents.heartbeat.target, or name a "
            "conversation with --session"
        )
    person = target.person or next(iter(planned.owner), "")
    return JobPlace(target.session, target.account, person, persons=planned.owner)


@operation("heartbeat log", writes=False, render=schedule_text.ledger)
async def show_log(context: OperationContext, *, limit: int = 30, jobs: bool = False) -> dict[str, Any]:
    """
    Show when check-ins ran or were skipped, why, their cost, and whether they sent anything.

    Args:
        limit: Maximum number of lines.
        jobs: Include job runs.
    """
    planned = _plan(context)
    entries = await planned.plans.ledger(limit=capped_limit(limit) if jobs else 1000)
    shown = [entry for entry in entries if jobs or not entry.name.startswith("job:")]
    following = planned.heartbeat and planned.heartbeat.schedule.next_run(planned.clock.now())
    return {
        "entries": [_entry_row(planned, entry) for entry in shown[: capped_limit(limit)]],
        "next": following and _local_time(following, planned.zone),
    }


@operation(
    "heartbeat now",
    writes=True,
    render=schedule_text.tick,
    fails=lambda answer: answer["outcome"] == "failed",
    done="The check-in has run.",
)
async def check_in(context: OperationContext, *, dry_run: bool = False) -> dict[str, Any]:
    """
    Run a check-in now, at any hour, and show its result.

    Args:
        dry_run: Show what would be asked, and why; call no model and send nothing.
    """
    from channels.base import ChannelError
    from channels.heartbeat.tick_schedule import tick_name

    planned = _plan(context)
    heartbeat = planned.heartbeat
    if heartbeat is None:
        raise NeedsDaemon("no heartbeat is running; start the daemon with the heartbeat enabled")
    if dry_run:
        return await _dry_run(planned, heartbeat)
    try:
        instant, found = await heartbeat.now()
    except ChannelError as error:
        raise RequestInvalid(str(error)) from error
    if not found.text:
        return {"at": tick_name(instant), "outcome": "skipped", "reason": found.reason, "tokens": 0}
    entry = await _outcome(planned, heartbeat.name, instant)
    if entry is None:
        return {"at": tick_name(instant), "outcome": "running", "reason": "", "tokens": 0}
    return _entry_row(planned, entry)


async def _dry_run(planned: PlannedJob, heartbeat: HeartbeatChannel) -> dict[str, Any]:
    from channels.heartbeat.tick_schedule import tick_name

    now = planned.clock.now()
    found, following = await heartbeat.preview_tick(now), heartbeat.schedule.next_run(now)
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


async def _outcome(planned: PlannedJob, name: str, instant: datetime) -> LedgerEntry | None:
    import anyio

    with anyio.move_on_after(50.0):
        while True:
            for entry in await planned.plans.ledger(name=name, limit=5):
                if entry.instant <= instant <= (entry.until or entry.instant):
                    return entry
            await anyio.sleep(_CHECK_EVERY_S)
    return None


def _job_row(planned: PlannedJob, job: Job) -> dict[str, Any]:
    from gateway.proactive.jobs.job_service import is_watch

    return {
        "id": job.id,
        "state": job.state.value,
        "kind": "watch" if is_watch(job) else job.kind.value,
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
