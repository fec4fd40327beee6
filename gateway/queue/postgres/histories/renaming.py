"""Gives a person's histories and memory in the tables to their new address, in the caller's transaction."""

from __future__ import annotations

from agent_core.storage.lines import as_object, encode_object
from gateway.queue.postgres.histories import documents, lines
from gateway.queue.sql.engine import ConnectionPort
from gateway.queue.sql.person_address import AddressChange

_AT_ONCE = 500
"""Lines in memory; a statement must end within the server's limit, too."""


def rename_histories(db: ConnectionPort, home: int, change: AddressChange) -> None:
    """Rename senders, sessions and memory scopes; texts stay as they were. Repeating it changes nothing."""
    for session in lines.sessions(db):
        start = 0
        while rows := lines.page(db, session, start, _AT_ONCE):
            moved = [(seq, _line(raw, change)) for seq, raw in rows]
            lines.replace(
                db, home, session, [one for one, row in zip(moved, rows, strict=True) if one != row]
            )
            start = rows[-1][0] + 1
        if (renamed := change.text(session)) != session:
            db.execute("UPDATE history SET session = ? WHERE session = ?", (renamed, session))
    for session, record in db.execute("SELECT session, record FROM consolidation").fetchall():
        after = (change.text(session), _line(record, change))
        if after != (session, record):
            db.execute(
                "UPDATE consolidation SET session = ?, record = ? WHERE session = ?", (*after, session)
            )
    for scope in documents.scopes(db):
        if (renamed := change.text(scope)) != scope:
            db.execute("UPDATE memory SET scope = ? WHERE scope = ?", (renamed, scope))


def _line(raw: str, change: AddressChange) -> str:
    value = as_object(raw.encode()) if raw else None
    moved = change.value(value)
    return raw if value is None or moved == value else encode_object(moved).rstrip(b"\n").decode()
