"""Stores consolidation records: summary and cursor of a session, one row that is replaced as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent_core.errors import CursorMoved
from agent_core.messages import SessionKey
from agent_core.provenance import Origins, to_json
from agent_core.storage.history_lines import encode_object
from agent_core.storage.history_paging import PageMark
from agent_core.storage.session_files import Record, parse_record
from gateway.store.sql.engine import ConnectionPort


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """The record of a session, its version (0: no row), and the number of lines of the history."""

    record: Record
    version: int
    total: int

    @property
    def cursor(self) -> int:
        """The cursor, never beyond the end of the history."""
        return min(self.record.cursor, self.total)


def load(db: ConnectionPort, session: str) -> StoredRecord:
    """Return the record; an empty one if there is no readable one."""
    return load_all(db, [session])[session]


def load_all(db: ConnectionPort, sessions: Sequence[str]) -> dict[str, StoredRecord]:
    """Return the record of each of these sessions."""
    found: dict[str, StoredRecord] = {}
    for session, text, version, last in db.execute(
        "SELECT name, record, version, (SELECT MAX(seq) FROM history WHERE session = name)"
        " FROM unnest(CAST(? AS text[])) AS asked (name) LEFT JOIN consolidation ON session = name",
        (list(sessions),),
    ).fetchall():
        record = None if text is None else parse_record(text.encode(), SessionKey.parse(session), str)
        total = 0 if last is None else int(last) + 1
        found[session] = StoredRecord(record or Record(), int(version or 0), total)
    return found


def change(
    db: ConnectionPort,
    session: str,
    *,
    summary: str | None = None,
    cursor: int | None = None,
    base_cursor: int | None = None,
    private: frozenset[str] | None = None,
    origins: Origins | None = None,
) -> None:
    """Replace the given parts under the session's lock. Raises CursorMoved."""
    kept = load(db, session)
    if base_cursor is not None and kept.total and kept.cursor != base_cursor:
        raise CursorMoved(f"the cursor is at {kept.cursor} and not at {base_cursor} any more")
    record = kept.record.replace_fields(summary=summary, private=private, origins=origins)
    place = kept.cursor if cursor is None else min(max(0, cursor), kept.total)
    text = encode(session, replace(record, place=PageMark(place, -1)))
    if kept.version == 0:
        done = db.execute(
            "INSERT INTO consolidation (session, record, version) VALUES (?, ?, 1) ON CONFLICT DO NOTHING",
            (session, text),
        )
    else:
        done = db.execute(
            "UPDATE consolidation SET record = ?, version = version + 1 WHERE session = ? AND version = ?",
            (text, session, kept.version),
        )
    if done.rowcount != 1:
        raise CursorMoved("the record was changed by somebody else")


def encode(session: str, record: Record) -> str:
    """Return the record as its row stores it."""
    return (
        encode_object(
            {
                "version": 1,
                "session": session,
                "last_consolidated": record.cursor,
                "summary": record.summary,
                "private": sorted(record.private),
                "origins": to_json(record.origins),
            }
        )
        .rstrip(b"\n")
        .decode()
    )
