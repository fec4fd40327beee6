"""Vectors beside the history lines in PostgreSQL: erased with their text, whoever erases it, and made after a kill."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agent_core.memory_ports import SearchRequest
from agent_core.models import Message
from agent_core.storage.search_index import vectors as vectors_module
from agent_core.storage.search_index.vectors import missing_for_vectors
from gateway.store.postgres.histories import history_rows
from gateway.store.postgres.histories.database_memory import PostgresMemory, PostgresSearch
from gateway.store.postgres.postgres_queue import HOME, PostgresQueue
from gateway.store.sql.engine import ConnectionPort
from gateway.store.stores import StoreUnavailable
from tests.clock import ManualClock
from tests.doubles.encoder import use_encoder
from tests.postgres_server import PostgresServer
from tests.search_house import OWNER, A, B, Harness

pytestmark = [pytest.mark.integration]
_ORPHANS = (
    "SELECT count(*) FROM squidbot.all_vectors AS v WHERE NOT EXISTS (SELECT 1 FROM squidbot.all_history AS h"
    " WHERE h.session = v.session AND h.seq = v.seq AND h.said IS NOT NULL AND h.scope = v.scope)"
)


class _VectorsHarness(Harness):
    """One in a database, which is at ``url``."""

    url: str
    queue: PostgresQueue

    async def write(self, work: Callable[[ConnectionPort], Any]) -> None:
        await self.queue.database.writer.call("test", work, locks=())

    def counts(self) -> tuple[int, int]:
        """The number of vectors, and of those whose text is gone."""
        with psycopg.connect(self.url) as db:
            [kept] = db.execute("SELECT count(*) FROM squidbot.all_vectors").fetchone() or (0,)
            [orphans] = db.execute(_ORPHANS).fetchone() or (0,)
            return kept, orphans


@pytest.fixture
async def house(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[_VectorsHarness]:
    use_encoder(monkeypatch)
    house = _VectorsHarness(tmp_path)
    house.url = postgres.with_tables()
    async with await PostgresQueue.open(house.url, clock=house.clock) as queue:
        house.queue = queue
        house.memory = PostgresMemory(queue.database, HOME)
        house.index = PostgresSearch(queue.database, HOME, vectors=True)
        yield house
        await house.index.aclose()


def _replaced(db: ConnectionPort) -> None:
    rows = [(seq, raw.replace("cat", "dog")) for seq, raw in history_rows.page(db, A, 0, 9)]
    history_rows.replace(db, HOME, A, rows)


def _renamed(db: ConnectionPort) -> None:
    db.execute("UPDATE history SET session = ? WHERE session = ?", (B, A))


def _deleted(db: ConnectionPort) -> None:
    db.execute("DELETE FROM history WHERE session = ?", (A,))


@pytest.mark.parametrize(
    ("erase", "left"), [(_replaced, 1), (_renamed, 0), (_deleted, 0)], ids=["replaced", "renamed", "deleted"]
)
async def test_vectors_are_erased_with_their_text(
    house: _VectorsHarness, erase: Callable[[ConnectionPort], None], left: int
) -> None:
    """At once, in the same transaction; what is left is encoded again where it is now."""
    await house.say(A, "Minka is our cat.", "How nice!")
    await house.index.update_all()
    assert house.counts() == (2, 0)
    assert await house.found("pet") == ["Minka is our cat."]
    await house.write(erase)
    assert house.counts() == (left, 0)
    assert await house.found("pet") == []
    house.index.vectors.forget_progress()
    await house.index.update_all()
    assert house.counts() == (0 if erase is _deleted else 2, 0)


async def test_without_the_trigger_they_would_stay(house: _VectorsHarness) -> None:
    """The control."""
    await house.say(A, "Minka is our cat.", "How nice!")
    await house.index.update_all()
    with psycopg.connect(house.url) as db:
        db.execute("DROP TRIGGER line_erased ON squidbot.all_history")
    await house.write(_deleted)
    assert house.counts() == (2, 2)


async def test_whoever_may_delete_a_line_deletes_its_vectors(house: _VectorsHarness) -> None:
    """Also with another program, which has set nothing."""
    await house.say(A, "Minka is our cat.", "How nice!")
    await house.index.update_all()
    with psycopg.connect(house.url) as db:
        db.execute("DELETE FROM squidbot.all_history WHERE seq = 0")
    assert house.counts() == (1, 0)


async def test_a_line_that_changes_while_it_is_encoded_gets_no_vector(house: _VectorsHarness) -> None:
    """Of what it said before."""
    await house.say(A, "Minka is our cat.", "How nice!")
    asked = house.index.vectors._asked

    async def changed(*arguments: Any) -> Any:
        await house.write(_replaced)
        return await asked(*arguments)

    house.index.vectors._asked = changed
    await house.index.update_all()
    assert house.counts() == (1, 0)


async def test_without_the_database_nothing_fails_and_the_rest_is_made_later(house: _VectorsHarness) -> None:
    await house.say(A, "Minka is our cat.", "How nice!")
    reader = house.queue.database.reader
    calls = reader.call

    async def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("away")

    reader.call = away  # type: ignore[method-assign]
    await house.index.update_all()
    await house.index.vectors.fill([A], complete=True)
    reader.call = calls  # type: ignore[method-assign]
    assert (house.counts(), house.index.vectors.complete) == ((0, 0), False)
    await house.index.update(B)
    assert house.counts() == (2, 0)


_FILLS = """
import anyio, sys
import pytest
from gateway.store.postgres.histories.database_memory import PostgresSearch
from gateway.store.postgres.postgres_queue import HOME, PostgresQueue
from tests.clock import ManualClock
from tests.doubles.encoder import use_encoder

use_encoder(pytest.MonkeyPatch())

async def fill():
    async with await PostgresQueue.open(sys.argv[1], clock=ManualClock()) as queue:
        await PostgresSearch(queue.database, HOME, vectors=True).update_all()

anyio.run(fill)
print("done", flush=True)
"""


@pytest.mark.parametrize("batches", [1, 2, 4])
async def test_a_kill_while_it_is_filled_or_erased_loses_and_leaves_nothing(
    house: _VectorsHarness, batches: int
) -> None:
    """Killed by SIGKILL while vectors are made, and again after a part was taken back: the rest is made."""
    for number in range(140):
        await house.say(A, f"Minka is our cat {number}.", turn=f"t{number % 2}")
    for round_ in range(2):
        if round_:
            mark = Message(role="system", content="undone", id="u", turn="u", scope="owner", undoes="t1")
            await house.memory.append_message(A, mark)
        command = [sys.executable, "-c", _FILLS, house.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            for _ in range(batches):
                assert child.stdout.readline() in (b"encoding\n", b"done\n", b"")
            child.kill()
        assert house.counts()[1] == 0
    await house.index.update_all()
    assert house.counts() == (70, 0)
    found = await house.found("pet")
    assert found
    assert all(int(each[:-1].split()[-1]) % 2 == 0 for each in found)


@pytest.mark.skipif(bool(missing_for_vectors()), reason="the extra recall is not installed")
async def test_the_encoder_finds_other_words_of_the_same_meaning(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a scripted one, and also after a turn, which does not wait for it."""
    monkeypatch.setattr(vectors_module, "_SEARCH_LIMIT_S", 300.0)
    monkeypatch.setattr(vectors_module, "_LOOKUP_LIMIT_S", 300.0)
    house = Harness(tmp_path)
    async with await PostgresQueue.open(postgres.with_tables(), clock=ManualClock()) as queue:
        house.memory = PostgresMemory(queue.database, HOME)
        house.index = search = PostgresSearch(queue.database, HOME, vectors=True)
        await house.say(A, "The train was late again.", "A pity.", "Unsere Katze heißt Minka.", "How nice!")
        asked = partial(SearchRequest, OWNER, "pet name")
        assert not (await search.search(asked(waits=False))).hits
        await search.update(A)
        [hit, *_] = (await search.search(asked(waits=False))).hits
        assert hit.messages[hit.at].content == "Unsere Katze heißt Minka."
        await search.aclose()
