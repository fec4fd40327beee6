"""
Waits until jobs are due and puts them into the inbox. A due job becomes a row ``job:ID:INSTANT`` before its
next instant is set, so that it is taken once whatever is killed or the clock does. Of missed instants the
newest runs. A job whose person may not speak is skipped with a note; one of a disabled channel waits. Waits
are short, because timers stop while a machine sleeps.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import anyio
import anyio.lowlevel
import structlog

from agent_core.backoff import BackoffPolicy
from agent_core.messages import InboundMessage, JobNote, Sender
from agent_core.ports import Clock
from agent_core.prompt import background_text
from agent_core.provenance import Origin, from_json, join_origins, to_json, untrusted_origin
from channels.base import Channel, ChannelUnavailable
from gateway.proactive.jobs.config import ScheduleConfig
from gateway.proactive.jobs.job_permissions import BOT_HAS_LEFT, PlaceUnknown, current_role, has_bot_left
from gateway.proactive.jobs.triggers import (
    LATEST_TIME,
    AddressWatch,
    Hook,
    Once,
    Timing,
    TriggerInvalid,
    newest_due,
    next_after,
    parse_timing,
)
from gateway.proactive.run_ledger import ledger_name
from gateway.routing.access import Role
from gateway.routing.conversations import Conversations
from gateway.store.model import Job, JobKind, JobState, LedgerEntry, RunOutcome
from gateway.store.stores import JobStore, Pending, Queue, StoreUnavailable
from gateway.store.wakeups import Wakeups

NOT_ALLOWED = "its person may no longer talk to me"
UNREADABLE = "its trigger cannot be read"
_CHECK_EVERY_S = 30.0
_AT_ONCE = 50
_ALL_EVERY = timedelta(minutes=10)
_STORE_RETRY = BackoffPolicy(first_s=1.0, cap_s=60.0)
_MICROSECOND = timedelta(microseconds=1)
_log = structlog.get_logger(__name__)


@dataclass(eq=False, kw_only=True)
class Scheduler:
    """
    Puts due jobs into the inbox.

    ``conversations`` find a job's session; ``wakeups`` report earlier jobs and restored links; ``look`` is
    called for a due job that watches something.
    """

    plans: JobStore
    store: Queue
    conversations: Conversations
    channels: Mapping[str, Channel]
    config: ScheduleConfig
    clock: Clock
    wakeups: Wakeups
    look: Callable[[Job, AddressWatch, datetime], None]

    def __post_init__(self) -> None:
        self._access = self.conversations.access
        self._news = anyio.Event()
        self._failures = 0
        self._clock_is_wrong = False
        self._looked_at: datetime | None = None
        self._all_again_at = LATEST_TIME
        for news in (self.wakeups.jobs, self.wakeups.link):
            news.connect(lambda _: self._news.set())

    async def run(self) -> None:
        """Work until cancelled; nothing that fails comes out of here."""
        while True:
            self._news = anyio.Event()
            try:
                wait_s = await self.fire_due()
                self._failures = 0
            except StoreUnavailable as error:
                self._failures += 1
                wait_s = _STORE_RETRY.delay(self._failures, random=random.random())
                _log.error("schedule.blocked", error=str(error), retry_in_s=round(wait_s, 1))
            async with anyio.create_task_group() as waiting:
                waiting.start_soon(self._end_with, waiting.cancel_scope, wait_s)
                await self._news.wait()
                waiting.cancel_scope.cancel()

    async def _end_with(self, scope: anyio.CancelScope, wait_s: float) -> None:
        await anyio.sleep(wait_s)
        scope.cancel()

    async def fire_due(self) -> float:
        """Put due jobs into the inbox; return the seconds until the next check. Raises StoreUnavailable."""
        now = self.clock.now()
        if now >= LATEST_TIME:
            # Nothing would ever be due again, and so every job would be done with for good.
            if not self._clock_is_wrong:
                _log.error("schedule.clock_wrong", now=now.isoformat())
            self._clock_is_wrong, self._looked_at = True, now
            return _CHECK_EVERY_S
        self._clock_is_wrong = False
        wait_s = _CHECK_EVERY_S
        # Only a clock that was set back makes those interesting that wait for a later time.
        # Now and then all are looked at, whatever there may be to find.
        if self._looked_at is None or now < self._looked_at or now >= self._all_again_at:
            jobs, self._all_again_at = await self.plans.jobs(), now + _ALL_EVERY
        else:
            jobs = await self.plans.jobs(until=now + timedelta(seconds=2 * _CHECK_EVERY_S))
        for number, job in enumerate(jobs):
            if job.state is JobState.PAUSED and job.note == BOT_HAS_LEFT:
                await self._resume(job, now)
            if job.state is not JobState.ACTIVE or job.next_at is None:
                continue
            if number % _AT_ONCE == _AT_ONCE - 1:
                await anyio.lowlevel.checkpoint()  # let others have their turn
            starts_at = await self._look_at(job, now)
            if starts_at is not None:
                wait_s = min(wait_s, (starts_at - self.clock.now()).total_seconds())
        self._looked_at = now
        return max(wait_s, 0.02)

    async def take_report(self, hook: str, delivery: str, text: str) -> int:
        """
        Store a webhook's report for each job that waits for it, once per ``delivery``; return their number.

        Raises StoreUnavailable.
        """
        timing, now = str(Hook(hook)), self.clock.now()
        jobs = [
            job
            for job in await self.plans.jobs()
            if job.timing == timing and job.state is JobState.ACTIVE and job.session.channel in self.channels
        ]
        for job in jobs:
            origin = untrusted_origin("hook", f"the webhook {hook}")
            message = report_message(job, f"hook:{delivery}", text, now, origin)
            pending = Pending(message, session=self.conversations.conversation_for(message))
            await self.store.inbox.accept(message.channel, message.account, [pending], {})
        return len(jobs)

    async def _resume(self, job: Job, now: datetime) -> None:
        """Resume a job for which the bot is back in its conversation."""
        channel = self.channels.get(job.session.channel)
        with suppress(PlaceUnknown, TriggerInvalid):
            if channel is not None and not await has_bot_left(channel, job.session):
                await self.plans.set_job_state(
                    job.id, JobState.ACTIVE, next_after(parse_timing(job.timing), now)
                )
                _log.info("job.resumed", job=job.id, channel=job.session.channel)

    async def _look_at(self, job: Job, now: datetime) -> datetime | None:
        """Start a job if it is due. Returns when to look at it again; None: not because of it."""
        try:
            timing = parse_timing(job.timing)
        except TriggerInvalid as error:
            if job.note != UNREADABLE:
                _log.error("job.unreadable", job=job.id, error=str(error))
                seen = job.last_at or job.created_at
                await self.plans.record_run(job.id, job.revision, seen, job.next_at, note=UNREADABLE)
            return None
        waited_for = job.next_at or now
        first = next_after(timing, now)
        if first is not None and first < waited_for and waited_for > now:
            # It was written when the clock showed a later time.
            await self.plans.set_job_state(job.id, job.state, first)
            _log.info("job.set_back", job=job.id)
            return first
        instant = newest_due(timing, waited_for - _MICROSECOND, now)
        if instant is None:
            return waited_for + self._jitter(job, timing, waited_for)
        starts_at = instant + self._jitter(job, timing, instant)
        if starts_at > now:
            return starts_at
        try:
            await self._start(job, timing, instant, now)
        except ChannelUnavailable:
            return None  # its channel is switched off, or cannot say yet whether its person may speak there
        following = next_after(timing, max(instant, now))
        return None if following is None else following + self._jitter(job, timing, following)

    async def _start(self, job: Job, timing: Timing, instant: datetime, now: datetime) -> None:
        following = next_after(timing, max(instant, now))
        due_at = instant + self._jitter(job, timing, instant)
        late = now - due_at > timedelta(minutes=self.config.misfire_grace_minutes)
        message = job_message(job, instant, late=late and self.config.misfire == "say")
        channel = self.channels.get(job.session.channel)
        if channel is None:
            raise ChannelUnavailable("it is switched off")
        role = current_role(self._access, channel, message)
        is_owners = isinstance(timing, AddressWatch) and timing.is_owners
        if role is Role.STRANGER or (is_owners and role is not Role.OWNER):
            entry = LedgerEntry(ledger_name(job.id), instant, RunOutcome.SKIPPED, NOT_ALLOWED)
            await self.plans.note(entry)
            _log.warning("job.not_allowed", job=job.id, channel=job.session.channel)
            await self.plans.record_run(job.id, job.revision, instant, following, note=NOT_ALLOWED)
            return
        if isinstance(timing, AddressWatch):
            self.look(job, timing, instant)
            return
        pending = Pending(message, session=self.conversations.conversation_for(message))
        rows = await self.store.inbox.accept(message.channel, message.account, [pending], {})
        if rows:
            _log.info("job.due", job=job.id, kind=job.kind.value, inbox=rows[0].id, late=late)
        if not await self.plans.record_run(job.id, job.revision, instant, following):
            self._news.set()  # a person has changed it meanwhile: what they want now counts

    def _jitter(self, job: Job, timing: Timing, instant: datetime) -> timedelta:
        """Return a run's jitter, stable over restarts and at most half the time to the next run."""
        if job.kind is JobKind.REMIND or isinstance(timing, Once) or not self.config.jitter_seconds:
            return timedelta(0)
        longest = timedelta(seconds=self.config.jitter_seconds)
        following = next_after(timing, instant)
        if following is not None:
            longest = min(longest, (following - instant) / 2)
        digest = hashlib.sha256(job_name(job.id, instant).encode()).digest()
        return longest * (int.from_bytes(digest[:4]) / 2**32)


def job_message(job: Job, instant: datetime, *, late: bool, forced: bool = False) -> InboundMessage:
    """The inbox row of a due job, the same for the same instant; ``forced``: a person runs it now."""
    notes = job.context.notes
    note = JobNote(id=job.id, kind=job.kind.value, late=late, forced=forced, origins=notes.origins)
    return InboundMessage(
        channel=job.session.channel,
        account=job.account,
        native_id=job_name(job.id, instant),
        session=job.session,
        sender=Sender(address=job.person, verified=True),
        text=job.text,
        received_at=instant,
        audience=job.audience,
        kind="job",
        context=replace(job.context, notes=replace(notes, origins=None, job=note)),
    )


def report_message(job: Job, delivery: str, text: str, now: datetime, theirs: Origin) -> InboundMessage:
    """The inbox row of a job that a webhook or a watch starts: ``text`` came with ``delivery`` from there."""
    message = job_message(job, now, late=False)
    notes = message.context.notes
    origins = join_origins(from_json(job.context.notes.origins), [theirs])
    note = JobNote(id=job.id, kind=job.kind.value, report=True, origins=to_json(origins))
    said = f"{job.text}\n\n{text}".lstrip()
    if job.kind is JobKind.ASK:
        said = f"{background_text([('forwarded', theirs.where, '', text)])}\n\n{job.text}"
    return message.model_copy(
        update={
            "native_id": f"job:{job.id}:report:{hashlib.sha256(delivery.encode()).hexdigest()[:32]}",
            "text": said,
            "context": replace(message.context, notes=replace(notes, job=note)),
        }
    )


def job_name(job_id: str, instant: datetime) -> str:
    """The permanent name of a run."""
    at = instant.isoformat(timespec="milliseconds" if instant.microsecond else "seconds")
    return f"job:{job_id}:{at.replace('+00:00', 'Z')}"
