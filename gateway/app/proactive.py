"""
Composition root: what acts without being asked: the heartbeat, scheduled jobs, messages to the owner.
`gateway.app` calls it, and only `gateway.app`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from agent_core.messages import InboundMessage, SessionKey
from agent_core.models import ScopeKind, Session
from agent_core.ports import ToolPort
from agent_core.tools.attachment_tools import ConversationFiles, ReadAttachmentTool
from agent_core.tools.schedule_tool import ScheduleTool
from agent_core.tools.send_message import SendMessageTool
from agent_core.tools.web.plugin import web_client
from channels.base import Channel, ChannelUnavailable, SupportsRoomNames
from channels.heartbeat.channel import HeartbeatChannel, TickLog
from gateway.app.agent import AgentParts
from gateway.app.agent_tools import sendable_files
from gateway.app.background_start import BackgroundParts, build_background
from gateway.app.environment import Configured, Environment
from gateway.budget.budget_alerts import BudgetAlerts
from gateway.operations.operation_views import room_name
from gateway.proactive.appointment_reminders import AppointmentReminders
from gateway.proactive.heartbeat_monitor import HeartbeatMonitor
from gateway.proactive.jobs.job_permissions import current_role
from gateway.proactive.jobs.job_service import JobPlace, JobService, SessionJobs
from gateway.proactive.jobs.scheduler import Scheduler
from gateway.proactive.jobs.trigger_parsing import zone_name
from gateway.proactive.jobs.watcher import Watcher
from gateway.proactive.messenger import Messenger, RunMessages
from gateway.proactive.owner_alerts import OwnerAlerts
from gateway.proactive.owner_contact import OwnerContact
from gateway.proactive.owner_notifier import OwnerNotifier
from gateway.routing.access import Role
from gateway.store.background_job_rows import KIND
from gateway.store.stores import Queue
from gateway.supervision.gateway import Proactive

_NOT_IN_A_JOB = "A scheduled job cannot create jobs; tell the person to ask for it."
_NOT_PROVEN = "Whose address is not proven cannot have anything scheduled."


def build_contact(env: Environment, queue: Queue, accounts: Configured) -> OwnerContact:
    """Build what knows where the owner is reached."""
    return OwnerContact(
        queue.state,
        setting=env.settings.agents.heartbeat.target,
        channels={name: channel for name, (channel, _) in accounts.items()},
        access=env.access,
        wakeups=env.wakeups,
    )


def build_proactive(
    env: Environment,
    queue: Queue,
    agent: AgentParts,
    accounts: Configured,
    *,
    contact: OwnerContact,
) -> Proactive:
    """Build the heartbeat, which is a channel of its own, scheduled jobs, and alerts to the owner."""
    agents, clock, access, wakeups = env.settings.agents, env.clock, env.access, env.wakeups
    config, scheduling = agents.heartbeat, agents.schedule
    channels = {name: channel for name, (channel, _) in accounts.items()}
    zone = zone_name(scheduling.timezone, config.timezone)
    notifier = OwnerNotifier(queue, contact, clock, env.conversations)
    alerts = OwnerAlerts(store=queue, target=contact, notifier=notifier, clock=clock, wakeups=wakeups)
    budget = BudgetAlerts(notifier=notifier, spending=agent.metering, clock=clock, wakeups=wakeups)
    monitor, heartbeat = _watched_heartbeat(env, queue, notifier, alerts, channels)
    jobs = JobService(
        queue.jobs,
        scheduling,
        zone=zone,
        clock=clock,
        crowd=access.server_group,
        people=partial(_people_in, channels),
        room_name=partial(room_name, channels=channels),
    )
    scheduler, watcher = _scheduler(env, queue, agent, channels, check_ins=heartbeat is not None)
    background_jobs = build_background(env, queue, agent)
    contacts = agent.dav.find_contacts
    messenger = Messenger(
        queue, contact, access=access, channels=channels, clock=clock, find_contacts=contacts
    )
    tools = _RunTools(env, agent, channels, messenger, jobs, background_jobs)

    background: list[Callable[[], Coroutine[Any, Any, None]]] = [monitor.run, alerts.run, budget.run]
    if heartbeat is not None and agent.dav.has_reminders:
        background.append(_reminders(env, queue, agent, notifier).run)
    if scheduling.enabled:
        background += [scheduler.run, watcher.run]
    return Proactive(
        plans=queue.jobs,
        owner_contact=contact,
        notifier=notifier,
        owner_alerts=alerts,
        budget=budget,
        jobs=jobs,
        background_jobs=background_jobs.jobs,
        scheduler=scheduler,
        monitor=monitor,
        heartbeat=heartbeat,
        tools=tools.offer,
        background=background,
        owner=tools.owner,
        zone=config.schedule().zone,
        clock=clock,
    )


def _reminders(
    env: Environment, queue: Queue, agent: AgentParts, notifier: OwnerNotifier
) -> AppointmentReminders:
    schedule = env.settings.agents.heartbeat.schedule()
    return AppointmentReminders(agent.dav.list_reminders, queue, notifier, schedule, env.clock)


def _watched_heartbeat(
    env: Environment,
    queue: Queue,
    notifier: OwnerNotifier,
    alerts: OwnerAlerts,
    channels: Mapping[str, Channel],
) -> tuple[HeartbeatMonitor, HeartbeatChannel | None]:
    """Build the heartbeat, if there is one, and what notices that it misses."""
    config = env.settings.agents.heartbeat
    open_heartbeat = _heartbeat(env)
    monitor = HeartbeatMonitor(
        plans=queue.jobs,
        notifier=notifier,
        channels=channels,
        config=config,
        zone=zone_name(env.settings.agents.schedule.timezone, config.timezone),
        clock=env.clock,
        heartbeat=None if open_heartbeat is None else "heartbeat",
        keep=alerts.store_now,
    )
    return monitor, None if open_heartbeat is None else open_heartbeat(monitor)


def _scheduler(
    env: Environment, queue: Queue, agent: AgentParts, channels: Mapping[str, Channel], *, check_ins: bool
) -> tuple[Scheduler, Watcher]:
    watcher = Watcher(
        queue,
        env.conversations,
        env.clock,
        partial(web_client, env.settings.tools.web),
        files=agent.workspace_files,
        channels=channels,
        check_ins=check_ins,
    )
    scheduler = Scheduler(
        plans=queue.jobs,
        store=queue,
        conversations=env.conversations,
        channels=channels,
        config=env.settings.agents.schedule,
        clock=env.clock,
        wakeups=env.wakeups,
        look=watcher.begin,
    )
    return scheduler, watcher


@dataclass(frozen=True, slots=True)
class _RunTools:
    """The tools of one run that act later or elsewhere: messages, schedules, background jobs."""

    env: Environment
    agent: AgentParts
    channels: Mapping[str, Channel]
    messenger: Messenger
    jobs: JobService
    background_jobs: BackgroundParts

    @property
    def owner(self) -> tuple[str, ...]:
        """All addresses of the owner."""
        return (*(alias.address for alias in self.env.settings.owner.aliases), "local", "heartbeat")

    def offer(self, session: Session, messages: Sequence[InboundMessage]) -> list[ToolPort]:
        """Return the tools for a run that these messages caused."""
        message = messages[-1]
        found = self._send_tools(session, message)
        if message.kind == KIND:
            return found  # a background job makes no jobs
        ticks = message.kind == "tick"
        role = _role_of(self.env, self.channels, message)
        proven = role is not Role.STRANGER and message.sender.verified
        place = JobPlace(
            message.session,
            message.account,
            message.sender.address,
            session.audience,
            replace(message.context, notes=replace(message.notes, job=None)),
            persons=self.owner if role is Role.OWNER else (),
            since=session.since,
        )
        if proven:
            found += self.background_jobs.tools(session, place, by_heartbeat=ticks)
        if ticks or not self.env.settings.agents.schedule.enabled:
            return found
        refusal = "" if proven and message.kind != "job" else _NOT_IN_A_JOB if proven else _NOT_PROVEN
        mine = SessionJobs(self.jobs, place, refusal=refusal)
        return [ScheduleTool(mine, company=session.scope.kind is ScopeKind.ROOM), *found]

    def _send_tools(self, session: Session, message: InboundMessage) -> list[ToolPort]:
        """Return the tool that sends messages, for the owner alone; everybody else can only be answered."""
        if session.scope.kind is not ScopeKind.OWNER or message.kind == "tick":
            return []
        settings, home = self.env.settings, self.env.home
        known = ConversationFiles(session, self.agent.memory)
        who = message.sender.name or message.sender.address
        files = sendable_files(session, known, self.agent.attachments, settings=settings, home=home)
        sender = RunMessages(self.messenger, message.session, session.turn, who)
        received = ReadAttachmentTool(known, self.agent.attachments, self.env.clock).read_whole
        return [
            SendMessageTool(sender, known, files),
            *self.agent.dav.invitation_tools(session, received, sender),
        ]


async def _people_in(channels: Mapping[str, Channel], session: SessionKey) -> Mapping[str, str]:
    channel = channels.get(session.channel)
    return await channel.people(session.conversation) if isinstance(channel, SupportsRoomNames) else {}


def _role_of(env: Environment, channels: Mapping[str, Channel], message: InboundMessage) -> Role:
    """Return the sender's present role, for the tools that a run is offered."""
    if message.kind == "tick":
        return Role.OWNER
    try:
        return current_role(env.access, channels.get(message.channel), message)
    except ChannelUnavailable:
        return Role.STRANGER  # nothing may be made, until it is known


def _heartbeat(env: Environment) -> Callable[[TickLog], HeartbeatChannel] | None:
    """Make the heartbeat; None if there is none, because it is off or nobody can be reached."""
    config, checklist = (
        env.settings.agents.heartbeat,
        env.home.path(env.settings.agents.workspace) / "HEARTBEAT.md",
    )
    if env.overrides.channels is not None:
        return env.overrides.heartbeat
    if not config.enabled or not env.settings.channels.enabled():
        return None
    return lambda log: HeartbeatChannel(
        config.schedule(),
        checklist=checklist,
        clock=env.clock,
        watches=config.watch,
        again_after=timedelta(hours=config.dedupe_hours),
        log=log,
    )
