"""
The part of the composition root that carries: each channel's inbox, its deliveries, and who restarts it.

`gateway.app` calls it, and only `gateway.app`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf

from agent_core.messages import SessionKey
from agent_core.ports import Clock
from channels.base import Channel
from channels.status import ChannelStatus
from channels.terminal import TerminalChannel
from gateway.queue.ports import Dispatcher, WorkStore
from gateway.routing.access import LOCAL_CHANNELS, Access
from gateway.routing.crash_isolation import Suspects
from gateway.routing.delivery import Delivery
from gateway.routing.inbox import ChannelInbox, Intake, StopTurn
from gateway.supervision.gateway import CAN_SEND
from gateway.supervision.supervisor import Supervisor
from gateway.turns.commands.service import Desk
from gateway.turns.deferral_wakeups import Waits

__all__ = ["Configured", "build_deliveries", "build_supervisor"]

Configured = Mapping[str, tuple[Channel, str]]
"""Channels by name, each with its queue mode."""


def build_deliveries(
    channels: Configured,
    store: WorkStore,
    clock: Clock,
    committed: Callable[[SessionKey], None],
    suspects: Suspects,
) -> dict[str, Delivery]:
    """Who sends what is in the outbox, by channel; ``committed`` and ``suspects``: see `Delivery`."""
    deliveries = {
        # A local answer waits for its person as long as it takes.
        name: Delivery(
            channel,
            store,
            clock,
            committed=committed,
            suspects=suspects,
            **({"give_up_after_s": inf} if name in LOCAL_CHANNELS else {}),
        )
        for name, (channel, _) in channels.items()
    }
    for name, (channel, _) in channels.items():
        if isinstance(channel, TerminalChannel):
            channel.on_attach = deliveries[name].present
    return deliveries


def build_supervisor(
    channels: Configured,
    *,
    store: WorkStore,
    clock: Clock,
    dispatcher: Dispatcher,
    access: Access,
    intake: Intake,
    desk: Desk,
    stop_turn: StopTurn,
    wake_aside: Callable[[SessionKey, str], None],
    deliveries: Mapping[str, Delivery],
    waits: Waits,
    told: Callable[[ChannelStatus], None],
) -> Supervisor:
    """
    The supervisor, with every channel and its inbox in its care.

    Args:
        channels: What there is.
        store: Where messages go.
        clock: The time.
        dispatcher: Told of sessions with work.
        access: Who may speak.
        intake: Whether anything is taken.
        desk: Knows commands.
        stop_turn: See `ChannelInbox`.
        wake_aside: See `ChannelInbox`.
        deliveries: Told whether they can send.
        waits: Ends what waits for a link.
        told: Hears of every change of a link.
    """

    def changed(status: ChannelStatus) -> None:
        up = status.state in CAN_SEND
        deliveries[status.name].link(up=up)
        waits.link(status.name, up=up)
        told(status)

    supervisor = Supervisor(clock, on_change=changed)
    for name, (channel, _) in channels.items():
        inbox = ChannelInbox(
            name,
            channel.account,
            store=store,
            dispatcher=dispatcher,
            access=access,
            intake=intake,
            report=partial(supervisor.report, name),
            is_command=desk.is_command,
            is_stop=desk.is_stop,
            stop_turn=stop_turn,
            wake_aside=wake_aside,
        )
        supervisor.watch(channel, inbox)
    return supervisor
