"""The part of the composition root that opens the queue. `gateway.app` calls it, and only `gateway.app`."""

from __future__ import annotations

from gateway.app.environment import Environment
from gateway.queue.opening import opened_queue
from gateway.queue.ports import Queue
from gateway.queue.rollback_guard import Extent, RollbackGuard

__all__ = ["guard_against_rollback", "open_queue"]


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


async def guard_against_rollback(env: Environment, queue: Queue) -> RollbackGuard:
    """The guard, after its first look at whether the database is an older copy."""
    maintenance = queue.maintenance

    async def extent() -> Extent:
        return Extent.of(maintenance.identity, *await maintenance.last_ids())

    guard = RollbackGuard(env.home.high_water_mark, extent, env.clock)
    await guard.look()
    return guard
