"""Composition root: opens the queue, with the lease of its home; `gateway.app` alone calls it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from gateway.app.environment import Environment
from gateway.app.state_folders import check_accounts, checked_account_state, closing, open_account_state
from gateway.store.lease import Holders, LeaseKeeper
from gateway.store.opening import open_postgres, opened_queue
from gateway.store.rollback_guard import Extent, RollbackGuard, read_high_water_mark
from gateway.store.stores import Queue
from gateway.system.process_tuning import WakingLoop
from gateway.system.version import version

if TYPE_CHECKING:
    from gateway.store.postgres.account_documents import AccountState


@dataclass(frozen=True, slots=True)
class OpenQueue:
    """
    The queue and what belongs to it.

    ``lease`` is that of a home on PostgreSQL, not taken yet; ``account_state`` None: in the home; ``guard``
    records the database's extent.
    """

    queue: Queue
    lease: LeaseKeeper | None
    account_state: AccountState | None
    guard: RollbackGuard

    async def check_accounts(self, addresses: Mapping[str, str]) -> None:
        """Compare configured accounts (address by name). Raises ConfigInvalid, StoreUnavailable."""
        if self.account_state is not None:
            await check_accounts(self.account_state, addresses, note=False)

    async def begin(self, env: Environment, addresses: Mapping[str, str]) -> None:
        """
        Begin to work on the database, under the lease.

        Raises ConfigInvalid for an older copy, or a server restored to an earlier moment, that no person has
        accepted; StoreUnavailable.
        """
        if self.account_state is not None:
            await open_account_state(self.account_state)
            await check_accounts(self.account_state, addresses, note=True)
        gap = None
        if (check := getattr(self.queue, "check_restored", None)) is not None:
            with open_postgres():
                gap = await check(read_high_water_mark(env.home.high_water_mark))
        # With a lesser durability a power cut makes it older by itself, which its owner has accepted.
        refuses = env.settings.store_url is None and env.settings.gateway.durability == "full"
        await self.guard.check(gap, refuses=refuses)


@asynccontextmanager
async def open_queue(env: Environment) -> AsyncIterator[OpenQueue]:
    """Open the database, unchanged. Raises StoreUnavailable, StoreUnusable or ConfigInvalid."""
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
        state = await checked_account_state(settings, env.home, queue)
        if state is not None:
            failed.push_async_callback(_shielded, closing(state))
        lease = None if settings.store_url is None else await _lease(env, queue)
        yield OpenQueue(queue, lease, state, _rollback_guard(env, queue))
        failed.pop_all()


async def _shielded(release: Callable[[], Awaitable[None]]) -> None:
    with anyio.CancelScope(shield=True):
        await release()


async def _lease(env: Environment, queue: Queue) -> LeaseKeeper:
    """The lease of the home, not taken. Raises `ConfigInvalid` if the role may not write there."""
    lease = LeaseKeeper(
        queue.maintenance,
        queue.snapshots.file,
        Holders(env.home.lease_holders),
        machine=f"{socket.gethostname()} {env.home.root}",
        version=version(),
        times=env.overrides.lease,
    )
    with open_postgres():
        if (check := getattr(queue, "check_rights", None)) is not None:
            await check()
    loop = asyncio.get_running_loop()
    if isinstance(loop, WakingLoop):
        loop.on_wake(lease.check)
    return lease


def _rollback_guard(env: Environment, queue: Queue) -> RollbackGuard:
    maintenance = queue.maintenance

    async def extent() -> Extent:
        if guard.is_checked and (note := getattr(queue, "note_server", None)) is not None:
            await note()
        return Extent.from_counts(maintenance.identity, *await maintenance.last_ids())

    guard = RollbackGuard(env.home.high_water_mark, extent, env.clock)
    return guard
