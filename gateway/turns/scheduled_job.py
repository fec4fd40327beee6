"""
Running a due job: in the conversation that it was wished for in, for the person who wished it.

A reminder is its text and nothing else; no model is asked, and in a shared room it says for whom it is, so
that nobody lets the bot say things in its own name. A question is asked of the model in that session, with
its history, its scope and its tools; only jobs cannot be made from it. Before it runs it is looked at once
more: a job that was removed or paused while its row waited, or whose person may not speak any more, is
skipped; one that a person wants run at this moment runs although it is paused.

What was wished for in private is not said where somebody else has come in since: a reminder goes to the
person's direct conversation instead, and a question is paused, which the person is told there, once. What
had to wait for longer than its interval is merged into the newest run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import structlog

from agent_core.messages import Attachment, Audience, OutboundKind, SessionKey
from agent_core.models import Message, Purpose, TurnResult
from agent_core.ports import Clock
from channels.base import Channel, ChannelError, ChannelUnavailable, SupportsDirectMessages
from gateway.proactive.jobs.permissions import PlaceUnknown, is_overheard, role_now
from gateway.proactive.jobs.scheduler import NOT_ALLOWED, ledger_name
from gateway.queue.model import Entry, Job, JobKind, JobState
from gateway.queue.ports import Completion, NewOutbound, PlanStore, Turn
from gateway.routing.access import Access, Role
from gateway.routing.delivery import parcels
from gateway.turns.retry_policy import Failure

__all__ = ["OVERHEARD", "JobRun", "JobRuns"]

MERGED = "merged into its next run, which waits already"
OVERHEARD = "somebody else can read along where it was made, or its person is not there any more"
_ASK_LIMIT_S = 30.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class JobRun:
    """How a job is run: not at all, by saying ``reply``, or by asking ``prompt``."""

    skip: str = ""
    reply: str | None = None
    prompt: str | None = None


class JobRuns:
    """
    What is particular about the turns of jobs.

    Args:
        plans: The jobs.
        access: Who may still speak.
        channels: All channels by name.
        told_time: An instant, as people read it.
        clock: The time.
        begun: Whether a turn has done something already.
    """

    def __init__(
        self,
        *,
        plans: PlanStore,
        access: Access,
        channels: Mapping[str, Channel],
        told_time: Callable[[Any], str],
        clock: Clock,
        begun: Callable[[Turn], Awaitable[bool]],
    ) -> None:
        self._plans = plans
        self._access = access
        self._channels = channels
        self._told_time = told_time
        self._clock = clock
        self._begun = begun

    def name_of(self, turn: Turn) -> str:
        """Under which name it is in the ledger."""
        return ledger_name(_id_of(turn))

    async def plan(self, turn: Turn) -> JobRun:
        """
        Whether and how to run it.

        Raises:
            StoreUnavailable: Not now.
            PlaceUnknown: It cannot be said now who would read it.
        """
        message = turn.head.message
        channel = self._channels.get(turn.session.channel)
        job = await self._plans.job(_id_of(turn))
        if job is None or (why_not := await self._why_not(turn, job, channel)):
            return JobRun(skip="it was removed" if job is None else why_not)
        late = ""
        if _note_of(turn).get("late"):
            late = f"(This was due on {self._told_time(message.received_at)} and comes late.)"
        if _note_of(turn).get("kind") == JobKind.REMIND:
            said = f"{message.text}\n\n{late}" if late else message.text
            if await is_overheard(channel, message):
                return await self._elsewhere(turn, said)
            shared = message.audience is Audience.GROUP
            return JobRun(reply=f"For {message.sender.address}: {said}" if shared else said)
        if await is_overheard(channel, message):
            return await self._paused(turn, job)
        prompt = (
            f"[This is the scheduled job {job.id} of {message.sender.address}, made on "
            f"{self._told_time(job.created_at)}; nobody wrote it at this moment. Do what it says now; your "
            f"answer is sent.]{f' {late}' if late else ''}\n{message.text}"
        )
        return JobRun(prompt=prompt)

    async def _why_not(self, turn: Turn, job: Job, channel: Channel | None) -> str:
        forced = bool(_note_of(turn).get("forced"))
        if job.state is JobState.PAUSED and not forced:
            return "it was paused"
        # What waited for a model for a day comes once, and not once for each hour.
        newer = job.last_at is not None and turn.head.message.received_at < job.last_at <= self._clock.now()
        if newer and not forced and not await self._begun(turn):
            return MERGED
        try:
            role = role_now(self._access, channel, turn.head.message)
        except ChannelUnavailable as error:
            raise PlaceUnknown(str(error)) from error
        return NOT_ALLOWED if role is Role.STRANGER else ""

    async def _elsewhere(self, turn: Turn, text: str) -> JobRun:
        """Say it in the person's direct conversation instead, once."""
        channel = self._channels[turn.session.channel]
        session = await self._direct(channel, turn)
        if session is None:
            return JobRun(skip=OVERHEARD)
        notes = [
            NewOutbound(channel.name, channel.account, session, part, OutboundKind.ALERT)
            for part, _ in parcels(text, (), channel.capabilities)
        ]
        await self._plans.post_planned(f"job {_id_of(turn)} elsewhere", turn.head.message.native_id, notes)
        _log.info("job.moved", job=_id_of(turn), channel=channel.name)
        return JobRun(skip=f"said in the direct conversation: {OVERHEARD}")

    async def _paused(self, turn: Turn, job: Job) -> JobRun:
        """Pause it, and say so in the person's direct conversation."""
        about = " ".join(job.text.split())[:80]
        again = job.state is JobState.ACTIVE
        rest = " It is paused; resume it when you are alone there again." if again else ""
        text = f"The scheduled job {job.id} (“{about}”) was not done: {OVERHEARD}.{rest}"
        await self._elsewhere(turn, text)
        if again:
            await self._plans.set_job_state(job.id, JobState.PAUSED, job.next_at)
        return JobRun(skip=OVERHEARD)

    async def _direct(self, channel: Channel, turn: Turn) -> SessionKey | None:
        if not isinstance(channel, SupportsDirectMessages):
            return None
        try:
            with anyio.fail_after(_ASK_LIMIT_S):
                return await channel.direct_session(turn.head.message.sender.address)
        except (ChannelUnavailable, TimeoutError) as error:
            raise PlaceUnknown("the direct conversation cannot be found now") from error
        except ChannelError as error:
            _log.warning("job.not_moved", job=_id_of(turn), error=str(error))
            return None

    def completion(self, turn: Turn, result: TurnResult, entry: Entry, *, hold: bool) -> Completion:
        """What is committed for a job that has run."""
        asked = _note_of(turn).get("kind") != JobKind.REMIND
        return Completion(
            outbound=self._outbound(turn, result.reply, attachments=result.attachments, hold=hold),
            history=[
                _scheduled(line, turn) if line.role == "user" else line
                for line in result.history
                if asked or line.role != "user"
            ],
            usage=result.usage,
            purpose=Purpose.JOB,
            entry=entry,
        )

    def failed(self, turn: Turn, failure: Failure, entry: Entry) -> Completion:
        """What is committed for a job that failed for good: whoever wished it is told."""
        if turn.session.channel not in self._channels:
            return Completion(purpose=Purpose.JOB, entry=entry)
        text = f"Sorry, the scheduled job {_id_of(turn)} could not be done. {failure.public}"
        return Completion(outbound=self._outbound(turn, text), purpose=Purpose.JOB, entry=entry)

    def notice(self, turn: Turn, text: str) -> list[NewOutbound]:
        """A word on a job to whoever wished it, where it would answer."""
        return self._outbound(turn, text) if turn.session.channel in self._channels else []

    def _outbound(
        self, turn: Turn, text: str, *, attachments: Sequence[Attachment] = (), hold: bool = False
    ) -> list[NewOutbound]:
        message = turn.head.message
        context = {**message.context, "job": _id_of(turn)}
        kind = OutboundKind.REPLY
        if len(context) == 1:
            # Made on the command line: it answers no message, and in private it is for one person's eyes.
            kind = OutboundKind.ALERT if message.audience is Audience.DIRECT else OutboundKind.NOTICE
        return [
            NewOutbound(
                turn.session.channel,
                message.account,
                turn.session,
                part,
                kind,
                context,
                attachments=files,
                hold=hold,
            )
            for part, files in parcels(text, attachments, self._channels[turn.session.channel].capabilities)
        ]


def _note_of(turn: Turn) -> Mapping[str, Any]:
    note = turn.head.message.context.get("job")
    return note if isinstance(note, Mapping) else {}


def _id_of(turn: Turn) -> str:
    return str(_note_of(turn).get("id") or turn.head.message.native_id)


def _scheduled(line: Message, turn: Turn) -> Message:
    """A line of the question that says that nobody wrote it at this moment."""
    return line.model_copy(update={"content": f"[scheduled job {_id_of(turn)}] {line.content}"})
