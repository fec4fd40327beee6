"""The part of the composition root that opens the queue. `gateway.app` calls it, and only `gateway.app`."""

from __future__ import annotations

import asyncio

from gateway.app.environment import Environment
from gateway.queue.lease import Holders, LeaseKeeper
from gateway.queue.opening import opened_queue
from gateway.queue.ports import Queue
from gateway.queue.rollback_guard import Extent, RollbackGuard
from gateway.system.event_loop import WatchfulLoop

__all__ = ["alone_on", "guard_against_rollback", "open_queue"]


async def open_queue(env: Environment) -> Queue:
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
    return env.overrides.wrap_queue(queue)


async def alone_on(env: Environment, queue: Queue) -> LeaseKeeper | None:
    """
    See that one process works on a database of PostgreSQL, which the lock on the home folder cannot.

    Returns what must run from now on; None where the lock is enough.

    Raises:
        LeaseTaken: Another process does.
        StoreUnavailable: Not now.
    """
    if env.settings.store_url is None:
        return None
    lease = LeaseKeeper(
        queue.maintenance, queue.snapshots.file, Holders(env.home.lease_holders), times=env.overrides.lease
    )
    await lease.take()
    loop = asyncio.get_running_loop()
    if isinstance(loop, WatchfulLoop):
        loop.on_wake(lease.check)
    return lease


async def guard_against_rollback(env: Environment, queue: Queue) -> RollbackGuard:
    """The guard, after its first look at whether the database is an older copy."""
    maintenance = queue.maintenance

    async def extent() -> Extent:
        return Extent.of(maintenance.identity, *await maintenance.last_ids())

    guard = RollbackGuard(env.home.high_water_mark, extent, env.clock)
    await guard.look()
    return guard
