"""
Maps SQLite's errors: the disk refuses for now (`StoreUnavailable`), or the code is wrong. After most errors
the connection is still usable (a full disk, a lock). After an I/O error, or when the file is gone, a new one
must be opened.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from gateway.store.store_errors import StoreUnavailable

_MEANINGS: dict[int, str] = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
    sqlite3.SQLITE_BUSY: "another program holds the database",
    sqlite3.SQLITE_LOCKED: "another program holds the database",
    sqlite3.SQLITE_READONLY: "the database cannot be written",
    sqlite3.SQLITE_CANTOPEN: "the database cannot be opened",
    sqlite3.SQLITE_CORRUPT: "the database is damaged",
    sqlite3.SQLITE_NOTADB: "the database is damaged",
    sqlite3.SQLITE_PERM: "the database may not be opened",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
}
_BREAKING = frozenset(
    {
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PROTOCOL,
    }
)
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def _code(error: sqlite3.Error) -> int:
    """Return the primary result code; extended codes hold more in their upper bytes."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def name_of(error: sqlite3.Error) -> str:
    """Return SQLite's own name of an error, such as SQLITE_IOERR_WRITE."""
    return str(getattr(error, "sqlite_errorname", "") or type(error).__name__)


def is_damage(error: sqlite3.Error) -> bool:
    """Return True if the file itself is damaged."""
    return _code(error) in _DAMAGE


def needs_reopening(error: sqlite3.Error) -> bool:
    """Return True if the connection must be replaced before it is used again."""
    return _code(error) in _BREAKING


def unavailable(error: sqlite3.Error, path: Path, operation: str) -> Exception:
    """Return the error for the caller; that of a constraint or invalid statement is a defect."""
    if isinstance(error, (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError)):
        return error
    meaning = _MEANINGS.get(_code(error), "the database does not work")
    return StoreUnavailable(f"{meaning}: {error}", path=str(path), operation=operation, sqlite=name_of(error))
