"""
Reminders of appointments: each check-in looks at the calendar, without a model, and the owner is told of
what is near. Each occurrence is told once for each of its moments, over restarts. Where the calendar or the
owner cannot be reached, it is tried again until the appointment has begun. Of more than twenty in one
check-in those beyond are told together: which ones is stored before, so that a restart neither repeats nor
forgets any.
"""

from __future__ import annotations

import hashlib
import json
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
from gateway.store.stores import Queue, StoreUnavailable

TOPIC = "reminders-beside"
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
    queue: Queue
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
        together = await self._together(found, tick)
        for each in found:
            if not any(_name(each) in names for names in together):
                told = await self._notify(each) and told
        for number, names in enumerate(together):
            some = [each for each in found if _name(each) in names]
            told = await self._notify_together(some, f"{tick.isoformat()} {number}") and told
        if told:
            self._looked_at = tick

    async def _together(self, found: Sequence[dict[str, Any]], tick: datetime) -> list[list[str]]:
        """Return the names of those that are told together, a list for each message; new ones are stored."""
        before = await self.queue.state.read(TOPIC)
        kept = json.loads(before or "{}")
        groups: list[list[str]] = kept.get(tick.isoformat(), [])
        more = [
            _name(each)
            for each in found[_MAX_AT_ONCE:]
            if not any(_name(each) in names for names in groups)
            and not await self.queue.outbox.is_posted(_once(each))
        ]
        if more:
            groups = [*groups, more]
            if not await self.queue.state.swap(TOPIC, before, json.dumps({tick.isoformat(): groups})):
                raise StoreUnavailable("the reminders are being changed elsewhere")
        return groups

    async def _notify_together(self, some: Sequence[dict[str, Any]], name: str) -> bool:
        """Tell of these in one message; False if there is no place for it now."""
        if not some:
            return True
        names = ", ".join(f"`{_quoted(each['summary'])}` {each['when']}" for each in some)
        text = _("Coming up as well: {names}", names=one_line(names, _MAX_CHARS))
        reached = await self.notifier.notify("appointments", text, once=("reminders beside", name))
        return reached.target is not None

    async def _notify(self, each: dict[str, Any]) -> bool:
        """Tell of one; False if there is no place for it now."""
        title, place = _quoted(each["summary"]), _quoted(each["location"])
        what = f"`{title}`" + (f" (`{place}`)" if place else "")
        text = _("Coming up: {what}, {when}", what=what, when=each["when"])
        reached = await self.notifier.notify("appointments", text, once=_once(each))
        return reached.target is not None


def _once(each: dict[str, Any]) -> tuple[str, str]:
    """The name under which one is posted, and the moment that it is told of."""
    return f"reminder {hashlib.sha256(str(each['key']).encode()).hexdigest()[:32]}", str(each["at"])


def _name(each: dict[str, Any]) -> str:
    return " ".join(_once(each))


def _quoted(said: object) -> str:
    return str(said).replace("`", "'")
