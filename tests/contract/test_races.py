"""Two stores on one database keep what they promise, and without locks they would not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from gateway.store.sqlite import sqlite_schema
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import Queue
from tests.clock import ManualClock
from tests.contract.races import Race, is_noticed, run_race
from tests.contract.races_of_calls import RACES


class EachStatementAlone(sqlite_schema.EmbeddedConnection):
    """The embedded engine without its one writer: no transaction holds the file, so each statement is one."""

    def execute(self, text: str, *parameters: Any) -> Any:
        word = text.partition(" ")[0]
        return super().execute("SELECT 1" if word in ("BEGIN", "COMMIT", "ROLLBACK") else text, *parameters)


@asynccontextmanager
async def two_stores(folder: Path) -> AsyncIterator[tuple[Queue, Queue]]:
    """Two embedded queues on one file, which only a test does."""
    path, clock = folder / "gateway.db", ManualClock()
    async with (
        await SqliteQueue.open(path, clock=clock) as one,
        await SqliteQueue.open(path, clock=clock) as other,
    ):
        yield one, other


def name_of(race: Race) -> str:
    return race.name.replace(" ", "-")


@pytest.mark.parametrize("race", RACES, ids=name_of)
async def test_whoever_is_first_the_result_is_right(tmp_path: Path, race: Race) -> None:
    """Both calls have returned or were refused, and what they left is what one after the other leaves."""
    async with two_stores(tmp_path) as (one, other):
        await run_race(race, one, other)


@pytest.mark.parametrize("race", [race for race in RACES if race.guard == "lock"], ids=name_of)
async def test_without_locks_it_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, race: Race) -> None:
    """The negative control."""
    monkeypatch.setattr(sqlite_schema, "EmbeddedConnection", EachStatementAlone)
    assert await is_noticed(race, lambda: two_stores(Path(mkdtemp(dir=tmp_path))))
