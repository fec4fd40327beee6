"""
Turns that have no answer: whether one is tried at all, and what follows when it fails.

Three outcomes are possible. A failure that is not the message's fault is retried within a time budget. A
turn that was in flight when the process died is a crash suspect and is dead-lettered after a few deaths.
Everything else is dead-lettered at once, with an apology. A failed turn never blocks the next one for longer
than the budget.
"""

from __future__ import annotations

import random
from typing import Any

import structlog

from agent_core.backoff import BackoffPolicy
from agent_core.errors import AgentError, BudgetSpent, ModelRateLimited
from channels.base import ChannelError
from gateway.budget.metering import UsageMeter
from gateway.errors import describe
from gateway.proactive.jobs.permissions import PlaceUnknown
from gateway.queue.states import Record, link_of
from gateway.queue.stores import Turn
from gateway.routing.crash_isolation import SUDDEN_END, CrashIsolation, kills
from gateway.turns.commit import TurnCommit
from gateway.turns.kinds import Failure, TurnKind, TurnPolicy

_MODEL_RETRY = BackoffPolicy(first_s=2.0, cap_s=300.0)
_log = structlog.get_logger(__name__)


class TurnFailure:
    """
    Ends turns that are not answered. One instance serves all sessions.

    Args:
        suspects: Knows what the process may have died of.
    """

    def __init__(self, *, commit: TurnCommit, suspects: CrashIsolation, policy: TurnPolicy) -> None:
        self._commit = commit
        self._suspects = suspects
        self._policy = policy

    async def prevented(self, turn: Turn, kind: TurnKind[Any]) -> bool:
        """
        Whether a turn must not be run, because the process dies of it or nobody could read it. Then its
        claim has ended. Raises `LostTurn`.
        """
        suspect = self._suspects.of_turn(turn.id)
        poison = poisonous(turn, self._policy, suspect.record if suspect else Record())
        if poison is not None:
            await kind.failed(turn, poison)
        return poison is not None

    async def end(self, turn: Turn, kind: TurnKind[Any], meter: UsageMeter | None, error: Exception) -> None:
        """Carry out what follows from an error. Raises `LostTurn`."""
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


def decide_failure(error: Exception, turn: Turn, policy: TurnPolicy, *, jitter: float) -> Failure:
    """
    What follows from an error. Pure.

    A temporary error of the model or the disk is waited for within the budget; everything else, known or
    not, is final, and its text for strangers goes into the apology. ``jitter`` is a number in [0, 1).
    """
    told = describe(error)
    text = str(error) or type(error).__name__
    if not told.temporary:
        return Failure(None, told.public, text)
    if turn.first_deferred_s >= policy.outage_budget_s:
        return Failure(None, _given_up(told.public, policy.outage_budget_s), text)
    delay_s = _MODEL_RETRY.delay(turn.deferrals + 1, random=jitter)
    if isinstance(error, ModelRateLimited) and error.retry_after_s is not None:
        delay_s = max(delay_s, min(error.retry_after_s, policy.outage_budget_s))
    return Failure(delay_s, told.public, text)


def poisonous(turn: Turn, policy: TurnPolicy, record: Record = Record()) -> Failure | None:  # noqa: B008 - a frozen value
    """
    The end of a turn that is not tried: the process dies of it, or its channel could not read the message and
    says in ``context["unreadable"]`` what its sender is told. None: try it. Pure.
    """
    unreadable = turn.head.message.context.get("unreadable")
    if isinstance(unreadable, str):
        return Failure(None, unreadable, "the message could not be read")
    if not kills(record, policy.max_attempts):
        return None
    return Failure(None, SUDDEN_END, f"the process ended {record.deaths} times on it")


def _given_up(public: str, budget_s: float) -> str:
    # What stands behind a semicolon in the texts of temporary errors promises another try.
    reason = public.partition(";")[0].rstrip(". ")
    minutes = round(budget_s / 60)
    span = "an hour" if minutes == 60 else f"{minutes} minutes" if minutes >= 2 else "a while"
    return f"{reason}. I kept trying for {span}; please ask me again later."
