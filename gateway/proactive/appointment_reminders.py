"""
Reminders of appointments: each check-in looks at the calendar, without a model, and the owner is told of
what is near. Each occurrence is told once for each of its moments, over restarts. Where the calendar or the
owner cannot be reached, it is tried again until the appointment has begun.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import anyio
import structlog

from agent_core.errors import ToolError
from agent_core.language import _
from agent_core.ports import Clock
from agent_core.text import one_line
from channels.heartbeat.tick_schedule import Schedule
from gateway.proactive.owner_notifier import OwnerNotifier
from gateway.store.stores import StoreUnavailable

_CHECK_EVERY_S = 60.0  # the clock may jump meanwhile
_RETRY_S = 300.0
_MAX_AT_ONCE = 20
_MAX_CHARS = 2000
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class AppointmentReminders:
    """
    Tells the owner what is near.

    ``upcoming`` lists what to tell of between two times (`agent_core.tools.dav.events.list_reminders`).
    """

    upcoming: Callable[[datetime, datetime], Awaitable[Sequence[dict[str, Any]]]]
    notifier: OwnerNotifier
    schedule: Schedule
    clock: Clock

    def __post_init__(self) -> None:
        self._looked_at: datetime | None = None

    async def run(self) -> None:
        """Remind until cancelled. Raises nothing but cancellation."""
        while True:
            try:
                await self.check_once()
                wait_s = _CHECK_EVERY_S
            except (ToolError, StoreUnavailable) as error:
                _log.warning("reminders.not_looked", error=str(error)[:200])
                wait_s = _RETRY_S
            await anyio.sleep(wait_s)

    async def check_once(self) -> None:
        """Send the reminders of the current check-in, once. Raises `ToolError`, `StoreUnavailable`."""
        now = self.clock.now()
        tick, until = self.schedule.newest(now), self.schedule.next_run(now)
        if until is None or tick == self._looked_at or not self.schedule.is_open(now):
            return
        found, told = await self.upcoming(tick, until), True
        for each in found[:_MAX_AT_ONCE]:
            told = await self._notify(each) and told
        if more := found[_MAX_AT_ONCE:]:
            told = await self._notify_together(more, tick) and told
        if told:
            self._looked_at = tick

    async def _notify_together(self, more: Sequence[dict[str, Any]], tick: datetime) -> bool:
        """Tell of all beyond the limit in one message; False if there is no place for it now."""
        names = ", ".join(f"`{_quoted(each['summary'])}` {each['when']}" for each in more)
        text = _("Coming up as well: {names}", names=one_line(names, _MAX_CHARS))
        reached = await self.notifier.notify(
            "appointments", text, once=("reminders beside", tick.isoformat())
        )
        return reached.target is not None

    async def _notify(self, each: dict[str, Any]) -> bool:
        """Tell of one; False if there is no place for it now."""
        title, place = _quoted(each["summary"]), _quoted(each["location"])
        what = f"`{title}`" + (f" (`{place}`)" if place else "")
        text = _("Coming up: {what}, {when}", what=what, when=each["when"])
        name = hashlib.sha256(str(each["key"]).encode()).hexdigest()[:32]
        once = (f"reminder {name}", str(each["at"]))
        reached = await self.notifier.notify("appointments", text, once=once)
        return reached.target is not None


def _quoted(said: object) -> str:
    return str(said).replace("`", "'")
