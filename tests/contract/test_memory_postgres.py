"""Memory in PostgreSQL keeps the promises of the port, and so does the search, each test in a database of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agent_core.memory_ports import MemoryPort, SearchRequest
from agent_core.models import Message
from agent_core.storage.search_index import SearchIndex
from agent_core.storage.search_index.index_rows import line_time
from agent_core.storage.search_index.word_splitting import Filters, parse_query
from gateway.store.postgres.histories import database_search as search_module
from gateway.store.postgres.histories.database_memory import PostgresMemory, PostgresSearch
from gateway.store.postgres.histories.database_search import ScopeSearch
from gateway.store.postgres.postgres_queue import HOME, PostgresQueue, migrate
from gateway.store.sql.engine import ConnectionPort, Cursor, Parameters
from tests.clock import EPOCH, ManualClock
from tests.contract.memory import MemoryContract
from tests.contract.search import SearchContract, find_the_word_itself_behind_many_forms
from tests.contract.vectors import VectorsContract
from tests.doubles.encoder import BeginningsEncoder, use_encoder
from tests.postgres_server import PostgresServer
from tests.recall.histories import history
from tests.search_house import BOB, OWNER, A, B, Harness

pytestmark = [pytest.mark.integration]


class TestMemory(MemoryContract):
    """Histories, records, documents."""

    @pytest.fixture
    async def memory(
        self, clock: ManualClock, postgres: PostgresServer, tables: str
    ) -> AsyncIterator[MemoryPort]:
        url = postgres.url(postgres.new_database(template=tables))
        async with await PostgresQueue.open(url, clock=clock) as queue:
            yield PostgresMemory(queue.database, HOME)


class TestSearch(SearchContract):
    """Words as the embedded index cuts them."""

    @pytest.fixture
    async def house(self, tmp_path: Path, postgres: PostgresServer, tables: str) -> AsyncIterator[Harness]:
        house = Harness(tmp_path)
        url = postgres.url(postgres.new_database(template=tables))
        async with await PostgresQueue.open(url, clock=house.clock) as queue:
            house.memory = PostgresMemory(queue.database, HOME)
            house.index = PostgresSearch(queue.database, HOME)
            yield house
            assert not list(tmp_path.iterdir())

    async def test_the_word_itself_behind_many_forms(self, house: Harness) -> None:
        await find_the_word_itself_behind_many_forms(house)


class TestVectors(VectorsContract):
    """Beside the lines."""

    @pytest.fixture
    async def house(
        self, tmp_path: Path, postgres: PostgresServer, tables: str, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Harness]:
        use_encoder(monkeypatch)
        house = Harness(tmp_path)
        url = postgres.url(postgres.new_database(template=tables))
        async with await PostgresQueue.open(url, clock=house.clock) as queue:
            house.memory = PostgresMemory(queue.database, HOME)
            house.index = PostgresSearch(queue.database, HOME, vectors=True)
            yield house
            await house.index.aclose()


async def test_ten_megabytes_are_a_line_like_any_other(postgres: PostgresServer, tables: str) -> None:
    """Of which the beginning is searched."""
    clock = ManualClock()
    url = postgres.url(postgres.new_database(template=tables))
    async with await PostgresQueue.open(url, clock=clock) as queue:
        memory, search = PostgresMemory(queue.database, HOME), PostgresSearch(queue.database, HOME)
        text = "boiler " + "tea " * 2_500_000
        await memory.append_message(A, Message(role="user", content=text, id="1", scope="owner"))

        [line] = (await memory.load_history(A)).messages
        assert line.content == text
        [hit] = (await search.search(SearchRequest(OWNER, "boiler"))).hits
        assert len(hit.messages[0].content) == 20_000


async def test_the_words_can_be_cut_anew(postgres: PostgresServer, tables: str) -> None:
    """Lines whose words are missing or wrong are found again."""
    clock = ManualClock()
    url = postgres.url(postgres.new_database(template=tables))
    async with await PostgresQueue.open(url, clock=clock) as queue:
        memory, search = PostgresMemory(queue.database, HOME), PostgresSearch(queue.database, HOME)
        told = [Message(role="user", content=f"tea {n}", id=str(n), scope="owner") for n in range(1100)]
        await memory.append_message(A, *told)
        await memory.append_message(B, *told[:3], Message(role="tool", content="tea", id="t"))
        await queue.database.writer.call(
            "test", lambda db: db.execute("UPDATE history SET said = NULL, words = NULL"), locks=()
        )
        assert not (await search.search(SearchRequest(OWNER, "tea"))).hits

        found = await search.rebuild()

        assert (found["sessions"], found["messages"]) == (2, 1103)
        assert (await search.search(SearchRequest(OWNER, "tea"))).hits


async def test_a_search_uses_the_index(postgres: PostgresServer, tables: str) -> None:
    """Whatever else there is: the words and the scope are looked for together."""
    clock = ManualClock()
    url = postgres.url(postgres.new_database(template=tables))
    async with await PostgresQueue.open(url, clock=clock) as queue:
        memory = PostgresMemory(queue.database, HOME)
        told = [Message(role="user", content=f"tea number{n}", id=str(n), scope="owner") for n in range(3000)]
        await memory.append_message(A, *told)
        asked: list[str] = []

        def explained(db: ConnectionPort) -> None:
            class Explaining:
                def execute(self, text: str, parameters: Parameters = ()) -> Cursor:
                    asked.extend(line for (line,) in db.execute(f"EXPLAIN {text}", parameters))
                    return db.execute(text, parameters)

            ScopeSearch(Explaining(), HOME, "owner", Filters()).candidates(parse_query("number7"))  # type: ignore[arg-type]

        await queue.database.writer.call("analyze", lambda db: db.execute("ANALYZE all_history"), locks=())
        await queue.database.reader.call("explain", explained)
        assert any("history_words" in line for line in asked), asked


async def test_words_weigh_by_all_lines_of_the_scope(
    postgres: PostgresServer, tables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the files, also where more lines are there than are counted; those of another scope do not count."""
    monkeypatch.setattr(search_module, "_COUNTED", 20)
    url = postgres.url(postgres.new_database(template=tables))
    async with await PostgresQueue.open(url, clock=ManualClock()) as queue:
        memory = PostgresMemory(queue.database, HOME)
        for scope, count in (("owner", 400), (str(BOB), 1200)):
            told = [Message(role="user", content="tea", id=f"{scope}{n}", scope=scope) for n in range(count)]
            await memory.append_message(A if scope == "owner" else B, *told)
        await queue.database.writer.call("analyze", lambda db: db.execute("ANALYZE all_history"), locks=())

        def total_of(db: ConnectionPort, scope: str) -> int:
            return ScopeSearch(db, HOME, scope, Filters()).candidates(parse_query("tea"))[1].total

        totals = {
            scope: await queue.database.reader.call("search", partial(total_of, scope=scope))
            for scope in ("owner", str(BOB), "nobody")
        }
        assert 300 < totals["owner"] < 500
        assert 1000 < totals[str(BOB)] < 1400
        assert totals["nobody"] == 0


async def test_the_newest_lines_are_looked_through_first(
    postgres: PostgresServer, tables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finds the same as looking through all of them, for words that are common, rare, or in old lines alone."""
    made = history("en", 0, sittings=12)
    queries = [asked.query for asked in made.asked] + ["squid", "squid tea", '"the tea" squid', "teaa", "the"]
    url = postgres.url(postgres.new_database(template=tables))
    async with await PostgresQueue.open(url, clock=ManualClock()) as queue:
        memory = PostgresMemory(queue.database, HOME)
        told = ["a squid with the tea", *(text for _, text in made.messages)]
        lines = [
            Message(role="user", content=text, id=str(n), scope="owner", timestamp=EPOCH + timedelta(hours=n))
            for n, text in enumerate(told)
        ]
        await memory.append_message(A, *lines)
        monkeypatch.setattr(search_module, "MAX_POSTINGS", 10)
        looked = 0

        def candidates(db: ConnectionPort) -> list[Any]:
            class Counting:
                def execute(self, text: str, parameters: Parameters = ()) -> Cursor:
                    nonlocal looked
                    looked += " ORDER BY at DESC, session" in text
                    return db.execute(text, parameters)

            return [
                ScopeSearch(Counting(), HOME, "owner", Filters(since_ms)).candidates(parse_query(query))  # type: ignore[arg-type]
                for query in queries
                for since_ms in (0, line_time(lines[len(lines) // 2].timestamp))
            ]

        everywhere = await queue.database.reader.call("search", candidates)
        assert not looked
        await queue.database.writer.call("analyze", lambda db: db.execute("ANALYZE all_history"), locks=())
        monkeypatch.setattr(search_module, "_COUNTED", 30)
        monkeypatch.setattr(search_module, "_FEW", 1)
        monkeypatch.setattr(search_module, "_NEWEST", 30)
        assert await queue.database.reader.call("search", candidates) == everywhere
        assert looked


async def test_more_lines_of_one_moment_than_are_looked_through_first(
    postgres: PostgresServer, tables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an import: no longer time of them is none, so all lines are looked through, and older ones found."""
    url = postgres.url(postgres.new_database(template=tables))
    async with await PostgresQueue.open(url, clock=ManualClock()) as queue:
        memory = PostgresMemory(queue.database, HOME)
        at = [EPOCH, *[EPOCH + timedelta(days=1)] * 60]
        lines = [
            Message(
                role="user", content="tea" if n % 6 == 0 else "x", id=str(n), scope="owner", timestamp=each
            )
            for n, each in enumerate(at)
        ]
        await memory.append_message(A, *lines)
        await queue.database.writer.call("analyze", lambda db: db.execute("ANALYZE all_history"), locks=())
        monkeypatch.setattr(search_module, "MAX_POSTINGS", 20)
        monkeypatch.setattr(search_module, "_COUNTED", 30)
        monkeypatch.setattr(search_module, "_FEW", 0)
        monkeypatch.setattr(search_module, "_NEWEST", 30)
        asked = 0

        def candidates(db: ConnectionPort) -> int:
            class Counting:
                def execute(self, text: str, parameters: Parameters = ()) -> Cursor:
                    nonlocal asked
                    asked += 1
                    assert asked < 20, "the same lines again"
                    return db.execute(text, parameters)

            searched = ScopeSearch(Counting(), HOME, "owner", Filters())  # type: ignore[arg-type]
            return len(searched.candidates(parse_query("tea"))[0])

        assert await queue.database.reader.call("search", candidates) == 11


@pytest.mark.parametrize("language", ["en", "de", "ja", "ru"])
@pytest.mark.parametrize("by_meaning", [False, True])
async def test_both_engines_agree(
    postgres: PostgresServer,
    tables: str,
    language: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    by_meaning: bool,
) -> None:
    """The same hits in the same order for every question of a made-up history."""
    use_encoder(monkeypatch, BeginningsEncoder)
    made = history(language, 0, sittings=12)
    house = Harness(tmp_path)
    url = postgres.url(postgres.new_database(template=tables))
    async with await PostgresQueue.open(url, clock=house.clock) as queue:
        memory = PostgresMemory(queue.database, HOME)
        search = PostgresSearch(queue.database, HOME, vectors=by_meaning)
        house.index = SearchIndex(tmp_path / "search.db", house.memory.layout, vectors=by_meaning)
        for role, text in made.messages:
            house.clock.advance(60)
            house.said += 1
            line = Message(role=role, content=text, id=str(house.said), scope="owner", sender="@x:hs")
            for each in (house.memory, memory):
                await each.append_message(A, line)
        await house.index.update_all()
        await search.update_all()
        for asked in made.asked:
            ours = await house.index.search(SearchRequest(OWNER, asked.query))
            theirs = await search.search(SearchRequest(OWNER, asked.query))
            assert [hit.messages[hit.at].id for hit in ours.hits] == [
                hit.messages[hit.at].id for hit in theirs.hits
            ], asked.query
            assert ours.more == theirs.more
    await house.index.aclose()


async def test_tables_of_an_earlier_version_get_the_indexes(postgres: PostgresServer, tables: str) -> None:
    """With the next ``squidbot migrate``, which otherwise leaves them as they are."""
    url = postgres.url(postgres.new_database(template=tables))
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("DROP INDEX squidbot.history_newest, squidbot.inbox_newest")
        assert "nothing to do" in migrate(url)
        for name in ("history_newest", "inbox_newest"):
            assert db.execute("SELECT to_regclass(%s)", (f"squidbot.{name}",)).fetchone() != (None,)
