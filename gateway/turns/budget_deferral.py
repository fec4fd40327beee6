"""
Budget deferral: what happens to a turn that the daily budget refuses, and what its sender is told.

Messages stay in the queue until the budget opens again and are answered then, so nobody has to write a
question twice. One notice for each conversation and day says when. It is posted once (`OutboxStore.post`),
whatever crashes. Commands do not wait: they overtake (`TurnStore.claim`).

A turn that waits is looked at again at each start, because the limit may be another one, when the day ends or
the clock is set (`gateway.turns.deferral_wakeups`), and every half hour. A look costs no model call.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import structlog

from agent_core.errors import BudgetSpent
from agent_core.models import Purpose
from agent_core.ports import Clock
from gateway.budget.metering import Metering, UsageMeter
from gateway.budget.policy import day_of, notice_name, opens_at, wait_s
from gateway.queue.ports import NewOutbound, Queue, Turn
from gateway.queue.states import BUDGET
from gateway.routing.access import Access, Role
from gateway.turns.commit import TurnCommit

__all__ = ["BudgetDeferral"]

_log = structlog.get_logger(__name__)


class BudgetDeferral:
    """
    Puts turns off.

    Args:
        store: Where they wait, and where notices are put.
        commit: Repeats a write until the queue takes it.
        spending: What a day has cost and may cost.
    """

    def __init__(
        self,
        *,
        store: Queue,
        commit: TurnCommit,
        spending: Metering,
        access: Access,
        clock: Clock,
    ) -> None:
        self._store = store
        self._commit = commit
        self._spending = spending
        self._limits = spending.limits
        self._access = access
        self._clock = clock

    async def begin(self, turn: Turn, purpose: Purpose) -> UsageMeter:
        """
        Begin to count what a turn costs.

        Raises:
            BudgetSpent: It may not begin. A turn with recorded steps may always be finished.
            StoreUnavailable: It cannot be said now.
        """
        owner = any(self._access.decide(row.message).role is Role.OWNER for row in turn.rows)
        meter = self._spending.meter(turn.session, purpose, owner=owner)
        refusal = await self._spending.refusal(purpose, owner=owner)
        if refusal is not None and not await self._store.turns.steps(turn):
            raise meter.refuse(refusal)
        return meter

    def opens(self) -> str:
        """When the next day's budget begins, in words."""
        return opens_at(self._clock.now(), self._limits)

    def text(self) -> str:
        """What somebody is told whose message waits now."""
        return (
            "My budget for today is spent, so I cannot answer this now. Your message waits, and so does what "
            f"you write until then: I go on {self.opens()}."
        )

    async def put_off(self, turn: Turn, error: BudgetSpent, notice: Sequence[NewOutbound]) -> None:
        """
        Let a turn wait, and say so if nobody has said it today.

        Where the day has ended since it was refused nothing is said, and it is tried again at once.

        Raises:
            LostTurn: Not any more ours.
        """
        now = self._clock.now()
        until = error.fields.get("until")
        if isinstance(until, datetime) and until <= now:
            await self._commit.until_stored(lambda: self._store.turns.postpone(turn, str(error), delay_s=0.0))
            return
        day = day_of(now, self._limits.zone)
        name = notice_name(turn.place)
        # In this order: after a crash in between the turn is taken up and put off again, silently.
        said = await self._commit.until_stored(lambda: self._store.outbox.post(notice, once=(name, day)))
        delay_s = wait_s(now, self._limits)
        await self._commit.until_stored(
            lambda: self._store.turns.postpone(turn, str(error), delay_s=delay_s, waits_for=BUDGET)
        )
        _log.warning(
            "turn.budget_deferred",
            channel=turn.channel,
            tier=error.fields.get("tier"),
            reason=str(error),
            told=bool(said),
        )
