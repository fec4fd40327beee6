"""A house with jobs and no check-ins: time passes, the scheduler looks, and what came of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from agent_core.messages import SessionKey
from gateway.proactive.jobs.config import ScheduleConfig
from gateway.proactive.jobs.job_service import JobPlace
from gateway.proactive.jobs.scheduler import Scheduler
from gateway.proactive.jobs.trigger_parsing import TriggerRequest
from gateway.routing.access import Access, Alias
from gateway.routing.conversations import Conversations
from gateway.store.model import Job, JobKind
from gateway.store.wakeups import Wakeups
from tests.proactive_world import ANN, BOB, house

START = datetime(2026, 5, 1, 8, tzinfo=UTC)

ANNS, BOBS = (SessionKey("matrix", f"dm-{one}") for one in (ANN, BOB))


def scheduled(tmp_path, clock=None, **more):
    more.setdefault("schedule", {"jitter_seconds": 0.0})
    return house(tmp_path, heartbeat={"enabled": False}, checklist=None, clock=clock, **more)


async def later(home, clock, **span) -> None:
    """Let time pass and have the scheduler look."""
    clock.advance(timedelta(**span).total_seconds())
    await home.built.proactive.scheduler.fire_due()


def said(home, person=BOB) -> list[str]:
    return [one.text for one in home.chat.seen(f"dm-{person}")]


async def settled(home) -> bool:
    stats = await home.built.store.maintenance.stats()
    open_work = stats.inbox["ready"] + stats.inbox["running"]
    return not open_work and not any(stats.outbox[state] for state in ("pending", "sending", "uncertain"))


async def made(home, text: str, *, ask: bool = False, person: str = BOB, cron: str = "0 * * * *") -> Job:
    place = JobPlace(SessionKey("matrix", f"dm-{person}"), "bot", person)
    kind = JobKind.ASK if ask else JobKind.REMIND
    return await home.built.proactive.jobs.add(place, TriggerRequest(cron=cron), text=text, kind=kind)


class Ruled:
    """A channel with a rule for a room: who may talk there."""

    def __init__(self, allowed: bool | None) -> None:
        self.allowed = allowed

    def allowed_here(self, session: SessionKey, person: str) -> bool | None:
        return self.allowed


def scheduler_on(store, clock, channel, general, plans=None) -> Scheduler:
    return Scheduler(
        plans=plans or store.jobs,
        store=store,
        conversations=Conversations(Access([Alias("matrix", ANN)], {"matrix": general})),
        channels={"matrix": channel},
        config=ScheduleConfig(),
        clock=clock,
        wakeups=Wakeups(),
        look=lambda *_: None,
    )
