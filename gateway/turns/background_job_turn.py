"""
The turn of a background job: runs it, and reports the result once in the conversation that asked for it. The
job has a session, steps and limits of its own, after people's turns; person, rights and memory are the asking
conversation's as they are now. A command runs in the shell's sandbox and is never begun twice. Answer,
history line and end of the job are one transaction. If others can read now or the bot has left, the answer
goes to the person's direct conversation; a check-in's to the owner.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio
import structlog

from agent_core.agent import TurnLimits
from agent_core.errors import AgentError, BudgetSpent, CreditSpent
from agent_core.language import _
from agent_core.memory.scopes import OWNER
from agent_core.messages import (
    Attachment,
    Audience,
    InboundMessage,
    JobNote,
    MessageContext,
    MessageNotes,
    OutboundKind,
    SessionKey,
)
from agent_core.models import Message, Purpose, Session, TurnResult
from agent_core.provenance import Origins, arriving, describe, from_json, join_origins, to_json, use_origins
from agent_core.tools.effects import Effect
from channels.base import ChannelError, ChannelUnavailable
from channels.split import message_parts
from gateway.budget.metering import UsageMeter
from gateway.proactive.jobs.job_permissions import (
    PlaceUnknown,
    current_role,
    direct_conversation,
    is_out_of_place,
)
from gateway.proactive.jobs.scheduler import NOT_ALLOWED
from gateway.proactive.run_ledger import ledger_entry
from gateway.routing.access import Role
from gateway.routing.conversations import Conversations
from gateway.store.background_job_rows import Order, order_of
from gateway.store.model import BACKGROUND_COMMAND, EffectReceipt, RunOutcome
from gateway.store.stores import Completion, NewOutbound, Step, Turn
from gateway.turns.commit import TurnCommit
from gateway.turns.failure_and_deferral import Deferral, awaited_link
from gateway.turns.questions.question_text import fenced_arguments, safe_line
from gateway.turns.questions.review_questions import ReviewQuestions
from gateway.turns.turn_kinds import Plan, TurnFailureText, TurnPolicy
from gateway.turns.user_input import session_of, user_lines

_OUTAGE_S = 86_400.0
_UNDO = "by hand: changes by commands have no versions; the output is in work/jobs/{id}.log"
_SHOWN_CHARS = 1_500
"""Of the output of a command, two screens of a phone."""
_UNREADABLE = "its order is not readable"
_log = structlog.get_logger(__name__)


def _output_shown(text: str, job: str) -> str:
    """The result of a command for people: its output as it is, and of a long one both ends."""
    before, found, output = text.partition("<output>\n")
    if not found:
        return text
    output = output.removesuffix("\n</output>")
    shown = fenced_arguments({"": output}, _SHOWN_CHARS, hashed=False, indented=False)
    whole = (
        _("All of it is in the file `{name}`.", name=f"work/jobs/{job}.log")
        if len(output) > _SHOWN_CHARS
        else ""
    )
    return "\n\n".join(filter(None, [before.strip(), shown, whole]))


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundPlan(Plan):
    """The plan of a background job; ``began`` is on the monotonic clock."""

    order: Order
    began: float


class CommandsNotReady(AgentError):
    """I cannot run commands at the moment."""

    temporary = True


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """The result of a command, and whose words it may contain."""

    text: str
    origins: Origins = ()
    failed: bool = False


CommandRunner = Callable[
    [Session, Order, str], Awaitable[Callable[[], Awaitable[CommandEnd]] | CommandEnd | None]
]
"""
Prepares the command of a job (session, order, command) to be run. A `CommandEnd` says why it is not begun;
None: there is no shell for it. May raise `CommandsNotReady`.
"""


@dataclass(frozen=True, slots=True)
class _Where:
    """The conversation that is told, and as what."""

    channel: str
    account: str
    session: SessionKey
    kind: OutboundKind
    context: MessageContext


@dataclass(eq=False, kw_only=True)
class BackgroundTurns:
    """
    Implements `TurnKind` for background jobs.

    ``allowed``: a session may have them; ``left`` waits until no turn of a session is worked on.
    """

    turn_commit: TurnCommit
    deferral: Deferral
    approvals: ReviewQuestions
    conversations: Conversations
    allowed: Callable[[Session], bool]
    left: Callable[[SessionKey, str], Awaitable[None]]
    limits: TurnLimits
    commands: CommandRunner

    def __post_init__(self) -> None:
        self._steps, self._channels = self.turn_commit.store.turns, self.turn_commit.channels
        self._access, self._clock = self.conversations.access, self.deferral.clock
        self._notifier = self.approvals.notifier

    async def plan(self, turn: Turn) -> BackgroundPlan | None:
        """Plan a job for the model; None: no model needed. Raises StoreUnavailable or PlaceUnknown."""
        began = self._clock.monotonic()
        order = order_of(turn.head.message)
        why_not = _UNREADABLE if order is None else self._why_not(turn, order)
        if order is None or why_not:
            _log.warning("background_job.skipped", reason=why_not)
            await self.turn_commit.complete(turn, _ended(turn, RunOutcome.SKIPPED, why_not))
            return None
        await self._where(turn, order)  # before anything is spent
        if order.command:
            await self._run(turn, order, began)
            return None
        person = turn.head.message.sender.address
        return BackgroundPlan(
            turn,
            Purpose.BACKGROUND,
            f"[This is the background job {order.id}, started for {person} in their conversation, of which "
            "you see nothing here. Nobody reads along, and you cannot ask them anything. Do the task now; "
            f"your answer is sent to them.]\n{turn.head.message.text}",
            hold=self.approvals.needs_review(turn),
            limits=self.limits,
            quiet=True,
            order=order,
            began=began,
        )

    def _why_not(self, turn: Turn, order: Order) -> str:
        if not order.by_heartbeat:
            try:
                role = current_role(
                    self._access, self._channels.get(order.place.channel), _asking(turn, order)
                )
            except ChannelUnavailable as error:
                raise PlaceUnknown(str(error)) from error
            if role is Role.STRANGER:
                return NOT_ALLOWED
        session = session_of(turn, self._access, Purpose.BACKGROUND)
        return "" if self.allowed(session) else "its person may no longer have background jobs"

    async def _run(self, turn: Turn, order: Order, began: float) -> None:
        """Run a command and report its outcome. Raises CommandsNotReady."""
        session = session_of(turn, self._access, Purpose.BACKGROUND)
        steps = [] if turn.is_new else await self._steps.steps(turn)
        if steps:
            said = _noted(steps[0].result)
        elif (command := await self.commands(session, order, turn.head.message.text)) is None:
            said = CommandEnd(_("It was not run: there is no shell here now."), failed=True)
        elif isinstance(command, CommandEnd):
            said = command
        else:
            receipt = _receipt(turn, order)
            await self._steps.record_step_start(turn, Step(0, "command", order.id, {}, None, receipt))
            with use_origins(order.origins):
                said = await command()
            took_s = self._clock.monotonic() - began
            noted = {
                "text": said.text,
                "origins": to_json(said.origins),
                "failed": said.failed,
                # What follows is for the receipt.
                "content": _in_short(said.text, took_s),
                "is_error": said.failed,
                "undo": "" if said.failed else _UNDO.format(id=order.id),
            }
            await self.turn_commit.retry_until_stored(
                lambda: self._steps.record_step_result(turn, Step(0, "command", order.id, {}, noted))
            )
        origins = join_origins(order.origins, said.origins)
        completion = await self._message(
            turn,
            order,
            _(
                "Background command {name}: `{command}`\n\n{output}",
                name=order.label,
                command=safe_line(turn.head.message.text, 60),
                output=_output_shown(said.text, order.id),
            ),
            origins=origins,
            hold=self.approvals.needs_review(turn),
        )
        lines = [
            *user_lines(turn, self._access),
            Message(
                role="assistant",
                content=said.text,
                id=f"{turn.id}.1",
                turn=turn.id,
                timestamp=self._clock.now(),
                origins=origins,
            ),
        ]
        took_s = round(self._clock.monotonic() - began, 3)
        outcome = RunOutcome.FAILED if said.failed else RunOutcome.DELIVERED
        entry = ledger_entry(_job_id(turn), turn, outcome, said.text if said.failed else "", took_s=took_s)
        history = [line.model_copy(update={"scope": str(session.scope)}) for line in lines]
        await self.turn_commit.complete(turn, replace(completion, history=history, entry=entry))
        self.turn_commit.note_answer(turn, TurnResult(said.text, ()), took_s)

    async def commit(self, turn: Turn, plan: BackgroundPlan, result: TurnResult, meter: UsageMeter) -> None:
        """Send the answer, and record it in the conversation that asked and in the job's own history."""
        answer = "\n\n".join(filter(None, (result.reply, self.deferral.last_call_note(meter))))
        completion = await self._message(
            turn,
            plan.order,
            _("Background job {name} is done:\n\n{answer}", name=plan.order.label, answer=answer),
            origins=join_origins(*(line.sources for line in result.history)),
            attachments=result.attachments,
            hold=plan.hold,
        )
        took_s = round(self._clock.monotonic() - plan.began, 3)
        entry = ledger_entry(_job_id(turn), turn, RunOutcome.DELIVERED, usage=result.usage, took_s=took_s)
        completion = replace(completion, history=result.history, usage=result.usage, entry=entry)
        await self.turn_commit.complete(turn, completion, meter)

    async def _after_the_start(self, order: Order) -> None:
        """Let the turn that has started the job speak first, unless that takes long."""
        with anyio.move_on_after(30.0):
            for session in {order.place, self.conversations.reading_scope(order.place)}:
                await self.left(session, order.started_by)

    async def defer_to_budget(self, turn: Turn, error: BudgetSpent) -> None:
        """Defer the job until the budget opens again, and notify its person."""
        order, notice, once = order_of(turn.head.message), [], None
        if order is not None and not order.by_heartbeat:
            why = _(
                "the share of today's budget for jobs is spent. It continues {when}.",
                when=self.deferral.reopening_text(),
            )
            if isinstance(error, CreditSpent):
                why = _(error.public)
            text = _("The background job {name} waits: {why}", name=order.label, why=why)
            is_of_owner = session_of(turn, self._access, Purpose.BACKGROUND).scope == OWNER
            if is_of_owner and isinstance(error, CreditSpent):
                text, once = self.deferral.owners_notice(error)
            found = await self._perhaps(turn, order, text)
            notice = [] if found is None else list(found.outbound)
        await self.deferral.defer_to_budget(turn, error, notice, once=once)

    async def report_failure(self, turn: Turn, failure: TurnFailureText) -> None:
        """Notify the person of the job, and record it in the conversation."""
        _log.error("background_job.failed", turn=turn.id, error=failure.error)
        order, completion = order_of(turn.head.message), Completion()
        if order is not None:
            text = _(
                "Sorry, the background job {name} could not be done. {why}",
                name=order.label,
                why=_(failure.public),
            )
            try:
                completion = await self._message(turn, order, text)
            except (PlaceUnknown, ChannelError) as error:
                _log.warning("background_job.place_unknown", error=str(error))
                if turn.first_deferred_s < _OUTAGE_S:
                    link = awaited_link(error, turn)
                    await self.turn_commit.defer(turn, failure.error, 60.0, waits_for=link)
                    return
        entry = ledger_entry(_job_id(turn), turn, RunOutcome.FAILED, failure.error)
        completion = replace(completion, purpose=Purpose.BACKGROUND, entry=entry)
        await self.turn_commit.complete(turn, completion)

    def policy(self, policy: TurnPolicy) -> TurnPolicy:
        """Nobody waits in front of a screen, so a job waits for a model for a day."""
        return replace(policy, outage_budget_s=max(policy.outage_budget_s, _OUTAGE_S))

    async def _perhaps(self, turn: Turn, order: Order, text: str) -> Completion | None:
        """A message; None: it cannot be said now who would read it."""
        try:
            return await self._message(turn, order, text)
        except (PlaceUnknown, ChannelError) as error:
            _log.warning("background_job.place_unknown", error=str(error))
            return None

    async def _message(
        self,
        turn: Turn,
        order: Order,
        text: str,
        *,
        origins: Origins = (),
        attachments: Sequence[Attachment] = (),
        hold: bool = False,
    ) -> Completion:
        """Build a job's message and history line. Raises StoreUnavailable or PlaceUnknown."""
        await self._after_the_start(order)
        where = await self._where(turn, order)
        if turn.head.message.audience is Audience.GROUP:
            text = f"For {turn.head.message.sender.address}: {text}"
        now = self._clock.now()
        line = Message(
            role="assistant",
            content=text,
            id=f"{turn.id}.result",
            turn=turn.id,
            timestamp=now,
            scope=str(session_of(turn, self._access, Purpose.BACKGROUND).scope),
            attachments=tuple(attachments),
            origins=arriving(join_origins(order.origins, origins), now),
        )
        asking = self.conversations.reading_scope(order.place, line.scope)
        others = [(asking, (line,))]
        if where is None:
            _log.error("background_job.not_notified", session=str(order.place))
            return Completion(purpose=Purpose.BACKGROUND, others=others)
        told = self.conversations.reading_scope(where.session, line.scope)
        if told != asking:
            others.append((told, (line.model_copy(update={"id": f"{turn.id}.told"}),)))
        outbound = [
            NewOutbound(
                where.channel,
                where.account,
                where.session,
                part,
                where.kind,
                where.context,
                attachments=files,
                hold=hold,
            )
            for part, files in message_parts(text, attachments, self._channels[where.channel].capabilities)
        ]
        return Completion(outbound=outbound, purpose=Purpose.BACKGROUND, others=others)

    async def _where(self, turn: Turn, order: Order) -> _Where | None:
        """Return where the job's person gets messages; None if there is no such place any more."""
        note = MessageContext(notes=MessageNotes(job=JobNote(id=order.id)))
        message = turn.head.message
        if order.by_heartbeat:
            reached = await self._notifier.reach(f"alert {turn.id}", OutboundKind.ALERT)
            if reached.later and reached.target is None:
                raise await self._notifier.unreachable_error(reached)
            to = reached.target
            return (
                None if to is None else _Where(to.channel, to.account, to.session, OutboundKind.ALERT, note)
            )
        channel = self._channels.get(order.place.channel)
        if channel is None:
            raise PlaceUnknown("its channel is switched off")
        session = order.place
        if await is_out_of_place(channel, _asking(turn, order)):
            direct = await direct_conversation(channel, message.sender.address)
            if direct is None:
                return None
            session = direct
        notes = replace(order.context.notes, job=note.notes.job)
        context, kind = replace(order.context, notes=notes), OutboundKind.REPLY
        if session != order.place or context == note:
            context = note
            kind = OutboundKind.ALERT if message.audience is Audience.DIRECT else OutboundKind.MESSAGE
        return _Where(channel.name, message.account, session, kind, context)


def _receipt(turn: Turn, order: Order) -> EffectReceipt:
    """Build the receipt of a command that is about to run, besides that of the ordering call."""
    return EffectReceipt(
        order.place,
        BACKGROUND_COMMAND,
        Effect.EXECUTE.value,
        {"id": order.id, "command": turn.head.message.text},
        asked_by=turn.head.message.sender.address,
        origins=describe(order.origins),
    )


def _in_short(text: str, took_s: float) -> str:
    """Summarise a command's end, duration and place, without its output."""
    ended, *more = text.partition("\n<output>")[0].split("\n")
    return "\n".join([f"{ended} It took {took_s:.1f} s.", *more])


def _noted(result: Mapping[str, Any] | None) -> CommandEnd:
    """Parse the recorded end of a command; without one, it ended with the process."""
    if result is None:
        return CommandEnd(_("The restart of squidbot ended it, and it does not run again."), failed=True)
    return CommandEnd(str(result["text"]), from_json(result["origins"]), result["failed"] is True)


def _asking(turn: Turn, order: Order) -> InboundMessage:
    """The message as if it had been said in the conversation that asked."""
    return turn.head.message.model_copy(update={"session": order.place, "context": order.context})


def _ended(turn: Turn, outcome: RunOutcome, reason: str) -> Completion:
    return Completion(purpose=Purpose.BACKGROUND, entry=ledger_entry(_job_id(turn), turn, outcome, reason))


def _job_id(turn: Turn) -> str:
    order = order_of(turn.head.message)
    return order.id if order else turn.head.message.native_id
