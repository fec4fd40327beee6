"""
Creates, lists and changes scheduled jobs: for a model on behalf of its person, and for the operator. A person
sees and changes their own jobs only, and in a shared room only those of this room, which everybody there may
list: what somebody has planned in private is nobody else's business. A run of a job, and a check-in, cannot
make jobs: what was asked once by a person must not multiply by itself.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import Any, TypeVar

import structlog
from pydantic import JsonValue

from agent_core.errors import ToolDenied, ToolFailed, ToolRetry
from agent_core.language import _, gettext_noop, list_of, show_time
from agent_core.memory.scopes import room_of
from agent_core.messages import EVERYBODY, Audience, MessageContext, SessionKey
from agent_core.ports import Clock
from agent_core.provenance import Origins, from_json, join_origins, origins_of_call, person, to_json
from agent_core.text import one_line
from channels.base import ChannelUnavailable
from gateway.proactive.jobs.config import ScheduleConfig
from gateway.proactive.jobs.trigger_parsing import TriggerRequest, format_timing, parse_request, request_of
from gateway.proactive.jobs.triggers import (
    AddressWatch,
    Cron,
    Hook,
    Interval,
    Timing,
    TriggerInvalid,
    count_within,
    next_after,
    parse_timing,
    zone_of,
)
from gateway.routing.conversations import addresses_for
from gateway.store.background_job_rows import BackgroundJob
from gateway.store.model import Job, JobKind, JobState
from gateway.store.store_errors import TooManyJobs
from gateway.store.stores import JobStore, StoreUnavailable

_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"
_ID_LENGTH = 5
_DAY = timedelta(days=1)
MAX_MENTIONED = 10
"""Only a moderator can have more people notified in a room: all of them."""
EVERYBODY_HERE = frozenset({"all", "all of us", "everybody", "everyone", "us", "alle", "uns"})
_BETWEEN = re.compile(r",|&|;|\band\b", re.IGNORECASE)
_NO_MARKS = dict.fromkeys(map(ord, "[]<>`“”"))
_CROWD = 10
"""The limit of all people whom one pattern admits, in multiples of one person's."""
_T = TypeVar("_T")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class JobPlace:
    """
    The person of a job, and where it answers.

    ``persons`` are all their addresses; ``context`` is the channel's note for answers; ``since``: when they
    joined a room with a closed past.
    """

    session: SessionKey
    account: str
    person: str
    audience: Audience = Audience.DIRECT
    context: MessageContext = field(default_factory=MessageContext)
    persons: Sequence[str] = ()
    since: datetime | None = None

    def shows(self, job: Job) -> bool:
        """Return True if a job may be listed here: it is this person's, or of this shared room."""
        is_shared = Audience.DIRECT not in (self.audience, job.audience)
        return (is_shared and room_of(job.session) == room_of(self.session)) or self.owns(job)

    def owns(self, job: Job | BackgroundJob) -> bool:
        """Return True if a job is this person's and may be shown here."""
        # The same address on another account may be somebody else, unless it is known to be the owner.
        theirs = job.person in self.persons or (
            job.person == self.person and job.session.channel == self.session.channel
        )
        is_here = room_of(job.session) == room_of(self.session)
        return theirs and (self.audience is Audience.DIRECT or is_here)


def id_for(key: str, number: int = 0) -> str:
    """Return the id of the job of a key; a later ``number`` if another job has it by chance."""
    digest = hashlib.sha256(f"{key}\n{number}".encode()).digest()
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:_ID_LENGTH])


def is_watch(job: Job) -> bool:
    """Return True if a job looks at an address and says what is new there."""
    return job.timing.startswith("watch ")


def _made_of(job_id: str) -> JsonValue:
    """
    Return the origins of the job being made, for its notes; None if only the owner's.

    The entry names the job instead of people, so that forgetting a person leaves no trace in it.
    """
    behind = (each.model_copy(update={"where": f"behind the job {job_id}"}) for each in origins_of_call())
    return to_json(join_origins(behind)) or None


@dataclass(eq=False)
class JobService:
    """
    Adds, lists and changes jobs.

    ``zone`` is the default zone; ``crowd`` returns the server group of a person not allowed by name;
    ``people`` returns a conversation's people and raises `ChannelUnavailable`; ``room_name`` names its
    room.
    """

    plans: JobStore
    config: ScheduleConfig
    _: KW_ONLY
    zone: str
    clock: Clock
    crowd: Callable[[str, str], str] = lambda _channel, _address: ""
    people: Callable[[SessionKey], Awaitable[Mapping[str, str]]] | None = None
    room_name: Callable[[SessionKey], str] = lambda _: ""

    @property
    def is_enabled(self) -> bool:
        """Return True if jobs run at all."""
        return self.config.enabled

    def parse(self, request: TriggerRequest, now: datetime | None = None) -> Timing:
        """Return the trigger of a request by the settings. Raises TriggerInvalid."""
        shortest = timedelta(minutes=self.config.min_interval_minutes)
        return parse_request(request, now or self.clock.now(), zone=self.zone, min_interval=shortest)

    async def add(
        self,
        place: JobPlace,
        request: TriggerRequest,
        *,
        text: str,
        kind: JobKind,
        key: str = "",
        whom: str = "",
        paused: bool = False,
    ) -> Job:
        """Add a job once per ``key``, for ``whom``. Raises TriggerInvalid, TooManyJobs, StoreUnavailable."""
        job_id = await self._id_of(place, key, text)
        if key and (kept := await self.plans.job(job_id)) is not None:
            return kept
        now, timing = self.clock.now(), await self.check_timing(place, request)
        if isinstance(timing, AddressWatch):
            await self._check_watched(place, timing, (kind, text))
        mentions = await self.mentioned_addresses(place, whom)
        job = Job(
            id=job_id,
            kind=kind,
            text=text,
            timing=str(timing),
            session=place.session,
            account=place.account,
            person=place.person,
            created_at=now,
            audience=place.audience,
            # Whose words the job itself is made of is known better than whose the message was.
            context=replace(
                place.context,
                others_words=False,
                notes=replace(place.context.notes, origins=_made_of(job_id), mentions=tuple(mentions)),
            ),
            state=JobState.PAUSED if paused else JobState.ACTIVE,
            next_at=next_after(timing, now),
        )
        await self.plans.add_job(job, at_most=self.config.jobs_per_person, persons=place.persons)
        _log.info("job.added", job=job.id, kind=kind.value, channel=place.session.channel)
        return job

    async def _check_watched(self, place: JobPlace, timing: AddressWatch, said: tuple[JobKind, str]) -> None:
        """Raise TriggerInvalid if the person watches the same here already, or may not watch it."""
        if timing.is_owners and not place.persons:
            raise TriggerInvalid(_("only the owner can have that watched"))
        for job in await self.own_jobs(place):
            if job.session != place.session or (job.kind, job.text) != said or not is_watch(job):
                continue
            known = parse_timing(job.timing)
            if isinstance(known, AddressWatch) and (known.address, known.part) == (
                timing.address,
                timing.part,
            ):
                raise TriggerInvalid(_("I watch that already: {job}", job=self.describe(job, words=False)))

    async def mentioned_addresses(self, place: JobPlace, whom: str) -> list[str]:
        """Return the named people's addresses, or `EVERYBODY`; empty: the person. Raises `TriggerInvalid`."""
        wanted = [part for each in _BETWEEN.split(whom) if (part := each.strip())]
        nobody_else = {"me"} if place.audience is Audience.GROUP else {"me"} | EVERYBODY_HERE
        if {each.lower() for each in wanted} <= nobody_else:
            return []
        if place.audience is Audience.DIRECT or self.people is None:
            raise TriggerInvalid(_("it can be for others only in a room with them"))
        try:
            people = await self.people(place.session)
        except ChannelUnavailable as error:
            raise TriggerInvalid(_("I cannot see now who is here; ask again in a moment")) from error
        found: dict[str, None] = {}
        for each in wanted:
            one = [place.person] if each.lower() == "me" else []
            found |= dict.fromkeys(
                people if each.lower() in EVERYBODY_HERE else one or [_the_one(each, people)]
            )
        if len(found) <= MAX_MENTIONED:
            return [] if list(found) == [place.person] else list(found)
        if not place.context.moderator:
            raise TriggerInvalid(
                _(
                    "that is {n} people, and only a moderator can have so many notified; name at most {most}",
                    n=len(found),
                    most=MAX_MENTIONED,
                )
            )
        return [EVERYBODY]

    async def _id_of(self, place: JobPlace, key: str, text: str) -> str:
        """A new id; with a key that of its job, whose first free or own one it is."""
        if not key:
            return "".join(secrets.choice(_LETTERS) for _ in range(_ID_LENGTH))
        for number in count():
            job_id = id_for(key, number)
            kept = await self.plans.job(job_id)
            if kept is None or (kept.session, kept.text) == (place.session, text):
                return job_id
        raise AssertionError("unreachable")

    async def _check_guest(self, place: JobPlace, timing: Timing, now: datetime) -> None:
        """
        Check that jobs of a guest, and of all guests of one server, leave the bot time for others.

        The second limit exists because the owner of a domain has any number of addresses. Raises
        TriggerInvalid.
        """
        jobs = await self.plans.jobs()
        mine = [job for job in jobs if job.person == place.person]
        self._check_runs(mine, timing, now, limit=self.config.runs_per_day, whose=_("your jobs"))
        crowd = self.crowd(place.session.channel, place.person)
        if not crowd:
            return
        theirs = [job for job in jobs if self.crowd(job.session.channel, job.person) == crowd]
        whose = _("the jobs of the people at your server")
        if len(theirs) >= _CROWD * self.config.jobs_per_person:
            raise TriggerInvalid(
                _(
                    "{whose} have reached their limit of {n}",
                    whose=whose,
                    n=_CROWD * self.config.jobs_per_person,
                )
            )
        self._check_runs(theirs, timing, now, limit=_CROWD * self.config.runs_per_day, whose=whose)

    def _check_runs(
        self, jobs: Sequence[Job], timing: Timing, now: datetime, *, limit: int, whose: str
    ) -> None:
        runs = count_within(timing, now, _DAY, at_most=limit + 1) if limit else 0
        for job in jobs if limit else ():
            if runs <= limit:
                with suppress(TriggerInvalid):  # it does not run at all
                    runs += count_within(parse_timing(job.timing), now, _DAY, at_most=limit + 1)
        if runs > limit > 0:
            raise TriggerInvalid(
                _(
                    "{whose} would run more than {n} times a day together, which is the limit",
                    whose=whose,
                    n=limit,
                )
            )

    async def own_jobs(self, place: JobPlace) -> list[Job]:
        """The jobs that the person may change at a place."""
        return [job for job in await self.plans.jobs() if place.owns(job)]

    async def jobs_with_lines(self, place: JobPlace, *, for_model: bool = False) -> dict[str, Job]:
        """
        The jobs that may be listed at a place, each with its line; in a shared room those of everybody.

        A model is not told the names of rooms, which others choose.
        """
        jobs = [job for job in await self.plans.jobs() if place.shows(job)]
        return {self._line(job, place, for_model=for_model): job for job in jobs}

    def _line(self, job: Job, place: JobPlace, *, for_model: bool) -> str:
        if place.audience is Audience.DIRECT:
            name = "" if for_model else self.room_name(job.session)
            return f"{self.describe(job)}{_elsewhere(job, place, name)}"
        before = place.since is not None and job.created_at < place.since and not place.owns(job)
        private = job.audience is Audience.DIRECT  # made before others came in
        named = job.context.notes.mentions
        whom = _("everybody") if EVERYBODY in named else ", ".join(named)
        about = (
            _("for {whom}, from {person}", whom=whom, person=job.person)
            if named
            else _("for {person}", person=job.person)
        )
        return f"{self.describe(job, words=not (before or private))} ({about})"

    async def set_paused(self, job: Job, *, paused: bool) -> Job | None:
        """Pause or resume a job; missed runs are skipped. Raises TimingInvalid or StoreUnavailable."""
        state, next_at = JobState.PAUSED, job.next_at
        if not paused:
            timing = parse_timing(job.timing)
            next_at = next_after(timing, self.clock.now())
            is_over = next_at is None and not isinstance(timing, Hook)
            state = JobState.DONE if is_over else JobState.ACTIVE
        return await self.plans.set_job_state(job.id, state, next_at)

    async def check_timing(self, place: JobPlace, request: TriggerRequest) -> Timing:
        """Return the trigger of a request if the person may have it. Raises TriggerInvalid."""
        timing = self.parse(request)
        if not place.persons:
            await self._check_guest(place, timing, self.clock.now())
        return timing

    async def change_time(self, job_id: str, timing: str) -> Job | None:
        """Give a job another time; return it, None if there is none any more. Raises `StoreUnavailable`."""
        next_at = next_after(parse_timing(timing), self.clock.now())
        state = JobState.DONE if next_at is None else JobState.ACTIVE
        return await self.plans.set_job_state(job_id, state, next_at, timing=timing)

    async def remove(self, job: Job) -> bool:
        """Remove a job."""
        return await self.plans.remove_job(job.id)

    def describe(self, job: Job, *, words: bool = True) -> str:
        """A job in one line, with or without its words."""
        paused = _("paused, ") if job.state is JobState.PAUSED else ""
        note = f" [{_(job.note)}]" if job.note else ""
        text = f": {one_line(job.text, 80)}" if words else ""
        kind = "" if is_watch(job) else f"{_(job.kind.value)} "
        return f"{job.id}: {paused}{kind}{self.timing_text(job)}{text}{note}"

    def timing_text(self, job: Job, *, is_new: bool = False) -> str:
        """Describe when a job runs; ``is_new`` adds the first run of one that repeats."""
        try:
            timing = parse_timing(job.timing)
        except TriggerInvalid:
            return job.timing
        told = format_timing(timing, self.zone)
        if not is_new or not isinstance(timing, Cron | Interval) or job.next_at is None:
            return told
        first = job.next_at.astimezone(zone_of(timing.zone if isinstance(timing, Cron) else self.zone))
        pattern = gettext_noop("%a %Y-%m-%d")
        if isinstance(timing, Interval):
            pattern = gettext_noop("%a %Y-%m-%d %H:%M %Z")
        return _("{when}, first on {time}", when=told, time=show_time(first, pattern))


def _the_one(name: str, people: Mapping[str, str]) -> str:
    """The address of whom a name means. Raises `TriggerInvalid`: nobody, or perhaps somebody else."""
    found = addresses_for(name, people)
    if len(found) == 1:
        return found[0]
    if found:
        raise TriggerInvalid(
            _(
                "{name} can be {people}; use the address",
                name=repr(one_line(name, 40)),
                people=list_of(found[:5], " or "),
            )
        )
    raise TriggerInvalid(_("I know nobody called {name} here", name=repr(one_line(name, 40))))


class SessionJobs:
    """Implements `agent_core.tools.schedule_tool.JobsPort` for one run; ``refusal`` forbids new jobs."""

    def __init__(self, service: JobService, place: JobPlace, *, refusal: str = "") -> None:
        self._service = service
        self._place = place
        self._refusal = refusal

    async def add(self, text: str, *, ask: bool, when: Mapping[str, Any], whom: str = "") -> tuple[str, str]:
        """Keep a job."""
        if self._refusal:
            raise ToolDenied(self._refusal)
        kind = JobKind.ASK if ask else JobKind.REMIND
        try:
            job = await self._service.add(self._place, request_of(when), text=text, kind=kind, whom=whom)
        except TriggerInvalid as error:
            raise ToolRetry(f"Nothing was scheduled: {error}.") from error
        except TooManyJobs as error:
            raise ToolDenied(error.public) from error
        except StoreUnavailable as error:
            raise ToolFailed("Nothing was scheduled: the disk accepts no writes now.") from error
        return f"Scheduled as {job.id}, {self._service.timing_text(job, is_new=True)}.", job.id

    def fixed_time(self, when: Mapping[str, Any]) -> str:
        """The trigger, unless it is another one a second later."""
        now = self._service.clock.now()
        try:
            timing, later = (
                str(self._service.parse(request_of(when), at)) for at in (now, now + timedelta(seconds=1))
            )
        except TriggerInvalid as error:
            raise ToolRetry(f"Nothing was scheduled: {error}.") from error
        return timing if timing == later else ""

    async def list_text(self) -> str:
        """The jobs, one per line."""
        return "\n".join(await self._shown()) or "There are no jobs."

    async def origins(self) -> Origins:
        """Return the origins of the listed jobs."""
        jobs = (await self._shown()).values()
        others = (person(job.person, job.created_at) for job in jobs if not self._place.owns(job))
        return join_origins(others, *(from_json(job.context.notes.origins) for job in jobs))

    async def change(self, job_id: str, action: str) -> str:
        """Remove, pause or resume one."""
        job = next((job for job in await self._jobs() if job.id == job_id.lower()), None)
        if job is None:
            raise ToolRetry(f"There is no job {job_id!r} here; action 'list' shows the ids.")
        try:
            if action == "remove":
                await self._service.remove(job)
                return f"{job.id} is removed."
            await self._service.set_paused(job, paused=action == "pause")
        except TriggerInvalid as error:
            raise ToolRetry(
                f"{job.id} cannot be resumed: {error}. Remove it and create another one."
            ) from error
        except StoreUnavailable as error:
            raise ToolFailed("Nothing was changed: the disk accepts no writes now.") from error
        return f"{job.id} is {'paused' if action == 'pause' else 'active again'}."

    async def _shown(self) -> dict[str, Job]:
        return await self._read(partial(self._service.jobs_with_lines, for_model=True))

    async def _jobs(self) -> list[Job]:
        return await self._read(self._service.own_jobs)

    async def _read(self, read: Callable[[JobPlace], Awaitable[_T]]) -> _T:
        try:
            return await read(self._place)
        except StoreUnavailable as error:
            raise ToolFailed("The jobs cannot be read now.") from error


def _elsewhere(job: Job, place: JobPlace, name: str) -> str:
    """Return the place where a job will be told, if that is not this one; ``name`` is its room's."""
    if job.session == place.session:
        return ""
    if job.audience is Audience.DIRECT:
        return _(" (comes in another conversation, by {channel})", channel=job.session.channel)
    called = one_line(name.translate(_NO_MARKS), 60)
    room = _("the room “{name}”", name=called) if called else _("another room")
    return _(" (comes in {room}, by {channel})", room=room, channel=job.session.channel)
