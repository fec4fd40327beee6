"""Stores history lines: appends them under the lock of their session, and reads them from either end."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from datetime import datetime

from agent_core.models import Message
from agent_core.prompt_budget import message_chars
from agent_core.storage.history_lines import as_object, from_object, stamp, to_line
from agent_core.storage.history_paging import Entry
from agent_core.storage.search_index.index_rows import line_time
from agent_core.storage.search_index.indexed_files import searched_line, withdrawn_turn
from gateway.store.postgres.histories.database_search import IndexedText, withdraw
from gateway.store.sql.engine import ConnectionPort

_FIRST_PAGE = 32
_LARGEST_PAGE = 512
_ADD = (
    "INSERT INTO history (session, seq, msg_id, line, scope, at, said, words)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, array_to_tsvector(CAST(? AS text[])))"
)


_PATH = re.compile(r"attachments/[0-9a-f]{2}/[0-9a-f]{64}\.[a-z0-9]{1,8}")
_AT_ONCE = 500


def files_in(db: ConnectionPort) -> set[str]:
    """Return the `Attachment.path` of every file that a line names, by searching the texts."""
    return set(_named(db))


def _named(db: ConnectionPort) -> Iterator[str]:
    place = ("", -1)
    # Each statement reads only some of the lines, because its time is limited.
    while rows := db.execute(
        "SELECT session, seq, CASE WHEN strpos(line, 'attachments/') > 0 THEN line END"
        " FROM (SELECT session, seq, line FROM history WHERE (session, seq) > (?, ?)"
        " ORDER BY session, seq LIMIT ?) AS few ORDER BY session, seq",
        (*place, _AT_ONCE),
    ).fetchall():
        for _, _, raw in rows:
            if raw is not None:
                yield from _PATH.findall(raw)
        place = (rows[-1][0], rows[-1][1])


def end(db: ConnectionPort, session: str) -> int:
    """Return the number of lines of a history."""
    row = db.execute(
        "SELECT seq FROM history WHERE session = ? ORDER BY seq DESC LIMIT 1", (session,)
    ).fetchone()
    return 0 if row is None else int(row[0]) + 1


def append(db: ConnectionPort, home: int, session: str, messages: Sequence[Message], now: datetime) -> None:
    """Append the lines that are not there yet, in order; the caller holds the lock of the session."""
    seq, known = _end_and_known(db, session, [_key(each.id) for each in messages if each.id is not None])
    rows = []
    for message in messages:
        if message.id is not None:
            if (key := _key(message.id)) in known:
                continue
            known.add(key)
        line = to_line(stamp(message, now), seq).rstrip(b"\n").decode()
        rows.append((session, seq, *columns_of(home, line, seq)))
        seq += 1
    insert(db, rows)


def insert(db: ConnectionPort, rows: Sequence[Sequence[object]]) -> None:
    """Insert rows: session, position, and the `columns_of` a line."""
    db.executemany(_ADD, rows)
    for session, _, _, raw, *_ in rows:
        if '"undoes"' in str(raw) and (undone := withdrawn_turn(as_object(str(raw).encode()))):
            withdraw(db, str(session), undone)


def columns_of(home: int, raw: str, seq: int) -> tuple[object, ...]:
    """Return the columns of a line: id, line, scope, time, words in order, words as a set."""
    value = as_object(raw.encode())
    message = None if value is None else from_object(value)
    line = searched_line(value, seq)
    told = None if line is None else IndexedText.from_line(home, line)
    return (
        None if message is None or message.id is None else _key(message.id),
        raw,
        None if line is None else line.scope,
        line_time(None if message is None else message.timestamp),
        None if told is None else told.said,
        None if told is None else told.words,
    )


def page(db: ConnectionPort, session: str, start: int, limit: int) -> list[tuple[int, str]]:
    """Return some raw lines from a position on, oldest first."""
    found: list[tuple[int, str]] = db.execute(
        "SELECT seq, line FROM history WHERE session = ? AND seq >= ? ORDER BY seq LIMIT ?",
        (session, start, limit),
    ).fetchall()
    return found


def replace(db: ConnectionPort, home: int, session: str, changed: Sequence[tuple[int, str]]) -> None:
    """Replace the lines at these positions; the caller holds the lock of the session."""
    for seq, raw in changed:
        db.execute(
            "UPDATE history SET msg_id = ?, line = ?, scope = ?, at = ?,"
            " said = CASE WHEN said IS NOT NULL THEN CAST(? AS text) END,"
            " words = CASE WHEN said IS NOT NULL THEN array_to_tsvector(CAST(? AS text[])) END"
            " WHERE session = ? AND seq = ?",
            (*columns_of(home, raw, seq), session, seq),
        )


def _key(message_id: str) -> str:
    """Convert an id to what a column and its index can hold."""
    raw = message_id.encode("utf-8", "surrogatepass")
    if len(raw) <= 200 and message_id.isprintable():
        return message_id
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


def _end_and_known(db: ConnectionPort, session: str, keys: Sequence[str]) -> tuple[int, set[str]]:
    """Return the number of lines of a history, and which of these ids it has, in one round trip."""
    if not keys:
        return end(db, session), set()
    rows = db.execute(
        "SELECT (SELECT MAX(seq) FROM history WHERE session = ?), NULL"
        " UNION ALL SELECT NULL, msg_id FROM history WHERE session = ? AND msg_id = ANY(?)",
        (session, session, list(keys)),
    ).fetchall()
    last = max((int(seq) for seq, _ in rows if seq is not None), default=-1)
    return last + 1, {str(key) for _, key in rows if key is not None}


def backwards(db: ConnectionPort, session: str, *, total: int, down_to: int) -> Iterator[Entry]:
    """Yield lines from the position ``total`` back to ``down_to``, newest first, in pages."""
    before, limit = total, _FIRST_PAGE
    while before > down_to:
        rows = db.execute(
            "SELECT seq, line FROM history WHERE session = ? AND seq < ? AND seq >= ?"
            " ORDER BY seq DESC LIMIT ?",
            (session, before, down_to, limit),
        ).fetchall()
        if not rows:
            return
        yield from (_entry(seq, raw) for seq, raw in rows)
        before, limit = rows[-1][0], min(2 * limit, _LARGEST_PAGE)


def last(db: ConnectionPort, sessions: Sequence[str]) -> dict[str, Entry]:
    """Return the last line of each of these histories."""
    rows = db.execute(
        "SELECT one.name, h.seq, h.line FROM unnest(CAST(? AS text[])) AS one (name) CROSS JOIN LATERAL"
        " (SELECT seq, line FROM history WHERE session = one.name ORDER BY seq DESC LIMIT 1) AS h",
        (list(sessions),),
    ).fetchall()
    return {str(session): _entry(seq, raw) for session, seq, raw in rows}


def forwards(db: ConnectionPort, session: str, *, start: int) -> Iterator[Entry]:
    """Yield lines from a position on, oldest first, in pages."""
    limit = _FIRST_PAGE
    while True:
        rows = page(db, session, start, limit)
        yield from (_entry(seq, raw) for seq, raw in rows)
        if len(rows) < limit:
            return
        start, limit = rows[-1][0] + 1, min(2 * limit, _LARGEST_PAGE)


def _entry(seq: int, raw: str) -> Entry:
    value = as_object(raw.encode()) if raw else None
    message = None if value is None else from_object(value)
    # An empty line was removed deliberately; anything else that is not a message is damage.
    chars = 0 if message is None else message_chars(message)
    return Entry(seq, seq, message, chars, broken=message is None and bool(raw.strip()), number=seq)


def sessions(db: ConnectionPort) -> list[str]:
    """Return the sessions that have a history, the one written to last first."""
    query = (
        "SELECT session FROM history AS begun WHERE seq = 0 ORDER BY"
        " (SELECT at FROM history WHERE session = begun.session ORDER BY seq DESC LIMIT 1) DESC"
    )
    return [str(name) for (name,) in db.execute(query).fetchall()]
