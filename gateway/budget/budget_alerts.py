"""
Alerts about the daily budget in the owner's direct conversation: one when four fifths are spent, and one when
nothing is left. Each goes out once a day, whatever crashes (`OwnerNotifier.notify`). What was spent is looked
at after every call, also for the gauges; what the store did not take is tried again.
"""

from __future__ import annotations

import random
from typing import Any

import anyio
import structlog

from agent_core.backoff import BackoffPolicy
from agent_core.language import _, list_of
from agent_core.messages import OutboundKind
from agent_core.ports import Clock
from gateway.budget.budget_policy import (
    Amount,
    BudgetLimits,
    BudgetTier,
    budget_state,
    day_of,
    limit_texts,
    notice_name,
    opens_at,
    spent_share,
)
from gateway.budget.metering import Metering
from gateway.observability import metrics
from gateway.proactive.owner_contact import Target
from gateway.proactive.owner_notifier import Once, OwnerNotifier
from gateway.store.stores import StoreUnavailable
from gateway.store.wakeups import Wakeups

_CHECK_EVERY_S = 3600.0
_NOT_BEFORE_S = 2.0
"""After a look: it adds up what all conversations of the day have cost, and each answer is news."""
_RETRY = BackoffPolicy(first_s=5.0, cap_s=300.0)
_log = structlog.get_logger(__name__)


class BudgetAlerts:
    """Watches the budget."""

    def __init__(
        self,
        *,
        notifier: OwnerNotifier,
        spending: Metering,
        clock: Clock,
        wakeups: Wakeups,
    ) -> None:
        self._notifier = notifier
        self._spending = spending
        self._clock = clock
        self._told: tuple[str, str] | None = None
        self._news = anyio.Event()
        wakeups.usage.connect(lambda _: self._news.set())
        limits = spending.limits
        metrics.watch_budget(self._shown, (limits.tokens or 0, limits.usd or 0))

    async def run(self) -> None:
        """Watch until cancelled. Raises nothing but cancellation."""
        failures = 0
        while True:
            self._news = anyio.Event()
            wait_s = _CHECK_EVERY_S
            try:
                await self._spending.commit_all()
                again = not await self._look()
                failures = failures + 1 if again else 0
            except StoreUnavailable as error:
                again, failures = True, failures + 1
                _log.warning("budget.check_failed", error=str(error))
            if again:
                wait_s = _RETRY.delay(failures, random=random.random())
            looked_at = anyio.current_time()
            with anyio.move_on_after(wait_s):
                await self._news.wait()
                await anyio.sleep_until(looked_at + _NOT_BEFORE_S)

    async def state(self) -> dict[str, Any]:
        """Return cost and limits of this day, and who is refused. Raises `StoreUnavailable`."""
        spent, limits, now = (
            await self._spending.amount_today(reserved=False),
            self._spending.limits,
            self._clock.now(),
        )
        return budget_state(spent, limits, now)

    def _shown(self) -> tuple[float, float]:
        seen = self._spending.last_amount()
        return seen.tokens, seen.usd

    async def _look(self) -> bool:
        """Tell what is to be told; False: it cannot be told yet."""
        spent, limits, now = (
            await self._spending.amount_today(reserved=False),
            self._spending.limits,
            self._clock.now(),
        )
        part = spent_share(spent, limits)
        kind = "spent" if part >= 1 else "warned"
        day = day_of(now, limits.zone)
        if part < 0.8 or self._told in ((day, kind), (day, "spent")):
            return True
        opens = opens_at(now, limits)
        text = _spent_text(spent, limits, opens) if kind == "spent" else _warning(spent, limits, opens)

        def once(to: Target) -> Once:
            return notice_name(to.session) if kind == "spent" else "budget warning", day

        alert = OutboundKind.ALERT if kind == "spent" else OutboundKind.NOTICE
        if (await self._notifier.notify(f"budget {day}", text, once=once, kind=alert)).target is None:
            return False
        self._told = (day, kind)
        return True


def _of(spent: Amount, limits: BudgetLimits) -> str:
    return list_of(limit_texts((spent.tokens, limits.tokens), (spent.usd, limits.usd)))


def _warning(spent: Amount, limits: BudgetLimits, opens: str) -> str:
    rest, jobs, consolidating, others = (
        f"{limits.share(tier):.0%}"
        for tier in (BudgetTier.HEARTBEAT, BudgetTier.BACKGROUND, BudgetTier.CONSOLIDATION, BudgetTier.OTHERS)
    )
    return _(
        "Today's budget is mostly used: {spent}. Check-ins rest from {rest} on, background jobs wait from "
        "{jobs} on, consolidation from {consolidating} on, and other people wait from {others} on; the rest "
        "is yours. A new budget begins {when}.",
        spent=_of(spent, limits),
        rest=rest,
        jobs=jobs,
        consolidating=consolidating,
        others=others,
        when=opens,
    )


def _spent_text(spent: Amount, limits: BudgetLimits, opens: str) -> str:
    return _(
        "Today's budget is spent: {spent}. I go on {when}; what you write until then waits "
        "for that. Commands such as `!status` work all the same. To go on sooner, raise `llm.budget` in the "
        "settings, by the console or in the file, and reload me (`systemctl --user reload squidbot`).",
        spent=_of(spent, limits),
        when=opens,
    )
