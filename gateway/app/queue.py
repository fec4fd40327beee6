"""
Composition root: opens the queue, and registers this process as one that works on it.

`gateway.app` calls it, and only `gateway.app`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from gateway.app.account_state import checked_account_state, closing, open_account_state
from gateway.app.environment import Environment
from gateway.queue.lease import Holders, LeaseKeeper
from gateway.queue.opening import freed_beside, notifications_beside, of_server, opened_queue
from gateway.queue.rollback_guard import Extent, RollbackGuard, read_high_water_mark
from gateway.queue.sql.cluster import PROCESS
from gateway.queue.stores import Queue
from gateway.supervision.other_processes import OtherProcesses
from gateway.system.event_loop import WatchfulLoop

if TYPE_CHECKING:
    from gateway.queue.postgres.account_state import AccountState
    from gateway.queue.postgres.notifications import Notifications


@dataclass(frozen=True, slots=True)
class Membership:
    """
    This process as one of those that work on a database of PostgreSQL. An embedded queue has one process.

    Args:
        account_state: Where accounts keep their logins and keys; None: in the home.
    """

    lease: LeaseKeeper
    others: OtherProcesses
    notifications: Notifications
    account_state: AccountState | None


@asynccontextmanager
async def open_queue(env: Environment) -> AsyncIterator[tuple[Queue, Membership | None]]:
    """
    Open the database and register as one of the processes that work on it.

    Inside nothing is in hand that another process could take over. The lease is relied on from the end; an
    error gives everything back.

    Raises:
        StoreUnavailable: Not now.
        StoreUnusable, ConfigInvalid: It is damaged or too new, or is not what the settings say.
        LeaseTaken, LeaseLost: Somebody needs the database alone.
    """
    settings = env.settings
    async with AsyncExitStack() as failed:
        queue = await opened_queue(
            env.home.database,
            settings.store_url,
            clock=env.clock,
            durable=settings.gateway.durability == "full",
            zone=settings.llm.budget.limits(settings.agents.heartbeat.timezone).zone,
            wakeups=env.wakeups,
        )
        queue = env.overrides.wrap_queue(queue)
        failed.push_async_callback(_shielded, queue.aclose)
        membership = None if settings.store_url is None else await _join(env, queue, failed)
        yield queue, membership
        if membership is not None:
            await membership.lease.begin()
        failed.pop_all()


async def _join(env: Environment, queue: Queue, failed: AsyncExitStack) -> Membership:
    state = await checked_account_state(env.settings, env.home, queue)
    if state is not None:
        failed.push_async_callback(_shielded, closing(state))
    lease = await _take_lease(env, queue)
    failed.push_async_callback(_shielded, lease.give_back)
    if state is not None:
        await open_account_state(state)
    notifications = notifications_beside(queue)
    return Membership(lease, OtherProcesses(notifications), notifications, state)


async def _shielded(release: Callable[[], Awaitable[None]]) -> None:
    with anyio.CancelScope(shield=True):
        await release()


async def _take_lease(env: Environment, queue: Queue) -> LeaseKeeper:
    """
    Take the lease of a process.

    Raises:
        LeaseTaken: Somebody needs the database alone.
        StoreUnavailable: Not now.
        ConfigInvalid: The role may not write there.
    """
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
    loop = asyncio.get_running_loop()
    if isinstance(loop, WatchfulLoop):
        loop.on_wake(lease.check)
    return lease


async def guard_against_rollback(env: Environment, queue: Queue) -> RollbackGuard:
    """
    The guard, after its first look at whether the database is an older copy.

    Raises:
        ConfigInvalid: It is an older copy, or its server has restored it to an earlier moment, and no person
            has said so.
    """
    maintenance = queue.maintenance

    async def extent() -> Extent:
        return Extent.of(maintenance.identity, *await maintenance.last_ids())

    gap = None
    if (begun := getattr(queue, "begun", None)) is not None:
        with of_server():
            gap = await begun(read_high_water_mark(env.home.high_water_mark))
    guard = RollbackGuard(env.home.high_water_mark, extent, env.clock, gap)
    # With a lesser durability a power cut makes it older by itself, which its owner has accepted.
    settings = env.settings
    await guard.look(refuses=settings.store_url is None and settings.gateway.durability == "full")
    return guard
