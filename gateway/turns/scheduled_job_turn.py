"""
The turn of a scheduled job that is due: in the conversation and for the person that it was made for. A
reminder is its text, in a room with its person's name, so that nobody speaks through the bot. A question is
asked with the session's history, scope and tools, except making jobs. Removed or paused jobs, and those of
people no longer allowed, are skipped. If others have joined or the bot has left, a reminder goes to the
person's direct conversation and a question is paused with a notice; `Scheduler` resumes it. Late runs merge
into the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from agent_core.errors import BudgetSpent
from agent_core.language import _, gettext_noop
from agent_core.memory.scopes import OWNER
from agent_core.messages import (
    EVERYBODY,
    Attachment,
    Audience,
    InboundMessage,
    JobNote,
    MessageContext,
    MessageNotes,
    OutboundKind,
)
from agent_core.models import Message, Purpose, TurnResult
from agent_core.text import one_line
from channels.base import Channel, ChannelUnavailable
from channels.split import message_parts
from gateway.budget.metering import UsageMeter
from gateway.proactive.jobs.job_permissions import (
    BOT_HAS_LEFT,
    PlaceUnknown,
    current_role,
    direct_conversation,
    has_bot_left,
    is_out_of_place,
)
from gateway.proactive.jobs.scheduler import NOT_ALLOWED
from gateway.proactive.owner_contact import Target
from gateway.proactive.owner_notifier import OwnerNotifier
from gateway.proactive.run_ledger import ledger_entry
from gateway.routing.access import Access, Role
from gateway.store.model import Job, JobKind, JobState, RunOutcome
from gateway.store.stores import Completion, NewOutbound, Turn
from gateway.turns.commands.new_conversation import NewConversation
from gateway.turns.commit import TurnCommit
from gateway.turns.failure_and_deferral import Deferral
from gateway.turns.questions.review_questions import ReviewQuestions
from gateway.turns.turn_kinds import Plan, TurnFailureText, TurnPolicy
from gateway.turns.user_input import session_of

MERGED = "merged into its next run, which is already waiting"
OVERHEARD = gettext_noop("somebody else can read along where it was created, or one of us is no longer there")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobPlan(Plan):
    """The plan of a job's question; ``began`` is on the monotonic clock."""

    began: float


@dataclass(eq=False, kw_only=True)
class JobTurns:
    """Implements `TurnKind` for due jobs; ``conversations`` resets where requested before."""

    turn_commit: TurnCommit
    deferral: Deferral
    conversations: NewConversation
    notifier: OwnerNotifier
    access: Access
    told_time: Callable[[Any], str]
    approvals: ReviewQuestions

    def __post_init__(self) -> None:
        self._store, self._channels = self.turn_commit.store, self.turn_commit.channels
        self._clock = self.deferral.clock

    async def plan(self, turn: Turn) -> _JobPlan | None:
        """Plan the question; None: a reminder, or ended. Raises StoreUnavailable or PlaceUnknown."""
        began = self._clock.monotonic()
        await self.conversations.begin(turn)
        message = turn.head.message
        channel = self._channels.get(turn.channel)
        job = await self._store.jobs.job(_id_of(turn))
        if job is None or (why_not := await self._why_not(turn, job, channel)):
            await self._skip(turn, "it was removed" if job is None else why_not)
            return None
        late = ""
        if _note_of(turn).late:
            late = _("(This was due on {time} and is late.)", time=self.told_time(message.received_at))
        is_moved = await is_out_of_place(channel, message)
        if _note_of(turn).kind == JobKind.REMIND:
            said = f"{message.text}\n\n{late}" if late else message.text
            if is_moved:
                await self._skip(turn, await self._moved(turn, job, said, channel))
            else:
                await self._remind(turn, said, began)
            return None
        if is_moved:
            await self._pause(turn, job, has_left_it=await has_bot_left(channel, message.session))
            await self._skip(turn, OVERHEARD)
            return None
        return _JobPlan(
            turn,
            Purpose.JOB,
            f"[This is the scheduled job {job.id} of {message.sender.address}, made on "
            f"{self.told_time(job.created_at)}; nobody wrote it at this moment. Do what it says now; your "
            f"answer is sent.]{f' {late}' if late else ''}\n{message.text}",
            hold=self.approvals.needs_review(turn),
            began=began,
        )

    async def _skip(self, turn: Turn, reason: str) -> None:
        _log.info("job.run_skipped", kind="job", reason=reason)
        entry = ledger_entry(_id_of(turn), turn, RunOutcome.SKIPPED, reason)
        await self.turn_commit.complete(turn, Completion(purpose=Purpose.JOB, entry=entry))

    async def _remind(self, turn: Turn, text: str, began: float) -> None:
        """Say a reminder, as if a model had said it."""
        message = turn.head.message
        said = (
            _("For {person}: {text}", person=_whom(message), text=text)
            if message.audience is Audience.GROUP
            else text
        )
        session = session_of(turn, self.access, Purpose.JOB)
        line = Message(
            role="assistant",
            content=said,
            id=f"{turn.id}.0",
            turn=turn.id,
            timestamp=self._clock.now(),
            scope=str(session.scope),
            origins=session.origins,
        )
        result = TurnResult(said, (line,))
        await self._end(turn, result, [line], hold=self.approvals.needs_review(turn), began=began)
        self.turn_commit.note_answer(turn, result, self._clock.monotonic() - began)

    async def _why_not(self, turn: Turn, job: Job, channel: Channel | None) -> str:
        note = _note_of(turn)
        if job.state is JobState.PAUSED and not note.forced:
            return "it was paused"
        # What waited for a model for a day comes once, and not once for each hour.
        newer = job.last_at is not None and turn.head.message.received_at < job.last_at <= self._clock.now()
        if newer and not (note.forced or note.report) and not await self._store.turns.steps(turn):
            return MERGED
        try:
            role = current_role(self.access, channel, turn.head.message)
        except ChannelUnavailable as error:
            raise PlaceUnknown(str(error)) from error
        return NOT_ALLOWED if role is Role.STRANGER else ""

    async def _elsewhere(self, turn: Turn, text: str) -> str:
        """Say it in the person's direct conversation instead, once; why it is not said here."""
        channel = self._channels[turn.channel]
        session = await direct_conversation(channel, turn.head.message.sender.address)
        if session is None:
            return OVERHEARD
        to = Target(channel.name, channel.account, session)
        once = (f"job {_id_of(turn)} elsewhere", turn.head.message.native_id)
        await self.notifier.post(to, text, once=once, kind=OutboundKind.ALERT)
        _log.info("job.moved", job=_id_of(turn), channel=channel.name)
        return f"said in the direct conversation: {OVERHEARD}"

    async def _moved(self, turn: Turn, job: Job, said: str, channel: Channel | None) -> str:
        """Say a reminder elsewhere; one that recurs waits from then on until the bot is back in its place."""
        message = turn.head.message
        waits = job.state is JobState.ACTIVE and await has_bot_left(channel, message.session)
        if message.notes.mentions:
            why = _("(I have told nobody else: I cannot speak where you asked for it.)")
            said = f"{_('For {person}: {text}', person=_whom(message), text=said)}\n\n{why}"
        if waits:
            said += _("\n\n(The reminder {id} is paused until I am back where you asked for it.)", id=job.id)
        reason = await self._elsewhere(turn, said)
        if waits:
            await self._store.jobs.set_job_state(job.id, JobState.PAUSED, job.next_at, note=BOT_HAS_LEFT)
        return reason

    async def _pause(self, turn: Turn, job: Job, *, has_left_it: bool) -> None:
        """Pause it, and say so in the person's direct conversation."""
        about = one_line(job.text, 80)
        again = job.state is JobState.ACTIVE
        until = (
            _(" It is paused until I am back there.")
            if has_left_it
            else _(" It is paused; resume it when you are alone there again.")
        )
        text = _(
            "The scheduled job {id} (“{about}”) was not done: {why}.{rest}",
            id=job.id,
            about=about,
            why=_(OVERHEARD),
            rest=until if again else "",
        )
        await self._elsewhere(turn, text)
        if again:
            note = BOT_HAS_LEFT if has_left_it else ""
            await self._store.jobs.set_job_state(job.id, JobState.PAUSED, job.next_at, note=note)

    async def commit(self, turn: Turn, plan: _JobPlan, result: TurnResult, meter: UsageMeter) -> None:
        """Commit the answer to a question."""
        history = [_scheduled(line, turn) if line.role == "user" else line for line in result.history]
        await self._end(turn, result, history, hold=plan.hold, began=plan.began, meter=meter)

    async def _end(
        self,
        turn: Turn,
        result: TurnResult,
        history: Sequence[Message],
        *,
        hold: bool,
        began: float,
        meter: UsageMeter | None = None,
    ) -> None:
        took_s = round(self._clock.monotonic() - began, 3)
        completion = Completion(
            outbound=self._outbound(turn, result.reply, attachments=result.attachments, hold=hold),
            history=history,
            usage=result.usage,
            purpose=Purpose.JOB,
            entry=ledger_entry(_id_of(turn), turn, RunOutcome.DELIVERED, usage=result.usage, took_s=took_s),
        )
        await self.turn_commit.complete(turn, completion, meter)

    async def defer_to_budget(self, turn: Turn, error: BudgetSpent) -> None:
        """Defer the job until the budget opens again, and notify its person once a day."""
        text, once = self.deferral.budget_text(error), None
        if session_of(turn, self.access, Purpose.JOB).scope == OWNER:
            text, once = self.deferral.owners_notice(error)
        await self.deferral.defer_to_budget(turn, error, self._notice(turn, text), once=once)

    async def report_failure(self, turn: Turn, failure: TurnFailureText) -> None:
        """Notify the person of the job."""
        _log.error("job.run_failed", kind="job", turn=turn.id, error=failure.error)
        text = _(
            "Sorry, the scheduled job {name} could not be done. {why}",
            name=_id_of(turn),
            why=_(failure.public),
        )
        completion = Completion(
            outbound=self._notice(turn, text),
            purpose=Purpose.JOB,
            entry=ledger_entry(_id_of(turn), turn, RunOutcome.FAILED, failure.error),
        )
        await self.turn_commit.complete(turn, completion)

    def policy(self, policy: TurnPolicy) -> TurnPolicy:
        """The default limits."""
        return policy

    def _notice(self, turn: Turn, text: str) -> list[NewOutbound]:
        return self._outbound(turn, text) if turn.channel in self._channels else []

    def _outbound(
        self, turn: Turn, text: str, *, attachments: Sequence[Attachment] = (), hold: bool = False
    ) -> list[NewOutbound]:
        message = turn.head.message
        mentions = message.notes.mentions
        notes = replace(message.notes, mentions=(), job=_note_of(turn))
        context, kind = replace(message.context, notes=notes), OutboundKind.REPLY
        if context == MessageContext(notes=MessageNotes(job=notes.job)):
            # Made on the command line: it answers no message, and in private it is for one person's eyes.
            kind = OutboundKind.ALERT if message.audience is Audience.DIRECT else OutboundKind.MESSAGE
        return [
            NewOutbound(
                turn.channel,
                message.account,
                turn.place,
                part,
                kind,
                context,
                attachments=files,
                hold=hold,
                rings_for=mentions or None,
            )
            for part, files in message_parts(text, attachments, self._channels[turn.channel].capabilities)
        ]


def _whom(message: InboundMessage) -> str:
    """Name the recipients of a reminder in a group, and its author if they differ."""
    person, mentions = message.sender.address, message.notes.mentions
    if not mentions:
        return person
    who = _("everybody") if EVERYBODY in mentions else ", ".join(mentions)
    return _("{who} (from {person})", who=who, person=person)


def _note_of(turn: Turn) -> JobNote:
    return turn.head.message.notes.job or JobNote(id=turn.head.message.native_id)


def _id_of(turn: Turn) -> str:
    return _note_of(turn).id or turn.head.message.native_id


def _scheduled(line: Message, turn: Turn) -> Message:
    """A line of the question that says that nobody wrote it at this moment."""
    return line.model_copy(update={"content": f"[scheduled job {_id_of(turn)}] {line.content}"})
