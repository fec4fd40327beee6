"""Stores memory documents: one row for each version; the last version is the document."""

from __future__ import annotations

from datetime import datetime

from agent_core.errors import MemoryConflict
from agent_core.models import MemoryDocument, MemoryScope, ScopeKind
from agent_core.provenance import Origins
from agent_core.storage.history_lines import storable
from agent_core.storage.memory_files import Version
from gateway.store.sql.engine import ConnectionPort


def name_of(scope: MemoryScope) -> str:
    """Return the scope as the table stores it. Raises `ValueError` for a person or a room without a name."""
    if scope.kind is not ScopeKind.OWNER and not scope.name:
        raise ValueError(f"a {scope.kind.value} without a name has no memory")
    return storable(str(scope))


def load(db: ConnectionPort, scope: str) -> MemoryDocument:
    """Return the last readable version; an empty document if there is none."""
    rows = db.execute("SELECT line FROM memory WHERE scope = ? ORDER BY version DESC LIMIT 1", (scope,))
    newest = rows.fetchone()
    if newest is None:
        return MemoryDocument()
    if (version := Version.parse_or_none(newest[0].encode())) is not None:
        return version.document
    readable = versions(db, scope)
    return readable[-1].document if readable else MemoryDocument()


def versions(db: ConnectionPort, scope: str) -> list[Version]:
    """Return all readable versions, oldest first."""
    rows = db.execute("SELECT line FROM memory WHERE scope = ? ORDER BY version", (scope,)).fetchall()
    return [version for (raw,) in rows if (version := Version.parse_or_none(raw.encode())) is not None]


def save(
    db: ConnectionPort,
    scope: str,
    text: str,
    *,
    base_version: int | None,
    written_at: datetime,
    session_id: str,
    turn: str,
    origins: Origins,
) -> MemoryDocument:
    """Insert the next version. Raises MemoryConflict if ``base_version`` is not the current one."""
    text, current = storable(text), load(db, scope)
    if current.version and current.text == text:
        return current
    if base_version is not None and base_version != current.version:
        raise _conflict(current)
    row = db.execute("SELECT MAX(version) FROM memory WHERE scope = ?", (scope,)).fetchone()
    # An unreadable version keeps its number.
    document = MemoryDocument(text, max(current.version, row[0] or 0) + 1, origins)
    line = Version(document, written_at, session_id, turn).line().rstrip(b"\n").decode()
    done = db.execute(
        "INSERT INTO memory (scope, version, line) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        (scope, document.version, line),
    )
    if done.rowcount != 1:
        raise _conflict(load(db, scope))
    return document


def _conflict(current: MemoryDocument) -> MemoryConflict:
    return MemoryConflict(current_text=current.text, current_version=current.version, origins=current.origins)


def scopes(db: ConnectionPort) -> list[str]:
    """Return the scopes that have a document."""
    return [str(scope) for (scope,) in db.execute("SELECT DISTINCT scope FROM memory").fetchall()]
