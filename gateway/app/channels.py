"""
From settings to channels: one for each account that is switched on, each by its own name.

A part of the composition root (`gateway.app`). What is off is not even imported.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from agent_core.ports import Clock
from channels.attachments import AttachmentStore
from channels.base import Channel
from channels.email.config import EmailConfig
from channels.heartbeat.channel import HeartbeatChannel
from channels.matrix.config import MatrixConfig
from channels.terminal import TerminalChannel
from gateway.proactive.alerts import OwnerNotes
from gateway.routing.access import Access, Role
from gateway.settings import Settings
from gateway.system.home import Home

__all__ = ["build_channels"]

Built = tuple[Channel, str]


def build_channels(
    settings: Settings,
    home: Home,
    clock: Clock,
    *,
    access: Access,
    notes: OwnerNotes,
    attachments: AttachmentStore,
) -> dict[str, Built]:
    """The configured channels by name, each with its queue mode."""
    channels: dict[str, Built] = {"terminal": (TerminalChannel(now=clock.now), "merge")}
    accounts = settings.channels.enabled()
    for name, config in accounts.items():
        if isinstance(config, MatrixConfig):
            made = _matrix(name, config, home, clock, access=access, attachments=attachments)
        else:
            made = _email(name, config, home, clock, access=access, notes=notes, attachments=attachments)
        channels[name] = (made, config.queue)
    heartbeat = settings.agents.heartbeat
    if heartbeat.enabled and accounts:
        channels["heartbeat"] = (
            HeartbeatChannel(
                heartbeat.schedule(),
                checklist=home.path(settings.agents.workspace) / "HEARTBEAT.md",
                clock=clock,
                watches=heartbeat.watch,
                again_after=timedelta(hours=heartbeat.repeat_after_hours),
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
    notes: OwnerNotes,
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
        alert=notes.alert,
        attachments=attachments,
    )
