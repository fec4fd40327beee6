"""Two stores on one database keep what they promise, and without locks they would not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.queue.ports import Queue
from gateway.queue.sqlite import schema
from gateway.queue.sqlite.store import SqliteQueue
from tests.clock import ManualClock
from tests.contract.races import Race, run_race
from tests.contract.races_of_calls import RACES

Opened = Callable[..., AbstractAsyncContextManager[tuple[Queue, Queue]]]


class EachStatementAlone(schema.EmbeddedConnection):
    """The embedded engine without its one writer: no transaction holds the file, so each statement is one."""

    def execute(self, text: str, *parameters: Any) -> Any:
        word = text.partition(" ")[0]
        return super().execute("SELECT 1" if word in ("BEGIN", "COMMIT", "ROLLBACK") else text, *parameters)


@asynccontextmanager
async def sqlite(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, locks: bool
) -> AsyncIterator[tuple[Queue, Queue]]:
    """Two embedded queues on one file."""
    if not locks:
        monkeypatch.setattr(schema, "EmbeddedConnection", EachStatementAlone)
    path, clock = folder / "gateway.db", ManualClock()
    async with (
        await SqliteQueue.open(path, clock=clock) as one,
        await SqliteQueue.open(path, clock=clock) as other,
    ):
        yield one, other


ENGINES: dict[str, Opened] = {"sqlite": sqlite}
"""How two stores on one database are opened, with locks and without."""
NEEDED = {"sqlite": ("lock",)}
"""What an engine's store without locks must fail."""


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("race", RACES, ids=lambda race: race.name.replace(" ", "-"))
async def test_whoever_is_first_the_result_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, race: Race
) -> None:
    """Both calls have returned or were refused, and what they left is what one after the other leaves."""
    async with ENGINES[engine](tmp_path, monkeypatch, locks=True) as (one, other):
        await run_race(race, one, other)


@pytest.mark.parametrize(
    ("engine", "race"),
    [(engine, race) for engine, guards in NEEDED.items() for race in RACES if race.guard in guards],
    ids=lambda given: given if isinstance(given, str) else given.name.replace(" ", "-"),
)
async def test_without_locks_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, race: Race
) -> None:
    """The negative control."""
    async with ENGINES[engine](tmp_path, monkeypatch, locks=False) as (one, other):
        with pytest.raises((AssertionError, ValueError, AttributeError)):
            await run_race(race, one, other)
