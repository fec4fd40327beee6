"""Two processes change the same history, record or document at the same moment (`races.py`), and the controls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from agent_core.errors import CursorMoved, MemoryConflict
from agent_core.models import MemoryScope, Message, ScopeKind
from gateway.queue.postgres.connection import Transaction
from gateway.queue.postgres.histories.memory import PostgresMemory
from gateway.queue.postgres.store import HOME, PostgresQueue, migrate
from tests.clock import EPOCH, ManualClock
from tests.contract.queue_data import ROOM, accept, answer, claim
from tests.contract.races import Race, Ran, is_noticed, run_race
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

OWNER = MemoryScope(ScopeKind.OWNER)
SESSION = str(ROOM)


def line(name: str) -> Message:
    return Message(role="user", content=name, id=name, timestamp=EPOCH, scope="owner")


async def nothing(_: Any) -> None:
    """Nothing is prepared."""


async def two_lines(queue: Any) -> None:
    await queue.memory.append_message(SESSION, line("x"), line("y"))


async def remembered(queue: Any) -> None:
    await two_lines(queue)
    await queue.memory.save_consolidation(SESSION, summary="old", cursor=1)
    await queue.memory.save_global_memory(OWNER, "one")


async def taken(queue: Any) -> Any:
    await accept(queue, "a")
    return await claim(queue)


async def whole(ran: Ran) -> list[str]:
    """The lines of the history, which both calls have written to, without a gap."""
    assert not ran.failed, ran.both
    tail = await ran.queue.memory.load_history(SESSION)  # type: ignore[attr-defined]
    assert tail.positions == tuple(range(tail.total))
    return sorted(each.content for each in tail.messages)


async def both_are_there(ran: Ran) -> None:
    assert await whole(ran) == ["a", "b"]


async def one_is_there(ran: Ran) -> None:
    assert await whole(ran) == ["a"]


async def all_are_there(ran: Ran) -> None:
    assert await whole(ran) == ["b", "text of a", "yes"]


async def one_has_consolidated(ran: Ran) -> None:
    assert [type(one) for one in ran.both if isinstance(one, Exception)] == [CursorMoved]
    memory = ran.queue.memory  # type: ignore[attr-defined]
    tail = await memory.load_history(SESSION)
    assert (tail.summary, tail.cursor) in (("one", 1), ("other", 2))


async def both_have_changed_the_record(ran: Ran) -> None:
    assert not ran.failed, ran.both
    tail = await ran.queue.memory.load_history(SESSION)  # type: ignore[attr-defined]
    assert (tail.summary, tail.cursor) == ("new", 2)


async def one_has_written(ran: Ran) -> None:
    assert [type(one) for one in ran.both if isinstance(one, Exception)] == [MemoryConflict]
    assert len(await ran.queue.memory.memory_versions(OWNER)) == 2  # type: ignore[attr-defined]


async def both_have_written(ran: Ran) -> None:
    assert not ran.failed, ran.both
    versions = await ran.queue.memory.memory_versions(OWNER)  # type: ignore[attr-defined]
    assert [document.version for document, *_ in versions] == [1, 2, 3]


def appends(*names: str) -> Any:
    return lambda queue, _: queue.memory.append_message(SESSION, *map(line, names))


def consolidates(summary: str, cursor: int) -> Any:
    return lambda queue, _: queue.memory.save_consolidation(
        SESSION, summary=summary, cursor=cursor, base_cursor=0
    )


def writes(text: str, base: int | None = None) -> Any:
    return lambda queue, _: queue.memory.save_global_memory(OWNER, text, base_version=base)


RACES = [
    Race("two appends", nothing, appends("a"), appends("b"), both_are_there),
    Race("the same line twice", nothing, appends("a"), appends("a"), one_is_there),
    Race(
        "a line and an answer", taken, lambda queue, turn: answer(queue, turn, "out"), appends("b"), all_are_there
    ),
    Race("two first summaries", two_lines, consolidates("one", 1), consolidates("other", 2), one_has_consolidated,
         guard="statement"),
    Race(
        "a summary and a cursor",
        remembered,
        lambda queue, _: queue.memory.save_session_summary(SESSION, "new"),
        lambda queue, _: queue.memory.save_consolidated_cursor(SESSION, 2),
        both_have_changed_the_record,
    ),
    Race("two on one version", remembered, writes("two", 1), writes("three", 1), one_has_written,
         guard="statement"),
    Race("two without a version", remembered, writes("two"), writes("three"), both_have_written),
]  # fmt: skip


@pytest.fixture(scope="module")
def tables(postgres: PostgresServer) -> str:
    """A database with squidbot's tables, of which those of the tests are copies."""
    name = postgres.new_database()
    migrate(postgres.url(name))
    return name


@asynccontextmanager
async def two_stores(server: PostgresServer, tables: str) -> AsyncIterator[tuple[Any, Any]]:
    """Two processes on a database of their own."""
    url, clock = server.url(server.new_database(template=tables)), ManualClock()
    async with await PostgresQueue.open(url, clock=clock) as one:
        async with await PostgresQueue.open(url, clock=clock) as other:
            yield tuple(  # type: ignore[misc]
                SimpleNamespace(**vars(queue), memory=PostgresMemory(queue.database, HOME))
                for queue in (one, other)
            )


def name_of(race: Race) -> str:
    return race.name.replace(" ", "-")


@pytest.mark.parametrize("race", RACES, ids=name_of)
async def test_whoever_is_first_the_result_is_right(
    postgres: PostgresServer, tables: str, race: Race
) -> None:
    """Both have returned or were refused, and what they left is what one after the other leaves."""
    async with two_stores(postgres, tables) as (one, other):
        await run_race(race, one, other)


@pytest.mark.parametrize("race", [race for race in RACES if race.guard == "lock"], ids=name_of)
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
