"""
A mail beyond the limit of the hour, or a question beyond the day's budget, waits for hours and its sender has been told
until when; after 35 minutes the operator was told that somebody waits for an answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from agent_core.errors import BudgetSpent
from agent_core.messages import OutboundKind
from gateway.budget.budget_policy import BudgetLimits
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import Turn
from gateway.turns.failure_and_deferral import Deferral
from tests.clock import ManualClock
from tests.contract.queue_data import OTHER, accept, claim, out

pytestmark = pytest.mark.anyio
Wait = Callable[[Deferral, Turn], Awaitable[None]]


class StoredAtOnce:
    def __init__(self, store: SqliteQueue) -> None:
        self.store = store

    async def retry_until_stored(self, write: Callable[[], Awaitable[Any]]) -> Any:
        return await write()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteQueue]:
    store = await SqliteQueue.open(tmp_path / "gateway.db", clock=clock)
    yield store
    await store.aclose()


async def for_the_place(deferral: Deferral, turn: Turn) -> None:
    assert await deferral.defer_to_place(turn)


async def for_the_budget(deferral: Deferral, turn: Turn) -> None:
    notice = [out("later", kind=OutboundKind.NOTICE)]
    await deferral.defer_to_budget(turn, BudgetSpent("spent"), notice)


@pytest.mark.parametrize("reason", [for_the_place, for_the_budget])
async def test_what_waits_for_a_time_that_was_told_has_no_age(
    store: SqliteQueue,
    clock: ManualClock,
    reason: Wait,
) -> None:
    """Nor what was written after it in the same conversation; that of others counts, and so does this when it is due."""
    await accept(store, "waits", "behind it", context={"wait_s": 5400.0})
    commit = cast("Any", StoredAtOnce(store))
    await reason(Deferral(commit=commit, limits=BudgetLimits(), clock=clock), await claim(store))
    clock.advance(600)
    assert (await store.maintenance.stats()).oldest_unanswered_s is None
    await accept(store, "of somebody else", session=OTHER)
    clock.advance(60)
    assert (await store.maintenance.stats()).oldest_unanswered_s == pytest.approx(60)
    clock.advance(5500 - 660)
    assert (await store.maintenance.stats()).oldest_unanswered_s == pytest.approx(5500)


async def test_what_waits_because_something_is_broken_has_an_age(
    store: SqliteQueue, clock: ManualClock
) -> None:
    """The control: a model that is away, however often it is tried again."""
    await accept(store, "waits")
    await store.turns.retry(await claim(store), "the model is away", delay_s=3600, deferral=True)
    clock.advance(1900)
    assert (await store.maintenance.stats()).oldest_unanswered_s == pytest.approx(1900)
