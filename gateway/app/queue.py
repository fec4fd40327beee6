"""The part of the composition root that opens the queue. `gateway.app` calls it, and only `gateway.app`."""

from __future__ import annotations

import asyncio

from gateway.app.environment import Configured, Environment
from gateway.queue.lease import Holders, LeaseKeeper
from gateway.queue.opening import of_server, opened_queue
from gateway.queue.ports import Queue
from gateway.queue.rollback_guard import Extent, RollbackGuard, read_high_water_mark
from gateway.queue.sql.cluster import PROCESS
from gateway.routing.access import LOCAL_CHANNELS
from gateway.supervision.accounts import Accounts
from gateway.supervision.others_work import Notifying
from gateway.system.event_loop import WatchfulLoop

__all__ = ["accounts_under", "guard_against_rollback", "open_queue", "take_lease"]


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


async def take_lease(env: Environment, queue: Queue) -> LeaseKeeper | None:
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
    lease = LeaseKeeper(
        queue.maintenance,
        queue.snapshots.file,
        Holders(env.home.lease_holders),
        name=PROCESS,
        times=env.overrides.lease,
    )
    with of_server():
        await lease.take()
    loop = asyncio.get_running_loop()
    if isinstance(loop, WatchfulLoop):
        loop.on_wake(lease.check)
    return lease


def accounts_under(
    lease: LeaseKeeper | None,
    env: Environment,
    queue: Queue,
    configured: Configured,
    notifying: Notifying | None,
) -> Accounts | None:
    """The accounts of this process, taken under its lease; None: there is one process, which has them all."""
    if lease is None:
        return None
    names = [name for name in configured if name not in LOCAL_CHANNELS]
    shared = env.settings.owner.conversation == "shared"
    accounts = Accounts(
        queue.maintenance,
        lease,
        {name: configured[name][0].account for name in names},
        together=[name for name in names if env.access.owner_on(name)] if shared else (),
        look_every_s=env.overrides.lease.retried_s,
        drain_s=env.settings.gateway.drain_seconds,
        notifying=notifying,
    )
    accounts.tell_of(env.wakeups)
    return accounts


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
