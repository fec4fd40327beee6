"""
Ends turns that have no answer: they are retried, deferred, or dead-lettered with an apology.

``failure_policy.py`` decides; this module carries the decision out.
"""

from __future__ import annotations

import random
from typing import Any

import structlog

from agent_core.errors import AgentError, BudgetSpent
from agent_core.messages import OutboundKind
from channels.base import ChannelError
from gateway.budget.metering import UsageMeter
from gateway.proactive.jobs.permissions import PlaceUnknown
from gateway.queue.ports import Turn
from gateway.queue.states import Record, link_of
from gateway.routing.crash_isolation import CrashIsolation
from gateway.turns.commit import TurnCommit
from gateway.turns.failure_policy import TurnPolicy, decide_failure, poisonous
from gateway.turns.kinds import TurnKind
from gateway.turns.pacing import Pacing

__all__ = ["TurnFailure"]

_log = structlog.get_logger(__name__)


class TurnFailure:
    """
    Ends turns that are not answered. One instance serves all sessions.

    Args:
        pacing: Puts off what has a later place.
        suspects: Knows what the process may have died of.
        policy: How much is done for one turn.
    """

    def __init__(
        self,
        *,
        commit: TurnCommit,
        pacing: Pacing,
        suspects: CrashIsolation,
        policy: TurnPolicy,
    ) -> None:
        self._commit = commit
        self._pacing = pacing
        self._suspects = suspects
        self._policy = policy

    async def prevented(self, turn: Turn, kind: TurnKind[Any]) -> bool:
        """
        Whether a turn must not be run now: it has a later place, or the process dies of it, or nobody could
        read it. Then its claim has ended.

        Raises:
            LostTurn: The claim was superseded.
        """
        if wait_s := self._pacing.left_s(turn):
            notice = self._commit.replies(turn, self._pacing.text(wait_s), OutboundKind.NOTICE)
            await self._pacing.put_off(turn, wait_s, notice)
            return True
        suspect = self._suspects.of_turn(turn.id)
        poison = poisonous(turn, self._policy, suspect.record if suspect else Record())
        if poison is not None:
            await kind.failed(turn, poison)
        return poison is not None

    async def end(self, turn: Turn, kind: TurnKind[Any], meter: UsageMeter | None, error: Exception) -> None:
        """
        Carry out what follows from an error.

        Raises:
            LostTurn: The claim was superseded.
        """
        if isinstance(error, BudgetSpent):
            await kind.refused(turn, error)
            return
        failure = decide_failure(error, turn, kind.policy(self._policy), jitter=random.random())
        if not isinstance(error, AgentError):
            _log.error("turn.defect", channel=turn.channel, exc_info=error)
        if failure.delay_s is not None:
            link = isinstance(error, PlaceUnknown | ChannelError)
            waits_for = link_of(turn.channel) if link else None
            await self._commit.defer(turn, failure.error, failure.delay_s, waits_for=waits_for)
            return
        if meter is not None:
            await meter.record()
        await kind.failed(turn, failure)
