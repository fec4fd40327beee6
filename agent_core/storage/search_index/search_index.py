"""
The search in histories: the `SearchPort` over SQLite's full-text index, which can be rebuilt from the JSONL.
Each history is indexed in the background from the byte of the last stop; a replaced or shortened one from its
start. Lines not indexed yet are scanned from the end within a budget, also while the index is unusable, so
that new messages are found at once. A damaged index is rebuilt. A search sees the lines of one scope
(`Message.scope`) only, also as neighbours of a hit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from heapq import nlargest
from itertools import islice
from os import O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, close, fstat, pread
from os import open as open_file
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import structlog

from agent_core.memory_ports import SearchRequest
from agent_core.messages import SessionKey
from agent_core.models import SearchAnswer
from agent_core.storage.layout import Layout
from agent_core.storage.search_index.index_rows import Found, Mark, Rows, SearchLine, line_time
from agent_core.storage.search_index.indexed_files import (
    Budget,
    Unread,
    candidate_of,
    chosen,
    read_lines_from,
    scan_unread,
    turn_of,
)
from agent_core.storage.search_index.ranking import (
    MAX_CANDIDATES,
    BestSentences,
    Rater,
    Similarity,
    Statistics,
    rank,
)
from agent_core.storage.search_index.vector_rows import IndexVectors, prepare_vectors, similar_lines
from agent_core.storage.search_index.vectors import Nearest, Vectors
from agent_core.storage.search_index.word_splitting import Filters, Query, Term, fold, parse_query
from agent_core.storage.session_files import session_of

_BATCH_LINES = 100
_READ_ONLY = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC

log = structlog.get_logger(__name__)
_Result = TypeVar("_Result")


class SearchIndex:
    """
    The search index of one home.

    Args:
        vectors: Also find what means the same in other words (``memory.vectors``).
    """

    def __init__(self, path: Path, layout: Layout, *, vectors: bool = False) -> None:
        self._path = path
        self._layout = layout
        self._reader: Rows | None = None
        self._writer: Rows | None = None
        self._reading = anyio.Lock()
        self._writing = anyio.Lock()
        self._limiter = anyio.CapacityLimiter(2)
        self._behind: dict[str, int] = {}  # how often each session has grown
        self._caught_up = False
        self._catching_up = False
        self._damaged = False
        self._removed = False
        self._closed = False
        self._history = lru_cache(maxsize=500)(lambda name: layout.history(SessionKey.parse(name)))
        self.vectors = Vectors(IndexVectors(self._write_rows, self._read_rows)) if vectors else None

    # ── searching ──

    async def search(self, asked: SearchRequest) -> SearchAnswer:
        """See `SearchPort`."""
        query = parse_query(asked.query)
        if not query.terms or asked.max_results < 1:
            return SearchAnswer()

        sessions = None
        if asked.place is not None:
            names = await self._in_thread(lambda: [name for name, _ in self._histories()])
            sessions = frozenset(filter(asked.place, names))
        filters = Filters(line_time(asked.since), sessions, tuple(fold(asked.person).split()))
        alike: Nearest = {}
        if self.vectors is not None and not query.has_quoted:
            alike = await self.vectors.nearest(asked, since_ms=filters.since_ms)
        async with self._reading:
            return await self._in_thread(lambda: self._search(asked, query, filters, alike))

    def _search(self, asked: SearchRequest, query: Query, filters: Filters, alike: Nearest) -> SearchAnswer:
        # Before the index is read: what is indexed in between would else be neither found there nor scanned.
        behind = sorted(self._behind) if self._caught_up else None
        try:
            rows = self._open_reader()
            if rows is not None:
                with rows.snapshot():
                    return self._answer(rows, asked, query, filters, alike, behind)
        except sqlite3.Error as error:
            self._note_unusable(error)
            behind = None
        return self._answer(None, asked, query, filters, {}, behind)

    def _answer(  # noqa: PLR0917 - what `_search` has worked out
        self,
        rows: Rows | None,
        asked: SearchRequest,
        query: Query,
        filters: Filters,
        alike: Nearest,
        behind: list[str] | None,
    ) -> SearchAnswer:
        """Search in ``rows`` and in what is not indexed of the histories that are ``behind`` (None: all)."""
        scope = str(asked.scope)
        rated: dict[int, Found] = {}
        similar: dict[int, Similarity] = {}
        statistics = Statistics()
        if rows is not None:
            rated, statistics = rows.candidates(query, scope, filters, least=0.0 if alike else asked.least)
            similar = similar_lines(rows.connection, alike, scope, filters) if alike else {}
        budget = Budget()
        read: list[tuple[list[Term], Found]] = []
        undone: set[str] = set()
        for unread in self._unread({} if rows is None else rows.marks(behind), behind):
            if not filters.accepts(unread.session):
                continue
            if budget.is_spent:
                budget.cut = True
                break
            read += scan_unread(
                unread,
                query,
                scope,
                filters=filters,
                budget=budget,
                statistics=statistics,
                undone=undone,
            )
        rated |= {-1 - number: found for number, found in enumerate(_heaviest(read, statistics))}
        candidates = {
            number: candidate_of(found, undone)
            for number, found in rated.items()
            if not (undone and found[1][found[2]].is_in(undone))
        }
        least = asked.least * (2 if alike else 1)
        ranked = rank(rater := Rater(query, statistics), candidates, alike=similar, least=least)
        sentences = BestSentences(rater, similar.values())

        lines = {number: rated[number] for number in rated if number < 0 or not asked.neighbours}

        def around(number: int) -> Found | None:
            if number not in lines and rows is not None:
                next_ones = ranked[ranked.index(number) :][: asked.max_results]
                lines.update(rows.around(next_ones, scope))
            found = lines.get(number)
            return found if asked.neighbours or found is None else turn_of(found)

        sound: dict[str, bool] = {}
        hits, used = chosen(self._sound(ranked, around, undone, sound), asked, sentences)
        return SearchAnswer(hits, complete=not budget.cut and all(sound.values()), more=len(ranked) - used)

    def _sound(
        self,
        ranked: list[int],
        around: Callable[[int], Found | None],
        undone: set[str],
        sound: dict[str, bool],
    ) -> Iterator[Found | None]:
        """Give the hits; ``sound`` takes of each session if the index has what its history still says."""
        for number in ranked:
            hit = around(number)
            if hit is None or number < 0:
                yield hit
                continue
            session, near, at = hit
            if session not in sound:
                newly = self._newly_undone(session)
                sound[session] = newly is not None
                undone |= newly or set()
            shown = [line for line in near if sound[session] and not line.is_in(undone)]
            yield (session, shown, shown.index(near[at])) if near[at] in shown else None

    def _newly_undone(self, session: str) -> set[str] | None:
        """
        Return what is taken back in the part of a history that is not indexed, if it is a short one.

        None: the history is gone or another file, from which something may have been erased.
        """
        mark = None if self._reader is None else self._reader.mark(session)
        if mark is None:
            return None
        path = self._history(session)
        try:
            state = path.lstat()
            if (state.st_ino, state.st_size) == (mark.inode, mark.byte):
                return set()
            handle = open_file(path, _READ_ONLY)
        except FileNotFoundError:
            self._history.cache_clear()
            return None
        except OSError:
            return set()
        try:
            state = fstat(handle)
            if not _still(mark, handle, state.st_ino, state.st_size):
                return None
            new = read_lines_from(handle, mark.position, mark.byte, state.st_size)
            return {line.undoes for line, *_ in islice(new, _BATCH_LINES) if line is not None and line.undoes}
        finally:
            close(handle)

    def _note_unusable(self, error: sqlite3.Error) -> None:
        log.warning("search.index_unusable", error=str(error))
        self._close_reader()
        self._caught_up = False
        self._damaged = self._damaged or _is_damage(error)

    def _unread(self, marks: dict[str, Mark], behind: list[str] | None) -> list[Unread]:
        """Return the unindexed parts of these histories (None: of all), the one written to last first."""
        names = [name for name, _ in self._histories()] if behind is None else behind
        found = []
        for name in names:
            path = self._layout.history(SessionKey.parse(name))
            try:
                state = path.stat()
            except OSError:
                continue
            mark = marks.get(name)
            start = mark.byte if mark and mark.inode == state.st_ino and mark.byte <= state.st_size else 0
            if start < state.st_size:
                found.append((state.st_mtime_ns, Unread(name, path, start)))
        return [unread for _, unread in sorted(found, key=lambda each: each[0], reverse=True)]

    # ── following the files ──

    def note_growth(self, session_id: str) -> None:
        """Note that a history has new lines: searches scan them until they are indexed. Returns at once."""
        self._behind[session_id] = self._behind.get(session_id, 0) + 1

    async def update(self, session_id: str) -> None:
        """Index what is new in one history. Never fails: a search scans what could not be read."""
        await self._update(session_id)
        if not self._caught_up:
            await self._follow_all()
        await self._fill([session_id])

    async def update_all(self) -> None:
        """Index what is new in all histories and forget those that are gone."""
        await self._follow_all()
        await self._fill(())

    async def _fill(self, session_ids: Sequence[str]) -> None:
        """Have the lines of sessions encoded; of all if none are named or that was not done yet."""
        if self.vectors is None:
            return
        everything = not session_ids or not self.vectors.complete
        if everything:
            session_ids = await self._in_thread(lambda: [name for name, _ in self._histories()])
        await self.vectors.fill(session_ids, complete=everything)

    async def _follow_all(self) -> None:
        if self._catching_up:
            return
        self._catching_up = True
        try:
            for _ in range(2):  # a second time if a damaged index was removed on the way
                self._removed = False
                known = await self._in_thread(lambda: {name for name, _ in self._histories()})
                read = [await self._update(name) for name in known]
                forgotten = await self._written(partial(self._forget_all_but, known))
                self._caught_up = all(read) and forgotten is not None and not self._removed
                if not self._removed:
                    break
            await self._written(lambda: self._open_writer().merge())
        except OSError as error:
            log.warning("search.histories_unreadable", error=str(error))
        finally:
            self._catching_up = False

    async def _update(self, session_id: str) -> bool:
        self.note_growth(session_id)
        key = SessionKey.parse(session_id)
        while True:
            async with self._reading:
                pass  # a search that runs goes first: two threads of Python share one processor
            growth = self._behind.get(session_id)
            more = await self._written(lambda: self._read_on(session_id, key))
            if more is None:
                return False
            if not more:
                if self._behind.get(session_id) == growth:
                    self._behind.pop(session_id, None)
                return True
            await anyio.sleep(0.002)

    async def rebuild(self) -> dict[str, Any]:
        """Rebuild the index from all histories. Returns how many sessions and messages can be searched."""
        async with self._writing, self._reading:
            self._caught_up = False
            await self._in_thread(self._remove)
        await self._follow_all()
        counts = await self._written(lambda: self._open_writer().counts()) or (0, 0)
        return {**self.state(), "sessions": counts[0], "messages": counts[1]}

    def state(self) -> dict[str, Any]:
        """Return ``complete`` and ``behind``, the number of sessions known not to be indexed."""
        return {"complete": self._caught_up, "behind": len(self._behind)}

    async def aclose(self) -> None:
        """Close the file for good: from now on nothing is found and nothing is indexed."""
        if self.vectors is not None:
            await self.vectors.aclose()
        async with self._writing, self._reading:
            self._closed = True
            await self._in_thread(self._close)

    async def _written(self, work: Callable[[], _Result]) -> _Result | None:
        """Run ``work`` on the index, once more after removing a damaged one; None if writing failed."""
        async with self._writing:
            if self._closed:
                return None
            for _ in range(2):
                if self._damaged:
                    async with self._reading:
                        await self._in_thread(self._remove)
                    log.warning("search.index_removed", file=self._path.name)
                try:
                    return await self._in_thread(work)
                except (sqlite3.Error, OSError) as error:
                    log.warning("search.index_not_written", error=str(error))
                    self._caught_up = False
                    self._damaged = _is_damage(error)
                    if not self._damaged:
                        break
            return None

    def _read_on(self, name: str, key: SessionKey) -> bool:
        """Read a batch of lines. False: there are no more."""
        rows = self._open_writer()
        path = self._layout.history(key)
        try:
            handle = open_file(path, _READ_ONLY)
        except FileNotFoundError:
            self._drop(rows, name)
            return False
        try:
            state = fstat(handle)
            mark = rows.mark(name)
            if mark is not None and not _still(mark, handle, state.st_ino, state.st_size):
                self._drop(rows, name)
                mark = None
            if mark is None:
                mark = rows.begin(name, state.st_ino)
            batch: list[SearchLine] = []
            place = (mark.position, mark.byte)
            count = 0
            for line, *place_after in read_lines_from(handle, mark.position, mark.byte, state.st_size):
                place = (place_after[0], place_after[1])
                batch += [line] if line is not None else []
                count += 1
                if count >= _BATCH_LINES:
                    break
            if count:
                rows.add(mark, batch, position=place[0], byte=place[1])
            return count >= _BATCH_LINES
        finally:
            close(handle)

    def _forget_all_but(self, names: set[str]) -> bool:
        rows = self._open_writer()
        for name in rows.marks().keys() - names:
            self._drop(rows, name)
        return True

    def _drop(self, rows: Rows, name: str) -> None:
        rows.drop(name)
        if self.vectors is not None:
            self.vectors.forget_progress(name)

    def _histories(self) -> Iterator[tuple[str, Path]]:
        for path in self._layout.sessions.glob("*.jsonl"):
            key = session_of(path)
            if key is not None and key.is_named(path.stem):
                yield str(key), path

    # ── the file ──

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)

    def _open_reader(self) -> Rows | None:
        if self._reader is None and not self._closed and self._path.exists():
            self._reader = Rows(self._path, writable=False)
        return self._reader

    def _open_writer(self) -> Rows:
        if self._writer is None:
            self._writer = Rows(self._path, writable=True)
            self._path.chmod(0o600)
            if self.vectors is not None:
                prepare_vectors(self._writer.connection)
        return self._writer

    async def _write_rows(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result | None:
        return await self._written(lambda: work(self._open_writer().connection))

    async def _read_rows(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result | None:
        def read() -> _Result | None:
            try:
                rows = self._open_reader()
                return None if rows is None else work(rows.connection)
            except sqlite3.Error as error:
                self._note_unusable(error)
                return None

        async with self._reading:
            return await self._in_thread(read)

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _close(self) -> None:
        self._close_reader()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _remove(self) -> None:
        self._close()
        self._damaged, self._removed, self._caught_up = False, True, False
        if self.vectors is not None:
            self.vectors.forget_progress()
        for suffix in ("", "-wal", "-shm", "-journal"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)


def _heaviest(read: list[tuple[list[Term], Found]], statistics: Statistics) -> list[Found]:
    """Return those of the lines read whose terms weigh most."""

    def weight(each: tuple[list[Term], Found]) -> tuple[float, int]:
        terms, (_, near, at) = each
        return sum(map(statistics.rarity, terms)), near[at].ms

    return [found for _, found in nlargest(MAX_CANDIDATES, read, key=weight)]


def _still(mark: Mark, handle: int, inode: int, size: int) -> bool:
    """Return True if a file still matches its mark, as far as one probe can tell."""
    if mark.inode != inode or mark.byte > size:
        return False
    return mark.byte == 0 or pread(handle, 1, mark.byte - 1) == b"\n"


def _is_damage(error: Exception) -> bool:
    """Return True if the index file itself is damaged rather than the operation having failed."""
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
