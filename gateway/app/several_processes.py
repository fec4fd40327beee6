"""
Composition root for several processes on one database: which accounts or sessions this process has, and what
it hears from the others.

`gateway.app` calls it, and only `gateway.app`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from agent_core.messages import SessionKey
from channels.base import Channel
from gateway.app.environment import Configured, Environment
from gateway.app.queue import Membership
from gateway.proactive.owner_contact import OwnerContact
from gateway.queue.stores import Queue
from gateway.routing.access import LOCAL_CHANNELS
from gateway.routing.typing_for_workers import TypingForWorkers
from gateway.supervision.accounts import Accounts
from gateway.supervision.signals import Told
from gateway.turns.handler import TurnHandler
from gateway.turns.post_turn import PostTurn

if TYPE_CHECKING:
    from gateway.supervision.worker_sessions import WorkerSessions


def build_share(
    env: Environment, queue: Queue, membership: Membership | None, accounts: Configured, contact: OwnerContact
) -> Accounts | WorkerSessions | None:
    """
    The accounts that this process takes under its lease, or the work that it does as a worker; None: there is
    one process, which has all of them.
    """
    if membership is None:
        return None
    names = [name for name in accounts if name not in LOCAL_CHANNELS]
    share: Accounts | WorkerSessions
    if env.is_worker:
        from gateway.supervision.worker_sessions import WorkerSessions  # noqa: PLC0415 - only in a worker

        share = WorkerSessions(
            queue.maintenance,
            membership.lease,
            names,
            places=env.settings.gateway.max_concurrent_turns,
            look_every_s=env.overrides.lease.retried_s,
            others=membership.others,
        )
    else:
        of_owner = [name for name in names if env.access.owner_on(name)]
        share = Accounts(
            queue.maintenance,
            membership.lease,
            {name: accounts[name][0].account for name in names},
            together=of_owner if env.settings.owner.conversation == "shared" else (),
            look_every_s=env.overrides.lease.retried_s,
            drain_s=env.settings.gateway.drain_seconds,
            owners=contact.channel,
            others=membership.others,
            leave=None if membership.turns is None else membership.turns.leave_to_workers,
        )
    share.tell_of(env.wakeups)
    return share


def listeners(
    membership: Membership | None,
    share: Accounts | WorkerSessions | None,
    channels: dict[str, Channel],
    handler: TurnHandler,
    post_turn: PostTurn,
) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """The tasks that hear other processes and do what they ask."""
    if membership is None or share is None:
        return []
    if share.is_worker:
        told = Told(membership.signals, share.hear, stopped=handler.stop)
        return [partial(membership.notifications.run, told.hear)]
    hints = TypingForWorkers(channels, share.has)

    def grown(session: SessionKey) -> None:
        if share.has(session.channel):
            post_turn.grown(session)

    told = Told(membership.signals, share.hear, typing=hints.show, grown=grown)
    return [partial(membership.notifications.run, told.hear), hints.run]
