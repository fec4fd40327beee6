"""Checks the search index. It is a cache, so a damaged one is set aside and rebuilt."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from shutil import copyfile


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
