"""
Reads histories into the search index: from where it stopped, or from the end within a budget. The index is a
cache, so a damaged one is set aside and rebuilt.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import islice
from os import O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, close, fstat, pread
from os import open as open_file
from pathlib import Path
from shutil import copyfile
from typing import Any, overload

from agent_core.memory_ports import SearchRequest
from agent_core.models import Message, SearchHit
from agent_core.provenance import to_json
from agent_core.storage import history_lines
from agent_core.storage.history_paging import lines_backwards, lines_forwards
from agent_core.storage.search_index.index_rows import Found, SearchLine, line_time
from agent_core.storage.search_index.ranking import BestSentences, Candidate, Statistics
from agent_core.storage.search_index.word_splitting import Filters, Query, Term, fold


@dataclass(slots=True)
class Budget:
    """The bytes that may still be scanned, in total and per history; ``cut``: something was left out."""

    bytes: int = 1024 * 1024
    bytes_each: int = 256 * 1024
    cut: bool = False

    @property
    def is_spent(self) -> bool:
        """Return True if no byte is left."""
        return self.bytes <= 0


@dataclass(frozen=True, slots=True)
class Unread:
    """A history whose part from ``start`` on is not indexed."""

    session: str
    path: Path
    start: int


def read_lines_from(
    handle: int, position: int, byte: int, size: int
) -> Iterator[tuple[SearchLine | None, int, int]]:
    """Each complete line from a place on (None: no text of a conversation), and the place after it."""
    at, held = -1, None
    for following, raw in lines_forwards(handle, byte, max_line_bytes=history_lines.MAX_LINE_BYTES):
        if at >= 0:
            line, position = _next_line(held, position, at)
            yield line, position, following
        at, held = following, raw
    end = size if held is None else at + len(held) + 1
    if at >= 0 and pread(handle, 1, end - 1) == b"\n":  # otherwise the rest of it is still to come
        line, position = _next_line(held, position, at)
        yield line, position, end


def _next_line(raw: bytes | None, position: int, byte: int) -> tuple[SearchLine | None, int]:
    """The line that begins at ``byte`` and the position after it; it stands at ``position`` at least."""
    value = history_lines.as_object(raw) if raw else None
    number = history_lines.position_in(value, byte)
    here = number if number is not None and number >= position else position
    return searched_line(value, here) or _mark_in(value, here), here + 1


def withdrawn_turn(value: dict[str, Any] | None) -> str:
    """Return the turn or the message that the object of a line takes back, or an empty text."""
    undone = None if value is None else value.get("undoes")
    return undone if isinstance(undone, str) else ""


def _mark_in(value: dict[str, Any] | None, position: int) -> SearchLine | None:
    undone = withdrawn_turn(value)
    return SearchLine(position, 0, "system", None, "", "", undoes=undone) if undone else None


def searched_line(value: dict[str, Any] | None, position: int) -> SearchLine | None:
    """A line of a history in the form for searching; None if nobody may find it."""
    if value is None or value.get("role") not in ("user", "assistant"):
        return None
    message = history_lines.from_object(value)
    if message is None or message.scope is None or not message.content.strip():
        return None
    return SearchLine(
        position,
        line_time(message.timestamp),
        message.role,
        history_lines.storable(message.sender) if message.sender is not None else None,
        history_lines.storable(message.content),
        message.scope,
        None if message.origins is None else json.dumps(to_json(message.origins)),
        message.turn,
        None if message.id is None else history_lines.storable(message.id),
    )


def scan_unread(
    unread: Unread,
    query: Query,
    scope: str,
    *,
    filters: Filters,
    budget: Budget,
    statistics: Statistics,
    undone: set[str],
) -> list[tuple[list[Term], Found]]:
    """
    Scan what is not indexed for candidates of a scope, from the end of the file as far as the budget goes.

    Each comes with its terms, and they are counted in ``statistics``. What was taken back is left out and
    added to ``undone``.
    """
    lines: list[SearchLine] = []
    # Most lines of other scopes need not be decoded. A line that is encoded otherwise says so.
    marks = (history_lines.encode_object({"": scope})[5:-3], b'"undoes"', b'"enc"')
    try:
        handle = open_file(unread.path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
    except OSError:
        return []
    try:
        size = fstat(handle).st_size
        for byte, raw in lines_backwards(handle, size, max_line_bytes=history_lines.MAX_LINE_BYTES):
            if byte < unread.start:
                break
            budget.bytes -= len(raw or b"") + 1
            if budget.is_spent or size - byte > budget.bytes_each:
                budget.cut = True
                break
            if raw is None or not any(mark in raw for mark in marks):
                continue
            value = history_lines.as_object(raw)
            undone.add(withdrawn_turn(value))
            number = history_lines.position_in(value, byte)
            before = lines[-1].position if lines else byte
            line = searched_line(value, number if number is not None else before - 1)
            if line is not None and line.scope == scope and not line.is_in(undone):
                lines.append(line)
    finally:
        close(handle)
    lines.reverse()
    statistics.total += len(lines)
    found: list[tuple[list[Term], Found]] = []
    for at, line in enumerate(lines):
        terms = query.terms_in(fold(line.text))
        statistics.counts.update(terms)
        if filters.is_said(line.ms, line.sender) and query.is_hit(terms):
            found.append((terms, (unread.session, lines[max(0, at - 1) : at + 2], min(at, 1))))
    return found


def turn_of(found: Found) -> Found:
    """Return a hit with nothing beside it but the answer to it, or its question."""
    session, lines, at = found
    first = at - 1 if lines[at].role == "assistant" else at
    turn = lines[max(first, 0) : first + 2]
    if len(turn) == 1 or not turn[0].is_turn_with(turn[1]):
        return session, [lines[at]], 0
    return session, turn, at - first


def candidate_of(found: Found, undone: Collection[str] = ()) -> Candidate:
    """Return a line with its question or answer as they are rated, if that was not taken back."""
    _, turn, at = turn_of(found)
    beside = "".join(line.text for line in turn if line is not turn[at] and not line.is_in(undone))
    return Candidate(turn[at].ms, turn[at].text, beside)


class _Messages(Sequence[Message]):
    """Lines as messages, each made when it is first looked at: of most hits none is."""

    def __init__(self, lines: Sequence[SearchLine]) -> None:
        self._lines = lines
        self._message = cache(lambda at: lines[at].message())

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Message]: ...
    def __getitem__(self, at: int | slice) -> Message | Sequence[Message]:
        return _Messages(self._lines[at]) if isinstance(at, slice) else self._message(at)


def chosen(
    found: Iterable[Found | None], asked: SearchRequest, sentences: BestSentences
) -> tuple[tuple[SearchHit, ...], int]:
    """Return the picked hits and the number of lines read for them, without neighbours of better ones."""
    shown: set[tuple[str, int]] = set()
    used = 0

    def read() -> Iterator[SearchHit]:
        nonlocal used
        for each in found:
            used += 1
            if each is None:
                continue
            session, lines, at = each
            if (session, lines[at].position) in shown:
                continue
            shown.update((session, line.position) for line in lines)
            part = _sentences_of(sentences, session, lines)
            part(at)  # in the thread of the search; few ask for those of the neighbours
            yield SearchHit(session, _Messages(lines), at, lines[at].position, part)

    hits = tuple(islice(asked.pick(read()), asked.max_results))
    return hits, used


def _sentences_of(
    sentences: BestSentences, session: str, lines: Sequence[SearchLine]
) -> Callable[[int], str]:
    return cache(lambda at: sentences.best(session, lines[at].position, lines[at].text))


def index_files(path: Path) -> list[Path]:
    """The existing files of an index."""
    names = [path, *(path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm", "-journal"))]
    return [each for each in names if each.exists()]


def examine_index(path: Path) -> str:
    """
    Examine a copy of an index and describe what is wrong with it; empty if nothing is, or if there is none.

    A lag behind the histories is no fault: the index catches up by itself.
    """
    if not path.exists():
        return ""
    try:
        with tempfile.TemporaryDirectory(prefix="squidbot-check-") as folder:
            for each in index_files(path):
                if not each.name.endswith("-shm"):
                    copyfile(each, Path(folder) / each.name)
            with closing(sqlite3.connect(Path(folder) / path.name)) as db:
                return _trouble(db)
    except (sqlite3.Error, OSError) as error:
        return f"it cannot be read: {error}"


def _trouble(db: sqlite3.Connection) -> str:
    said = [str(row[0]) for row in db.execute("PRAGMA integrity_check(3)")]
    if said != ["ok"]:
        return "; ".join(said)
    if not db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
        return ""
    db.execute("INSERT INTO words (words) VALUES ('integrity-check')")
    (lost,) = db.execute(
        "SELECT COUNT(*) FROM lines WHERE id NOT IN (SELECT rowid FROM words_docsize)"
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'words_docsize'").fetchone()
        else "SELECT 0"
    ).fetchone()
    if lost:
        return f"{lost} lines have no words in it"
    return ""
