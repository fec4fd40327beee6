"""
Checks ``gateway.db`` for damage without changing it, and repairs what can be repaired without loss. If no
daemon runs and there is no log beside the file, the file is opened as immutable, so not even a lock is left.
With a log, a copy of both is examined. While a daemon runs, the file is read as by any other reader.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from gateway.store.copy_marker import NAME as MOVED
from gateway.store.copy_marker import check_no_marker
from gateway.store.sql.tables import VERSION
from gateway.store.sqlite.sqlite_schema import APPLICATION_ID

_MOST = 20
_FILE = re.compile(r"attachments/[0-9a-f]{2}/[0-9a-f]{64}\.[a-z0-9]{1,8}")
_PAYLOADS = (("inbox", "payload"), ("outbox", "payload"), ("history_journal", "line"))


@dataclass(frozen=True, slots=True)
class Damage:
    """A problem in the file, and whether `repair_database` can repair it."""

    text: str
    mendable: bool


@contextmanager
def _opened(path: Path, *, in_use: bool) -> Iterator[sqlite3.Connection]:
    log = path.with_name(f"{path.name}-wal")
    if in_use:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as db:
            yield db
        return
    if not log.exists() or not log.stat().st_size:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)) as db:
            yield db
        return
    with tempfile.TemporaryDirectory(prefix="squidbot-check-") as folder:
        copy = Path(folder) / path.name
        shutil.copyfile(path, copy)
        shutil.copyfile(log, copy.with_name(log.name))
        with closing(sqlite3.connect(copy)) as db:
            yield db


def examine_database(path: Path, *, in_use: bool = False) -> list[Damage]:
    """Check the whole file. Raises `StoreMoved` if its content was moved."""
    try:
        with _opened(path, in_use=in_use) as db:
            found = list(_damages(db))
            if not found and db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
                mark = db.execute("SELECT value FROM meta WHERE name = ?", (MOVED,)).fetchone()
                check_no_marker(None if mark is None else mark[0], str(path))
            return found
    except (sqlite3.Error, OSError) as error:
        return [Damage(f"it cannot be read: {error}", mendable=False)]


def _damages(db: sqlite3.Connection) -> Iterator[Damage]:
    (owner,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == 0 and not db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
        return  # nothing was ever written
    if owner != APPLICATION_ID:
        yield Damage("it is not a database of squidbot's", mendable=False)
        return
    if version != VERSION:
        yield Damage(
            f"its schema is {version}, this squidbot knows {VERSION}: another one wrote it", mendable=False
        )
        return
    said = [str(row[0]) for row in db.execute(f"PRAGMA integrity_check({_MOST})")]
    for text in said if said != ["ok"] else ():
        yield Damage(f"integrity: {text}", mendable="index" in text)
    for table, rowid, parent, _ in db.execute("PRAGMA foreign_key_check").fetchmany(_MOST):
        yield Damage(f"row {rowid} of {table} belongs to a row of {parent} that is not there", mendable=True)
    for table, column in _PAYLOADS:
        rows = db.execute(
            f"SELECT id FROM {table} WHERE {column} IS NOT NULL AND NOT json_valid({column}) LIMIT {_MOST}"  # noqa: S608 - constants
        )
        for (number,) in rows.fetchall():
            yield Damage(f"the content of row {number} of {table} cannot be read", mendable=False)


def repair_database(path: Path) -> None:
    """Rebuild indexes, clear dangling references, alone and with a copy. Raises sqlite3.Error."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        try:
            for table, rowid, _, number in db.execute("PRAGMA foreign_key_check").fetchall():
                column = next(
                    row[3] for row in db.execute(f"PRAGMA foreign_key_list({table})") if row[0] == number
                )
                db.execute(f"UPDATE {table} SET {column} = NULL WHERE rowid = ?", (rowid,))  # noqa: S608 - names of our schema
            db.execute("REINDEX")
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise


def names_in_rows(path: Path, *, in_use: bool = False) -> dict[str, bool] | None:
    """Return each named `Attachment.path` and True if still needed; None if unreadable."""
    try:
        with _opened(path, in_use=in_use) as db:
            return _names(db)
    except (sqlite3.Error, OSError):
        return None


def _names(db: sqlite3.Connection) -> dict[str, bool]:
    found: dict[str, bool] = {}
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'history_journal'").fetchone():
        return found
    for query in (
        "SELECT payload, state NOT IN ('settled', 'ignored') FROM inbox WHERE payload LIKE '%attachments/%'",
        "SELECT payload, state <> 'sent' FROM outbox WHERE payload LIKE '%attachments/%'",
        "SELECT line, 1 FROM history_journal WHERE line LIKE '%attachments/%'",
    ):
        for payload, needed in db.execute(query):
            for name in _FILE.findall(payload):
                found[name] = found.get(name, False) or bool(needed)
    return found
