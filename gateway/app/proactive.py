"""
What happens without anybody asking at that moment, put together: the heartbeat's care, the schedule, and the
tools that make jobs. The part of the composition root for it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from agent_core.messages import InboundMessage
from agent_core.models import Session
from agent_core.ports import Clock, ToolPort
from agent_core.tools.schedule import ScheduleTool
from channels.base import Channel, ChannelUnavailable
from channels.heartbeat.channel import HeartbeatChannel
from gateway.proactive.alerts import OwnerAlerts
from gateway.proactive.heartbeat_monitor import HeartbeatMonitor
from gateway.proactive.jobs.permissions import role_now
from gateway.proactive.jobs.scheduler import Scheduler
from gateway.proactive.jobs.service import JobService, Place, SessionJobs
from gateway.proactive.jobs.trigger_parsing import zone_named
from gateway.proactive.owner_contact import OwnerContact
from gateway.proactive.owner_notifier import OwnerNotifier
from gateway.queue.ports import JobStore, WorkStore
from gateway.queue.wakeups import Wakeups
from gateway.routing.access import Access, Role
from gateway.settings import Settings
from gateway.supervision.gateway import Proactive

__all__ = ["build_unasked"]

_NOT_IN_A_JOB = "A scheduled job cannot make jobs; tell the person to ask for it."
_OF_SEVERAL = (
    "Nothing was done: several people have spoken at once here, so whose wish this would be is not certain. "
    "Let the person who wants it ask for it once more, in a message of its own."
)
_NOT_PROVEN = "Whose address is not proven cannot have anything scheduled."


def build_unasked(
    settings: Settings,
    *,
    plans: JobStore,
    store: WorkStore,
    target: OwnerContact,
    notifier: OwnerNotifier,
    notes: OwnerAlerts,
    access: Access,
    channels: Mapping[str, Channel],
    clock: Clock,
    wakeups: Wakeups,
) -> Proactive:
    """
    Put it together.

    Args:
        settings: What is wanted.
        plans: Jobs, ledger and digest.
        store: Inbox and outbox.
        target: Where the owner is reached unasked.
        notifier: Tells the owner.
        notes: Keeps what cannot be told yet.
        access: Who may speak.
        channels: All channels by name.
        clock: The time.
        wakeups: Say what became true in the queue.
    """
    config, scheduling = settings.agents.heartbeat, settings.agents.schedule
    zone = zone_named(scheduling.timezone, config.timezone)
    aliases = settings.owner.aliases
    scheduler = Scheduler(
        plans=plans,
        store=store,
        access=access,
        channels=channels,
        config=scheduling,
        clock=clock,
        wakeups=wakeups,
    )
    desk = JobService(plans, scheduling, zone=zone, clock=clock)
    heartbeat = next((one for one in channels.values() if isinstance(one, HeartbeatChannel)), None)
    vigil = HeartbeatMonitor(
        plans=plans,
        notifier=notifier,
        target=target,
        channels=channels,
        config=config,
        zone=zone,
        clock=clock,
        heartbeat=None if heartbeat is None else heartbeat.name,
        keep=notes.keep,
    )
    if heartbeat is not None:
        heartbeat.log = vigil
    owner = (*(alias.address for alias in aliases), "local")

    def tools(session: Session, messages: Sequence[InboundMessage]) -> list[ToolPort]:
        message = messages[-1]
        if message.kind == "tick" or not scheduling.enabled:
            return []
        try:
            role = role_now(access, channels.get(session.key.channel), message)
        except ChannelUnavailable:
            role = Role.STRANGER  # nothing may be made, until it is known
        place = Place(
            session.key,
            message.account,
            message.sender.address,
            session.audience,
            {name: value for name, value in message.context.items() if name != "job"},
            persons=owner if role is Role.OWNER else (),
        )
        refusal = _NOT_IN_A_JOB if message.kind == "job" else ""
        if role is Role.STRANGER or not message.sender.verified:
            refusal = _NOT_PROVEN
        alone = len({one.sender.address for one in messages}) == 1
        return [ScheduleTool(SessionJobs(desk, place, refusal=refusal, closed="" if alone else _OF_SEVERAL))]

    background: list[Callable[[], Coroutine[Any, Any, None]]] = [vigil.run]
    if scheduling.enabled:
        background.append(scheduler.run)
    return Proactive(
        plans,
        target,
        desk,
        scheduler,
        vigil,
        notes,
        heartbeat,
        tools,
        background,
        owner,
        config.schedule().zone,
        clock,
    )
