"""Implements the `MemoryPort` and the search over the tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from agent_core.errors import StorageUnavailable
from agent_core.memory_ports import SearchRequest
from agent_core.messages import SessionKey
from agent_core.models import HistoryTail, MemoryDocument, MemoryScope, Message, SearchAnswer
from agent_core.provenance import Origins
from agent_core.storage.history_paging import Entry, newest, oldest
from agent_core.storage.search_index.index_rows import line_time
from agent_core.storage.search_index.indexed_files import chosen
from agent_core.storage.search_index.ranking import BestSentences, Rater, rank
from agent_core.storage.search_index.vectors import Nearest, Vectors
from agent_core.storage.search_index.word_splitting import Filters, fold, parse_query
from gateway.store.postgres.histories import database_search as search
from gateway.store.postgres.histories import history_rows, memory_documents, session_records
from gateway.store.postgres.histories import vector_records as vectors
from gateway.store.postgres.histories.history_rows import files_in
from gateway.store.sql.engine import NOTHING, ConnectionPort, Database, Locks, Store, named_lock, session_lock
from gateway.store.sql.row_codec import instant
from gateway.store.store_errors import StoreUnavailable

_Result = TypeVar("_Result")


def journal_of(home: int) -> Callable[[ConnectionPort, str, Sequence[str], float], None]:
    """Return a function that writes an answer's lines in its transaction, under the session's lock."""

    def append(db: ConnectionPort, session: str, told: Sequence[str], now: float) -> None:
        messages = [Message.model_validate(json.loads(line)) for line in told]
        history_rows.append(db, home, session, messages, instant(now))

    return append


@contextmanager
def _as_storage(action: str) -> Iterator[None]:
    try:
        yield
    except StoreUnavailable as error:
        raise StorageUnavailable(str(error), **{**error.fields, "action": action}) from error


class _Tables(Store):
    def __init__(self, database: Database, home: int) -> None:
        super().__init__(database)
        self._home = home

    async def _read(self, name: str, read: Callable[[ConnectionPort], _Result]) -> _Result:
        with _as_storage("read"):
            return await self._reader.call(name, read)

    async def _write(self, name: str, work: Callable[[ConnectionPort], _Result], locks: Locks) -> _Result:
        with _as_storage("write"):
            return await self._writer.call(name, work, locks=locks)


class PostgresMemory(_Tables):
    """Histories, records and documents as tables: implements `MemoryPort`."""

    async def load_history(
        self, session_id: str, *, max_messages: int | None = None, max_chars: int | None = None
    ) -> HistoryTail:
        """See `MemoryPort`."""
        key = _checked(session_id)

        def read(db: ConnectionPort) -> HistoryTail:
            kept = session_records.load(db, key)
            tail = newest(
                history_rows.backwards(db, key, total=kept.total, down_to=kept.cursor),
                cursor=kept.cursor,
                total=kept.total,
                max_messages=max_messages,
                max_chars=max_chars,
            )
            return _with_record(tail, kept)

        return await self._read("history", read)

    async def load_segment(
        self, session_id: str, *, start: int, max_messages: int, max_chars: int | None = None
    ) -> HistoryTail:
        """See `MemoryPort`."""
        key = _checked(session_id)

        def read(db: ConnectionPort) -> HistoryTail:
            kept = session_records.load(db, key)
            page = oldest(
                history_rows.forwards(db, key, start=max(0, start)),
                cursor=kept.cursor,
                total=kept.total,
                max_messages=max_messages,
                max_chars=max_chars,
            )
            return _with_record(page, kept)

        return await self._read("history", read)

    async def last_messages(self, session_ids: Sequence[str]) -> list[HistoryTail]:
        """See `MemoryPort`."""
        keys = [_checked(each) for each in session_ids]

        def read(db: ConnectionPort) -> list[HistoryTail]:
            kept = session_records.load_all(db, keys)
            entries = history_rows.last(db, keys)
            return [_last(db, key, kept[key], entries.get(key)) for key in keys]

        return await self._read("history", read)

    async def append_message(self, session_id: str, *messages: Message, durable: bool = False) -> None:
        """See `MemoryPort`. An appended message is durable when this returns."""
        key, now = _checked(session_id), self._database.clock.now()
        if messages:
            await self._write(
                "history",
                lambda db: history_rows.append(db, self._home, key, messages, now),
                (session_lock(key),),
            )

    async def sync_history(self, session_id: str) -> None:
        """See `MemoryPort`."""
        _checked(session_id)

    async def load_session_summary(self, session_id: str) -> str:
        """See `MemoryPort`."""
        key = _checked(session_id)
        return (await self._read("record", lambda db: session_records.load(db, key))).record.summary

    async def save_session_summary(self, session_id: str, summary: str) -> None:
        """See `MemoryPort`."""
        await self._change(session_id, lambda db, key: session_records.change(db, key, summary=summary))

    async def load_consolidated_cursor(self, session_id: str) -> int:
        """See `MemoryPort`."""
        key = _checked(session_id)
        return (await self._read("record", lambda db: session_records.load(db, key))).cursor

    async def save_consolidated_cursor(self, session_id: str, cursor: int) -> None:
        """See `MemoryPort`."""
        await self._change(session_id, lambda db, key: session_records.change(db, key, cursor=cursor))

    async def save_consolidation(
        self,
        session_id: str,
        *,
        summary: str,
        cursor: int,
        base_cursor: int | None = None,
        private: Collection[str] = (),
        origins: Origins = (),
    ) -> None:
        """See `MemoryPort`."""
        await self._change(
            session_id,
            lambda db, key: session_records.change(
                db,
                key,
                summary=summary,
                cursor=cursor,
                base_cursor=base_cursor,
                private=frozenset(private),
                origins=origins,
            ),
        )

    async def _change(self, session_id: str, work: Callable[[ConnectionPort, str], None]) -> None:
        key = _checked(session_id)
        await self._write("record", lambda db: work(db, key), (session_lock(key),))

    async def load_global_memory(self, scope: MemoryScope) -> MemoryDocument:
        """See `MemoryPort`."""
        name = memory_documents.name_of(scope)
        return await self._read("memory", lambda db: memory_documents.load(db, name))

    async def save_global_memory(
        self,
        scope: MemoryScope,
        text: str,
        *,
        base_version: int | None = None,
        session_id: str = "",
        turn: str = "",
        origins: Origins = (),
    ) -> MemoryDocument:
        """See `MemoryPort`."""
        name, now = memory_documents.name_of(scope), self._database.clock.now()
        return await self._write(
            "memory",
            lambda db: memory_documents.save(
                db,
                name,
                text,
                base_version=base_version,
                written_at=now,
                session_id=session_id,
                turn=turn,
                origins=origins,
            ),
            (named_lock("memory", name),),
        )

    async def memory_versions(self, scope: MemoryScope) -> list[tuple[MemoryDocument, datetime, str, str]]:
        """See `MemoryPort`."""
        name = memory_documents.name_of(scope)
        found = await self._read("memory", lambda db: memory_documents.versions(db, name))
        return [(each.document, each.written_at, each.session_id, each.turn) for each in found]

    async def memory_scopes(self) -> list[MemoryScope]:
        """See `MemoryPort`."""
        found: list[MemoryScope] = []
        for name in await self._read("memory", memory_documents.scopes):
            with suppress(ValueError):
                found.append(MemoryScope.parse(name))
        return found

    async def sessions(self) -> list[str]:
        """See `MemoryPort`."""
        return await self._read("sessions", history_rows.sessions)

    async def named_files(self) -> set[str]:
        """Return the paths of files named in histories. Raises StorageUnavailable."""
        return await self._read("named_files", files_in)


class TableVectors(_Tables):
    """The vectors beside the lines: implements `VectorStore`."""

    async def without_vectors(
        self, session_id: str, after: int, limit: int
    ) -> list[tuple[int, Any, str]] | None:
        """See `VectorStore`."""
        with suppress(StorageUnavailable):
            return await self._read("vectors", lambda db: vectors.without(db, session_id, after, limit))
        return None

    async def add_vectors(self, session_id: str, found: Sequence[tuple[int, Any, str, bytes]]) -> bool:
        """See `VectorStore`."""
        locks = (session_lock(session_id),)
        with suppress(StorageUnavailable):
            return await self._write("vectors", lambda db: vectors.add(db, found), locks)
        return False

    async def vectors_after(self, scope: str, mark: int, limit: int) -> list[tuple[int, int, bytes]] | None:
        """See `VectorStore`."""
        with suppress(StorageUnavailable):
            return await self._read("vectors", lambda db: vectors.after(db, scope, mark, limit))
        return None

    async def vectors_before(self, scope: str, mark: int, limit: int) -> list[tuple[int, int, bytes]] | None:
        """See `VectorStore`."""
        with suppress(StorageUnavailable):
            return await self._read("vectors", lambda db: vectors.before(db, scope, mark, limit))
        return None


class PostgresSearch(_Tables):
    """
    The search over the tables: implements `SearchPort`. Lines are indexed by their transaction.

    Args:
        vectors: Also find what means the same in other words (``memory.vectors``).
    """

    def __init__(self, database: Database, home: int, *, vectors: bool = False) -> None:
        super().__init__(database, home)
        self.vectors = Vectors(TableVectors(database, home)) if vectors else None

    async def search(self, asked: SearchRequest) -> SearchAnswer:
        """See `SearchPort`."""
        query = parse_query(asked.query)
        if not query.terms or asked.max_results < 1:
            return SearchAnswer()

        sessions = None
        if asked.place is not None:
            sessions = frozenset(filter(asked.place, await self._read("sessions", history_rows.sessions)))
        alike: Nearest = {}
        filters = Filters(line_time(asked.since), sessions, tuple(fold(asked.person).split()))
        if self.vectors is not None and not query.has_quoted:
            alike = await self.vectors.nearest(asked, since_ms=filters.since_ms)

        def read(db: ConnectionPort) -> SearchAnswer:
            searched = search.ScopeSearch(db, self._home, str(asked.scope), filters)
            found, statistics = searched.candidates(query, least=0.0 if alike else asked.least)
            near = searched.rows_of(alike) if alike else {}
            rater = Rater(query, statistics)
            ranked = rank(rater, found, alike=near, least=asked.least * (2 if alike else 1))
            hits, used = chosen(
                (searched.around(row, neighbours=asked.neighbours) for row in ranked),
                asked,
                BestSentences(rater, near.values()),
            )
            return SearchAnswer(hits, more=len(ranked) - used)

        return await self._read("search", read)

    async def update(self, session_id: str) -> None:
        """Encode what is new: a committed line is searchable by its words already."""
        if self.vectors is None:
            return
        if self.vectors.complete:
            await self.vectors.fill([session_id])
        else:
            await self.update_all()

    async def update_all(self) -> None:
        """Encode what has no vectors yet."""
        if self.vectors is not None:
            with suppress(StorageUnavailable):
                names = await self._read("sessions", history_rows.sessions)
                await self.vectors.fill(names, complete=True)

    async def rebuild(self) -> dict[str, Any]:
        """Split all lines into words again. Returns how many sessions and messages are searchable."""
        if self.vectors is not None:
            self.vectors.forget_progress()
        messages, place = 0, ("", -1)
        while True:
            count, after = await self._write(
                "reindex", partial(search.reindex_lines, home=self._home, after=place), NOTHING
            )
            messages += count
            if after is None:
                break
            place = after
        sessions = await self._read("sessions", history_rows.sessions)
        return {**self.state(), "sessions": len(sessions), "messages": messages}

    def state(self) -> dict[str, Any]:
        """Return the state of the index, which is always complete."""
        return {"complete": True, "behind": 0}

    async def aclose(self) -> None:
        """End the process of the vectors; the queue closes the database."""
        if self.vectors is not None:
            await self.vectors.aclose()


def _checked(session_id: str) -> str:
    return str(SessionKey.parse(session_id))


def _last(
    db: ConnectionPort, key: str, kept: session_records.StoredRecord, entry: Entry | None
) -> HistoryTail:
    entries: Iterable[Entry] = [entry] if entry is not None else []
    if entry is not None and entry.message is None:  # what cannot be read is passed over, down to the cursor
        entries = history_rows.backwards(db, key, total=kept.total, down_to=kept.cursor)
    tail = newest(entries, cursor=0, total=kept.total, max_messages=1, max_chars=None)
    return _with_record(replace(tail, cursor=kept.cursor, unconsolidated=kept.total - kept.cursor), kept)


def _with_record(tail: HistoryTail, kept: session_records.StoredRecord) -> HistoryTail:
    record = kept.record
    return replace(tail, summary=record.summary, private=record.private, origins=record.origins)
