"""Two stores in PostgreSQL keep what they promise (`races.py`), and with locks that do nothing they would not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.store.postgres.histories.database_memory import PostgresMemory
from gateway.store.postgres.postgres_connection import Transaction
from gateway.store.postgres.postgres_queue import HOME, PostgresQueue
from gateway.store.sql.engine import journal_lines
from tests.clock import ManualClock
from tests.contract import races_of_calls, races_of_memory
from tests.contract.races import Race, is_noticed, run_race
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.integration]


@asynccontextmanager
async def two_queues(url: str, clock: ManualClock) -> AsyncIterator[tuple[Any, Any]]:
    """Two that keep a journal, which the races of calls look at."""
    async with await PostgresQueue.open(url, clock=clock, journal=journal_lines) as one:
        async with await PostgresQueue.open(url, clock=clock, journal=journal_lines) as other:
            yield one, other


@asynccontextmanager
async def two_memories(url: str, clock: ManualClock) -> AsyncIterator[tuple[Any, Any]]:
    """Two as a daemon has them: histories and memory in the database, and no journal."""
    async with await PostgresQueue.open(url, clock=clock) as one:
        async with await PostgresQueue.open(url, clock=clock) as other:
            yield tuple(  # type: ignore[misc]
                SimpleNamespace(**vars(queue), memory=PostgresMemory(queue.database, HOME))
                for queue in (one, other)
            )


Opens = Callable[[str, ManualClock], AbstractAsyncContextManager[tuple[Any, Any]]]
CASES: list[tuple[Race, Opens]] = [
    *((race, two_queues) for race in races_of_calls.RACES),
    *((race, two_memories) for race in races_of_memory.RACES),
]


def of(*, locked: bool | None = None) -> pytest.MarkDecorator:
    """All races, or those in which a lock or in which a statement decides."""
    cases = [case for case in CASES if locked is None or (case[0].guard != "statement") is locked]
    return pytest.mark.parametrize(
        ("race", "opens"), cases, ids=[race.name.replace(" ", "-") for race, _ in cases]
    )


@pytest.fixture
def two(
    postgres: PostgresServer, tables: str, opens: Opens
) -> Callable[[], AbstractAsyncContextManager[Any]]:
    """Opens two on a database of their own."""
    return lambda: opens(postgres.url(postgres.new_database(template=tables)), ManualClock())


@of()
async def test_whoever_is_first_the_result_is_right(race: Race, two: Any) -> None:
    """Both calls have returned or were refused, and what they left is what one after the other leaves."""
    async with two() as (one, other):
        await run_race(race, one, other)


@of(locked=True)
async def test_without_locks_it_is_not(monkeypatch: pytest.MonkeyPatch, race: Race, two: Any) -> None:
    """The negative control."""
    monkeypatch.setattr(Transaction, "lock", lambda *_: None)
    assert await is_noticed(race, two)


@of(locked=False)
async def test_a_statement_that_decides_needs_no_lock(
    monkeypatch: pytest.MonkeyPatch, race: Race, two: Any
) -> None:
    """What is said of these races is true: no lock is what makes them right."""
    monkeypatch.setattr(Transaction, "lock", lambda *_: None)
    async with two() as (one, other):
        await run_race(race, one, other)
