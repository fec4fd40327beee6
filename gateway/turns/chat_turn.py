"""A turn of a conversation: what people have written is one question, and its answer goes back to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from agent_core.errors import BudgetSpent, CreditSpent
from agent_core.language import _
from agent_core.messages import Audience, InboundMessage, OutboundKind
from agent_core.models import Purpose, TurnResult
from channels.heartbeat.silence import without_thoughts
from gateway.budget.metering import UsageMeter
from gateway.proactive.owner_contact import OwnerContact
from gateway.store.stores import Completion, NewOutbound, StoreUnavailable, Turn
from gateway.turns.commands.command_service import CommandService
from gateway.turns.commands.new_conversation import NewConversation
from gateway.turns.commit import TurnCommit
from gateway.turns.failure_and_deferral import Deferral
from gateway.turns.questions.review_questions import ReviewQuestions
from gateway.turns.spoken_answers import SpokenAnswers
from gateway.turns.turn_kinds import Plan, TurnFailureText, TurnPolicy
from gateway.turns.user_input import NO_REPLY, may_be_silent

_log = structlog.get_logger(__name__)


@dataclass(eq=False, kw_only=True)
class ChatTurns:
    """
    Implements `TurnKind` for messages: a command needs no model, all else is a question.

    ``target`` learns the owner's conversation; ``spoken`` adds speech to answers.
    """

    commands: CommandService
    conversations: NewConversation
    turn_commit: TurnCommit
    deferral: Deferral
    target: OwnerContact
    approvals: ReviewQuestions
    spoken: SpokenAnswers | None

    async def plan(self, turn: Turn) -> Plan | None:
        """Plan a turn about what was written; None: it needed no model and has been answered."""
        asked = await self.commands.serve(turn)
        if asked is None:
            await self._learn(turn.rows[-1].message)
            return None
        await self.conversations.begin(turn)
        seen, note = asked
        # Nobody sees the bot begin with what it may leave alone.
        quiet = may_be_silent(turn)
        return Plan(seen, Purpose.CHAT, hold=self.approvals.needs_review(turn), note=note, quiet=quiet)

    async def commit(self, turn: Turn, plan: Plan, result: TurnResult, meter: UsageMeter) -> None:
        """Reply, or be silent where that is allowed, and note where the owner has written."""
        reply = "" if _is_silence(turn, result) else result.reply
        budget = self.deferral.last_call_note(meter) if reply else ""
        text = "\n\n".join(filter(None, (reply, budget, plan.note)))
        if not text and not result.attachments:
            await self.turn_commit.complete(turn, Completion(history=result.history), meter)
            await self._learn(turn.rows[-1].message)
            return
        outbound = self.turn_commit.replies(turn, text, attachments=result.attachments, hold=plan.hold)
        if self.spoken is not None:
            outbound += self.spoken.rows_to_speak(turn, plan, reply, parts=len(outbound))
        await self.turn_commit.complete(turn, Completion(outbound=outbound, history=result.history), meter)
        await self._learn(turn.rows[-1].message)

    async def _learn(self, message: InboundMessage) -> None:
        """Note that the owner may have written here; the next message makes good what is not stored now."""
        try:
            await self.target.learn(message)
        except StoreUnavailable as error:
            _log.warning("owner_contact.not_learned", channel=message.channel, error=str(error))

    async def defer_to_budget(self, turn: Turn, error: BudgetSpent) -> None:
        """
        Defer the message until the budget opens again, and notify its sender once a day.

        That a provider wants money the owner is told once: here, or by the alert about it.
        """
        last, once = turn.rows[-1].message, None
        text, whom = self.deferral.budget_text(error), [last.sender.address]
        if isinstance(error, CreditSpent) and self._is_of_owner_alone(turn):
            text, key = self.deferral.owners_notice(error)
            await self._learn(last)
            once = key if await self.target.is_owner_session(turn.place) else None
        notice = self.turn_commit.replies(turn, text, OutboundKind.NOTICE, rings_for=whom)
        await self.deferral.defer_to_budget(turn, error, notice, once=once)

    def _is_of_owner_alone(self, turn: Turn) -> bool:
        messages = [row.message for row in turn.rows]
        return all(
            one.audience is Audience.DIRECT
            and one.sender.verified
            and self.target.is_owner(one.channel, one.sender.address)
            for one in messages
        )

    async def report_failure(self, turn: Turn, failure: TurnFailureText) -> None:
        """Apologise."""
        outbound: Sequence[NewOutbound] = ()
        if turn.channel in self.turn_commit.channels:
            text = _("Sorry, I could not answer this. {public}", public=_(failure.public))
            outbound = self.turn_commit.replies(turn, text, OutboundKind.APOLOGY)
        await self.turn_commit.dead_letter(turn, failure, outbound)

    def policy(self, policy: TurnPolicy) -> TurnPolicy:
        """The default limits."""
        return policy


def _is_silence(turn: Turn, result: TurnResult) -> bool:
    """Say if the model leaves alone what was not put to it: the mark has to be the whole answer."""
    if not may_be_silent(turn) or result.attachments:
        return False
    return without_thoughts(result.reply).strip("*_`.\"' \n") == NO_REPLY
