"""
From settings to channels: one for each account that is switched on, with its inbox, its deliveries and its
supervisor.

A part of the composition root (`gateway.app`). What is off is not even imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from math import inf

from agent_core.ports import Clock
from channels.attachments import AttachmentStore
from channels.base import Channel
from channels.email.config import EmailConfig
from channels.heartbeat.channel import HeartbeatChannel
from channels.matrix.config import MatrixConfig
from channels.terminal import TerminalChannel
from gateway.queue.ports import WorkStore
from gateway.queue.wakeups import Alert, Wakeups
from gateway.routing.access import LOCAL_CHANNELS, Access, Role
from gateway.routing.crash_isolation import CrashIsolation
from gateway.routing.delivery import Delivery
from gateway.routing.inbox import ChannelInbox, IntakeGate
from gateway.settings import Settings
from gateway.supervision.supervisor import Supervisor
from gateway.system.home import Home
from gateway.turns.commands.service import CommandService

__all__ = ["Configured", "build_channels", "build_deliveries", "watch_channels"]

Built = tuple[Channel, str]
Configured = Mapping[str, tuple[Channel, str]]
"""Channels by name, each with its queue mode."""


def build_channels(
    settings: Settings,
    home: Home,
    clock: Clock,
    *,
    access: Access,
    wakeups: Wakeups,
    attachments: AttachmentStore,
) -> dict[str, Built]:
    """The configured channels by name, each with its queue mode."""
    channels: dict[str, Built] = {
        "terminal": (TerminalChannel(now=clock.now, on_attach=wakeups.attached.fire), "merge")
    }
    accounts = settings.channels.enabled()
    for name, config in accounts.items():
        if isinstance(config, MatrixConfig):
            made = _matrix(name, config, home, clock, access=access, attachments=attachments)
        else:
            made = _email(name, config, home, clock, access=access, wakeups=wakeups, attachments=attachments)
        channels[name] = (made, config.batching)
    heartbeat = settings.agents.heartbeat
    if heartbeat.enabled and accounts:
        channels["heartbeat"] = (
            HeartbeatChannel(
                heartbeat.schedule(),
                checklist=home.path(settings.agents.workspace) / "HEARTBEAT.md",
                clock=clock,
                watches=heartbeat.watch,
                again_after=timedelta(hours=heartbeat.dedupe_hours),
            ),
            "each",
        )
    return channels


def _may_talk(access: Access, name: str, address: str) -> bool:
    return access.role(name, address, verified=True) is not Role.STRANGER


def _is_owner(access: Access, name: str, address: str) -> bool:
    return access.role(name, address, verified=True) is Role.OWNER


def _matrix(
    name: str,
    config: MatrixConfig,
    home: Home,
    clock: Clock,
    *,
    access: Access,
    attachments: AttachmentStore,
) -> Channel:
    from channels.matrix.channel import MatrixChannel  # noqa: PLC0415 - nio is heavy

    return MatrixChannel(
        name,
        config,
        state_dir=home.state(name),
        clock=clock,
        may_invite=partial(_may_talk, access, name),
        is_owner=partial(_is_owner, access, name),
        attachments=attachments,
    )


def _email(
    name: str,
    config: EmailConfig,
    home: Home,
    clock: Clock,
    *,
    access: Access,
    wakeups: Wakeups,
    attachments: AttachmentStore,
) -> Channel:
    from channels.email.channel import EmailChannel  # noqa: PLC0415 - loaded where it is used

    return EmailChannel(
        name,
        config,
        state_dir=home.state(name),
        clock=clock,
        knows=partial(_may_talk, access, name),
        is_owner=partial(_is_owner, access, name),
        alert=lambda about, text: wakeups.alert.fire(Alert(about, text)),
        attachments=attachments,
    )


def build_deliveries(
    channels: Configured,
    store: WorkStore,
    clock: Clock,
    *,
    suspects: CrashIsolation,
    wakeups: Wakeups,
) -> dict[str, Delivery]:
    """Who sends what is in the outbox, by channel; for arguments see `Delivery`."""
    return {
        # A local answer waits for its person as long as it takes.
        name: Delivery(
            channel,
            store,
            clock,
            suspects=suspects,
            wakeups=wakeups,
            **({"give_up_after_s": inf} if name in LOCAL_CHANNELS else {}),
        )
        for name, (channel, _) in channels.items()
    }


def watch_channels(
    supervisor: Supervisor,
    channels: Configured,
    *,
    store: WorkStore,
    access: Access,
    intake: IntakeGate,
    commands: CommandService,
) -> None:
    """Put every channel and its inbox into the supervisor's care; for arguments see `ChannelInbox`."""
    for name, (channel, _) in channels.items():
        inbox = ChannelInbox(
            name,
            channel.account,
            store=store,
            access=access,
            intake=intake,
            report=partial(supervisor.report, name),
            is_command=commands.is_command,
            is_stop=commands.is_stop,
        )
        supervisor.watch(channel, inbox)
