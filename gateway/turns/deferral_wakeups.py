"""
Wakes deferred turns as soon as what they wait for is there, whatever their back-off says.

A back-off is a guess at when to look again. Some reasons to wait end with an event that is seen: a channel's
link comes up, the day of the budget ends, a model answers whose account was empty. Rows that wait for such a
thing carry its name (`MaintenanceStore.due_now`). A server that has said itself how long to wait is not asked
sooner.
"""

from __future__ import annotations

import random
from datetime import datetime, tzinfo

import anyio
import structlog

from agent_core.backoff import BackoffPolicy
from agent_core.ports import Clock
from channels.base import LinkState
from gateway.budget.budget_policy import day_of
from gateway.store.states import BUDGET, link_wait
from gateway.store.stores import Queue, StoreUnavailable
from gateway.store.wakeups import Wakeups

LOOK_EVERY_S = 30.0
_RETRY = BackoffPolicy(first_s=0.5, cap_s=30.0)
_log = structlog.get_logger(__name__)


class DeferralWakeups:
    """Ends deferrals, for the whole gateway; ``zone`` is that of the budget's days."""

    def __init__(self, store: Queue, *, clock: Clock, zone: tzinfo | None, wakeups: Wakeups) -> None:
        self._store = store
        self._clock = clock
        self._zone = zone
        self._wakeups = wakeups
        self._up: set[tuple[str, bool]] = set()
        self._came_up: set[str] = set()
        self._has_credit = False
        self._seen = clock.now()
        self._news = anyio.Event()
        wakeups.channel.connect(
            lambda status: self.link(status.name, up=status.can_send, caught_up=status.state is LinkState.UP)
        )
        wakeups.credit.connect(lambda _: self._credit())

    def link(self, channel: str, *, up: bool, caught_up: bool = False) -> None:
        """Note a channel's link, without waiting; ``caught_up`` also ends waits of some channels."""
        if not up:
            self._up -= {(channel, False), (channel, True)}
        elif (channel, caught_up) not in self._up:
            self._up.add((channel, caught_up))
            self._came_up.add(channel)
            self._news.set()

    def _credit(self) -> None:
        self._has_credit = True
        self._news.set()

    async def run(self) -> None:
        """End deferrals until cancelled. Raises nothing but cancellation."""
        failures = 0
        while True:
            self._news = anyio.Event()
            wait_s = LOOK_EVERY_S
            try:
                await self.wake_due()
                failures = 0
            except StoreUnavailable as error:
                failures += 1
                wait_s = _RETRY.delay(failures, random=random.random())
                _log.warning("deferrals.blocked", error=str(error), retry_in_s=round(wait_s, 1))
            with anyio.move_on_after(wait_s):
                await self._news.wait()

    async def wake_due(self) -> None:
        """End due deferrals now. Raises StoreUnavailable; the next check retries it."""
        for channel in sorted(self._came_up):
            await self._store.maintenance.due_now(link_wait(channel))
            self._came_up.discard(channel)
            self._wakeups.link.fire(channel)
        now = self._clock.now()
        if self._has_credit or _another_day(self._seen, now, self._zone):
            await self._store.maintenance.due_now(BUDGET)
            self._has_credit = False
        self._seen = now


def _another_day(seen: datetime, now: datetime, zone: tzinfo | None) -> bool:
    """Return True on a new day, or after the clock was set back: the budget may differ."""
    return now < seen or day_of(now, zone) != day_of(seen, zone)
