"""The part of the composition root that opens the queue. `gateway.app` calls it, and only `gateway.app`."""

from __future__ import annotations

import socket
from contextlib import suppress

import anyio

from gateway.app.environment import Environment
from gateway.queue.opening import opened_queue
from gateway.queue.ports import Queue, StoreUnavailable
from gateway.queue.rollback_guard import Extent, RollbackGuard

__all__ = ["OneDaemon", "guard_against_rollback", "open_queue"]

_LEASE = "daemon"
_LEASE_S = 30.0
_RENEWED_S = 10.0


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


class OneDaemon:
    """
    Sees that one daemon works on a database of PostgreSQL, which the lock on the home folder cannot.

    The holder is the home folder on its machine, so a daemon that was killed starts again at once, and one
    from another folder only when this one has given no sign for half a minute.
    """

    def __init__(self, env: Environment, queue: Queue) -> None:
        self._queue = queue
        self._needed = env.settings.store_url is not None
        self._holder = f"{socket.gethostname()}:{env.home.root}"

    async def take(self) -> None:
        """
        Take the lease, or renew it.

        Raises:
            StoreUnavailable: Another daemon has it.
        """
        if not self._needed:
            return
        if await self._queue.maintenance.lease(_LEASE, holder=self._holder, ttl_s=_LEASE_S) is None:
            raise StoreUnavailable(
                f"another squidbot works on {self._queue.snapshots.file}, or did until a moment ago",
                path=self._queue.snapshots.file,
                operation="open",
            )

    async def run(self) -> None:
        """Renew it. Whoever has lost it, because it was frozen, must not go on."""
        while self._needed:
            await anyio.sleep(_RENEWED_S)
            try:
                await self.take()
            except StoreUnavailable as error:
                if error.fields.get("operation") == "open":
                    raise

    async def give_back(self) -> None:
        """Let the next one begin at once."""
        if self._needed:
            with suppress(StoreUnavailable):
                await self._queue.maintenance.release_lease(_LEASE, holder=self._holder)


async def guard_against_rollback(env: Environment, queue: Queue) -> RollbackGuard:
    """The guard, after its first look at whether the database is an older copy."""
    maintenance = queue.maintenance

    async def extent() -> Extent:
        return Extent.of(maintenance.identity, *await maintenance.last_ids())

    guard = RollbackGuard(env.home.high_water_mark, extent, env.clock)
    await guard.look()
    return guard
