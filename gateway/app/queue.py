"""The part of the composition root that opens the queue. `gateway.app` calls it, and only `gateway.app`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gateway.app.environment import Configured, Environment
from gateway.queue.lease import Holders, LeaseKeeper
from gateway.queue.opening import freed_beside, of_server, opened_queue, share_turns
from gateway.queue.ports import Queue
from gateway.queue.rollback_guard import Extent, RollbackGuard, read_high_water_mark
from gateway.queue.sql.cluster import PROCESS
from gateway.routing.access import LOCAL_CHANNELS
from gateway.supervision.accounts import Accounts
from gateway.supervision.others_work import Notifying
from gateway.supervision.signals import Signals
from gateway.system.event_loop import WatchfulLoop
from gateway.system.process_role import ProcessRole

if TYPE_CHECKING:
    from gateway.queue.sql.shared_turns import SharedTurns
    from gateway.supervision.worker_sessions import WorkerSessions

__all__ = ["Opened", "accounts_under", "guard_against_rollback", "open_queue", "take_lease"]


@dataclass(frozen=True, slots=True)
class Opened:
    """
    The queue.

    Args:
        queue: With what was put around it.
        shared: Its turns, where some are for workers and some for daemons with accounts.
    """

    queue: Queue
    shared: SharedTurns | None = None


async def open_queue(env: Environment) -> Opened:
    """
    Open the database.

    Raises:
        StoreUnavailable: Not now.
        StoreUnusable, ConfigInvalid: It is damaged or too new, or is not what the settings say.
    """
    settings = env.settings
    queue = await opened_queue(
        env.home.database,
        settings.store_url,
        clock=env.clock,
        durable=settings.gateway.durability == "full",
        zone=settings.llm.budget.limits(settings.agents.heartbeat.timezone).zone,
        wakeups=env.wakeups,
    )
    shared = None
    if env.role is not ProcessRole.ALL:
        channels = env.overrides.channels or env.settings.channels.enabled()
        shared = share_turns(queue, [name for name in channels if name not in LOCAL_CHANNELS])
    return Opened(env.overrides.wrap_queue(queue), shared)


async def take_lease(env: Environment, opened: Opened) -> LeaseKeeper | None:
    """
    Become one of the processes that work on a database of PostgreSQL.

    Returns what must run from now on; None for the embedded queue, where the lock on the home is enough.

    Raises:
        LeaseTaken: Somebody needs the database alone.
        StoreUnavailable: Not now.
        ConfigInvalid: The role may not write there.
    """
    if env.settings.store_url is None:
        return None
    queue = opened.queue
    lease = LeaseKeeper(
        queue.maintenance,
        queue.snapshots.file,
        Holders(env.home.lease_holders),
        name=PROCESS,
        times=env.overrides.lease,
        given_back=freed_beside(queue),
    )
    with of_server():
        if (check := getattr(queue, "check_rights", None)) is not None:
            await check()
        await lease.take()
        if env.is_worker:
            await queue.maintenance.begin_worker(lease.holder)
    if opened.shared is not None:
        opened.shared.holder = lease.holder
        if env.is_worker:
            from gateway.queue.sql.shared_turns import ClaimsAs  # noqa: PLC0415 - only in a worker

            opened.shared.claims_as = ClaimsAs.WORKER
    loop = asyncio.get_running_loop()
    if isinstance(loop, WatchfulLoop):
        loop.on_wake(lease.check)
    return lease


def accounts_under(
    lease: LeaseKeeper | None,
    env: Environment,
    opened: Opened,
    configured: Configured,
    *,
    notifying: Notifying | None,
    signals: Signals | None,
) -> Accounts | WorkerSessions | None:
    """
    The accounts of this process, taken under its lease, or what it works on as a worker; None: there is one
    process, which has them all.
    """
    if lease is None:
        return None
    names = [name for name in configured if name not in LOCAL_CHANNELS]
    look_every_s, maintenance = env.overrides.lease.retried_s, opened.queue.maintenance
    if env.is_worker:
        from gateway.supervision.worker_sessions import WorkerSessions  # noqa: PLC0415 - only in a worker

        return WorkerSessions(
            maintenance,
            lease,
            names,
            places=env.settings.gateway.max_concurrent_turns,
            look_every_s=look_every_s,
            notifying=notifying,
            signals=signals,
        )
    shared = env.settings.owner.conversation == "shared"
    return Accounts(
        maintenance,
        lease,
        {name: configured[name][0].account for name in names},
        together=[name for name in names if env.access.owner_on(name)] if shared else (),
        look_every_s=look_every_s,
        drain_s=env.settings.gateway.drain_seconds,
        notifying=notifying,
        signals=signals,
        leave=None if opened.shared is None else partial(_left, opened.shared),
    )


def _left(shared: SharedTurns, to_workers: bool) -> None:  # noqa: FBT001 - a callback
    """Leave to workers what they may claim, or no more."""
    from gateway.queue.sql.shared_turns import ClaimsAs  # noqa: PLC0415 - only beside workers

    shared.claims_as = ClaimsAs.ACCOUNT if to_workers else ClaimsAs.ALL


async def guard_against_rollback(env: Environment, queue: Queue) -> RollbackGuard:
    """
    The guard, after its first look at whether the database is an older copy.

    Raises:
        ConfigInvalid: The server has restored it to an earlier moment, and no person has said so.
    """
    maintenance = queue.maintenance

    async def extent() -> Extent:
        return Extent.of(maintenance.identity, *await maintenance.last_ids())

    gap = None
    if (begun := getattr(queue, "begun", None)) is not None:
        with of_server():
            gap = await begun(read_high_water_mark(env.home.high_water_mark))
    guard = RollbackGuard(env.home.high_water_mark, extent, env.clock, gap)
    await guard.look()
    return guard
