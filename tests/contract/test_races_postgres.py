"""Two stores in PostgreSQL keep what they promise (`races.py`), and with locks that do nothing they would not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.queue.ports import Queue
from gateway.queue.postgres.connection import Transaction
from gateway.queue.postgres.store import PostgresQueue, migrate
from gateway.queue.sql.base import journal_lines
from tests.clock import ManualClock
from tests.contract.races import Race, is_noticed, run_race
from tests.contract.races_of_calls import RACES
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def tables(postgres: PostgresServer) -> str:
    """A database with squidbot's tables, of which those of the tests are copies."""
    name = postgres.new_database()
    migrate(postgres.url(name))
    return name


@asynccontextmanager
async def two_stores(server: PostgresServer, tables: str) -> AsyncIterator[tuple[Queue, Queue]]:
    """Two queues on a database of their own."""
    url, clock = server.url(server.new_database(template=tables)), ManualClock()
    # With a journal, which the races look at; those of histories and memory are in `test_memory_races`.
    async with await PostgresQueue.open(url, clock=clock, journal=journal_lines) as one:
        async with await PostgresQueue.open(url, clock=clock, journal=journal_lines) as other:
            yield one, other


def name_of(race: Race) -> str:
    return race.name.replace(" ", "-")


@pytest.mark.parametrize("race", RACES, ids=name_of)
async def test_whoever_is_first_the_result_is_right(
    postgres: PostgresServer, tables: str, race: Race
) -> None:
    """Both calls have returned or were refused, and what they left is what one after the other leaves."""
    async with two_stores(postgres, tables) as (one, other):
        await run_race(race, one, other)


@pytest.mark.parametrize("race", [race for race in RACES if race.guard != "statement"], ids=name_of)
async def test_without_locks_it_is_not(
    postgres: PostgresServer, tables: str, monkeypatch: pytest.MonkeyPatch, race: Race
) -> None:
    """The negative control."""
    monkeypatch.setattr(Transaction, "lock", lambda *_: None)
    assert await is_noticed(race, lambda: two_stores(postgres, tables))


@pytest.mark.parametrize("race", [race for race in RACES if race.guard == "statement"], ids=name_of)
async def test_a_statement_that_decides_needs_no_lock(
    postgres: PostgresServer, tables: str, monkeypatch: pytest.MonkeyPatch, race: Race
) -> None:
    """What is said of these races is true: no lock is what makes them right."""
    monkeypatch.setattr(Transaction, "lock", lambda *_: None)
    async with two_stores(postgres, tables) as (one, other):
        await run_race(race, one, other)
