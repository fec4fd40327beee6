"""
What becomes of a turn without an answer: it is tried again, put off, or given up with an apology.

The decision itself is in ``retry_policy.py``; here it is carried out.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

import structlog

from agent_core.errors import AgentError, BudgetSpent
from agent_core.messages import OutboundKind
from channels.base import ChannelError
from gateway.budget.metering import UsageMeter
from gateway.proactive.jobs.permissions import PlaceUnknown
from gateway.queue.ports import NewOutbound, Turn
from gateway.queue.states import link_of
from gateway.turns.budget_deferral import BudgetDeferral
from gateway.turns.commit import TurnCommit
from gateway.turns.heartbeat import HeartbeatPlan, HeartbeatRuns
from gateway.turns.retry_policy import Failure, TurnPolicy, decide_failure

__all__ = ["TurnFailure"]

_log = structlog.get_logger(__name__)


class TurnFailure:
    """
    Ends turns that failed. One instance serves all sessions.

    Args:
        ends: Commits how they end.
        ticks: What is particular about turns that nobody asked for.
        refusals: Puts off what the budget refuses.
        channels: The names of all channels.
        policy: How much is done for one turn.
    """

    def __init__(
        self,
        *,
        ends: TurnCommit,
        ticks: HeartbeatRuns,
        refusals: BudgetDeferral,
        channels: Collection[str],
        policy: TurnPolicy,
    ) -> None:
        self._ends = ends
        self._ticks = ticks
        self._refusals = refusals
        self._channels = channels
        self._policy = policy

    async def end(self, turn: Turn, tally: UsageMeter | None, error: Exception) -> None:
        """
        Carry out what follows from an error.

        Raises:
            LostTurn: Not any more ours.
        """
        if isinstance(error, BudgetSpent):
            await self._put_off(turn, error)
            return
        policy = self._ticks.policy(turn, self._policy)
        failure = decide_failure(error, turn, policy, jitter=random.random())
        if not isinstance(error, AgentError):
            _log.error("turn.defect", channel=turn.session.channel, exc_info=error)
        if failure.delay_s is not None:
            link = isinstance(error, PlaceUnknown | ChannelError)
            waits_for = link_of(turn.session.channel) if link else None
            await self._ends.defer(turn, failure.error, failure.delay_s, waits_for=waits_for)
            return
        if tally is not None:
            await tally.record()
        await self.bury(turn, failure)

    async def _put_off(self, turn: Turn, error: BudgetSpent) -> None:
        """A check-in is left out, everything else waits."""
        if turn.head.message.kind == "tick":
            await self._ends.complete(turn, self._ticks.skipped(turn, HeartbeatPlan(skip=str(error))))
            return
        text = self._refusals.text()
        if self._ticks.concerns(turn):
            notice = self._ticks.notice(turn, text)
        else:
            notice = self._ends.replies(turn, text, OutboundKind.NOTICE)
        await self._refusals.put_off(turn, error, notice)

    async def bury(self, turn: Turn, failure: Failure) -> None:
        """
        Give it up, and say so.

        Raises:
            LostTurn: Not any more ours.
        """
        if self._ticks.concerns(turn):
            await self._ends.complete(turn, self._ticks.failed(turn, failure))
            return
        outbound: Sequence[NewOutbound] = ()
        if turn.session.channel in self._channels:
            text = f"Sorry, I could not answer this. {failure.public}"
            outbound = self._ends.replies(turn, text, OutboundKind.APOLOGY)
        await self._ends.bury(turn, failure, outbound)
