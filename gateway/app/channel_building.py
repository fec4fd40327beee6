"""
Composition root: a channel for each enabled account, with its inbox and its deliveries. A part of the
composition root (`gateway.app`). What is off is not even imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from channels.attachments import AttachmentStore
from channels.base import Channel
from channels.plugin import ChannelServices
from channels.terminal import TerminalChannel
from gateway.app.environment import Configured, Environment
from gateway.app.state_folders import folders_of
from gateway.plugins import channel_kinds
from gateway.proactive.owner_alerts import disk_alert
from gateway.routing.access import LOCAL_CHANNELS, Access, Role, normalise
from gateway.routing.acknowledgements import Acknowledgements
from gateway.routing.conversations import Conversations
from gateway.routing.crash_isolation import CrashIsolation
from gateway.routing.delivery import Delivery
from gateway.routing.intake import AcceptGate, ChannelInbox
from gateway.store.stores import Queue
from gateway.store.wakeups import Alert, Wakeups
from gateway.supervision.supervisor import Supervisor
from gateway.turns.commands.command_service import CommandService
from gateway.turns.commands.worded_answers import WordedAnswers

if TYPE_CHECKING:
    from gateway.store.postgres.account_documents import AccountState


@dataclass(frozen=True, slots=True)
class RoutingParts:
    """The result of `build_routing`; ``deliveries`` are by channel."""

    acknowledgements: Acknowledgements
    suspects: CrashIsolation
    deliveries: Mapping[str, Delivery]


def build_accounts(env: Environment, attachments: AttachmentStore, state: AccountState | None) -> Configured:
    """Build the terminal and a channel for each configured account."""
    clock, access, wakeups = env.clock, env.access, env.wakeups
    attachments.on_blocked = lambda why: wakeups.alert.fire(disk_alert(why))
    folders = folders_of(env.home, state)
    if env.overrides.channels is not None:
        return env.overrides.channels
    channels: dict[str, tuple[Channel, str]] = {
        "terminal": (TerminalChannel(now=clock.now, on_attach=wakeups.attached.fire), "merge")
    }
    kinds = env.settings.channels.kinds()
    for name, config in env.settings.channels.enabled().items():
        services = ChannelServices(
            name=name,
            clock=clock,
            state=folders(name),
            attachments=attachments,
            may_talk=partial(_may_talk, access, name),
            is_owner=partial(_is_owner, access, name),
            owner_addresses=access.owner_addresses_on(name),
            alert=lambda about, text, once="": wakeups.alert.fire(Alert(about, text, once)),
            arrived=wakeups.attached.fire,
            language_of=partial(_language_of, access, name),
        )
        channels[name] = (channel_kinds()[kinds[name]].build(config, services), config.batching)
    return channels


def _may_talk(access: Access, name: str, address: str) -> bool:
    return access.role(name, address, verified=True) is not Role.STRANGER


def _is_owner(access: Access, name: str, address: str) -> bool:
    return access.role(name, address, verified=True) is Role.OWNER


def _language_of(access: Access, name: str, address: str) -> str:
    return "" if _is_owner(access, name, address) else access.household.rules(normalise(address)).language


def build_routing(env: Environment, queue: Queue, channels: Configured) -> RoutingParts:
    """Build what carries messages from the queue to the channels."""
    suspects = CrashIsolation(queue.maintenance)
    deliveries = {
        # A local answer waits for its person as long as it takes.
        name: Delivery(
            channel,
            queue,
            env.clock,
            suspects=suspects,
            wakeups=env.wakeups,
            conversations=env.conversations,
            **({"give_up_after_s": inf} if name in LOCAL_CHANNELS else {}),
        )
        for name, (channel, _) in channels.items()
    }
    acknowledgements = Acknowledgements({name: channel for name, (channel, _) in channels.items()})
    return RoutingParts(acknowledgements, suspects, deliveries)


def watch_channels(
    supervisor: Supervisor,
    channels: Configured,
    *,
    queue: Queue,
    intake: AcceptGate,
    commands: CommandService,
    answers: WordedAnswers,
    conversations: Conversations,
    wakeups: Wakeups,
) -> None:
    """Give every channel its inbox and have the supervisor keep it up; for arguments see `ChannelInbox`."""
    for name, (channel, _) in channels.items():
        inbox = ChannelInbox(
            channel,
            store=queue,
            conversations=conversations,
            intake=intake,
            report=partial(supervisor.report, name),
            commands=commands,
            hear=answers.settle_answers,
            cut_off=wakeups.stopped.fire,
        )
        supervisor.watch(channel, inbox)
