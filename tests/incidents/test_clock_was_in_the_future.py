"""
A machine showed the year 2030 for an hour. What was put off in that hour noted when to go on, and would have
waited for four years after the clock had been mended: accepted, and never answered.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from agent_core.messages import SessionKey
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from tests.clock import ManualClock
from tests.contract.queue_data import BOT, OTHER, ROOM, accept, answered, claim

YEARS = timedelta(days=4 * 365)
WAIT_S = 300.0


class Wrong(ManualClock):
    """A clock that can be set."""

    def set_back(self, by: timedelta) -> None:
        self.advance(-by.total_seconds())


@pytest.fixture
def clock() -> Wrong:
    return Wrong()


@pytest.fixture
async def store(tmp_path: Path, clock: Wrong) -> AsyncIterator[SqliteQueue]:
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=clock) as opened:
        yield opened


async def put_off(store: SqliteQueue) -> None:
    """One message waits for its model, one answer for its server."""
    await accept(store, "question")
    await store.turns.retry(await claim(store), "the model is away", delay_s=WAIT_S, deferral=True)
    [answer] = await answered(store, "asked", "answer", session=OTHER)
    await store.outbox.sending(answer)
    await store.outbox.record_failure(answer, "the server is away", delay_s=WAIT_S)


async def due(store: SqliteQueue) -> tuple[bool, bool]:
    """Whether the message and the answer are due."""
    waiting: dict[SessionKey, float] = dict(await store.turns.open_sessions())
    assert waiting[ROOM] == await store.turns.due_in(ROOM)
    sends = await store.outbox.next_sends("matrix", BOT)
    assert bool(sends) is (await store.outbox.next_send_in("matrix", BOT) == 0.0)
    turn = await store.turns.claim(ROOM)
    assert (turn is not None) is (waiting[ROOM] == 0.0)
    return turn is not None, bool(sends)


async def test_nothing_waits_for_a_day_that_never_comes(store: SqliteQueue, clock: Wrong) -> None:
    """When the clock is right again, what waits is due at once."""
    clock.advance(YEARS.total_seconds())
    await put_off(store)
    assert await due(store) == (False, False)
    clock.set_back(YEARS)

    assert await due(store) == (True, True)


async def test_a_right_clock_is_obeyed(store: SqliteQueue, clock: Wrong) -> None:
    """What is put off waits, and no longer than it should."""
    await put_off(store)
    clock.advance(WAIT_S - 1)
    assert await due(store) == (False, False)
    clock.advance(1)

    assert await due(store) == (True, True)
