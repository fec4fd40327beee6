"""Each kind of damage that a home can take: what is done to it, and which part of the examination notices."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.home_world import ALICE, BOB


def history(root, session=ALICE) -> Path:
    return root / "sessions" / f"{session.file_name}.jsonl"


def record(root, session=ALICE) -> Path:
    return root / "sessions" / f"{session.file_name}.meta.json"


# ── each kind of damage: what is done to a sound home, which part notices, and whether it can be mended ──


def a_line_of_rubbish(root):
    with history(root).open("ab") as lines:
        lines.write(b"\x00\x00rubbish\n")
    return "histories"


def a_line_in_the_middle(root):
    raw = history(root).read_bytes()
    history(root).write_bytes(raw.replace(b'{"id"', b'{"id', 1))
    return "histories"


def a_torn_last_line(root):
    raw = history(root, BOB).read_bytes()
    history(root, BOB).write_bytes(raw[:-20])
    return "histories"


def a_missing_newline(root):
    raw = history(root, BOB).read_bytes()
    history(root, BOB).write_bytes(raw[:-1])
    return "histories"


def a_version_of_memory(root):
    path = root / "memory" / "owner" / "MEMORY.history.jsonl"
    path.write_bytes(b'{"version": 1\n' + path.read_bytes())
    return "histories"


def a_document_that_is_a_folder(root):
    path = root / "workspace" / "MEMORY.md"
    path.unlink(missing_ok=True)
    path.mkdir()
    return "memory"


def a_document_that_is_a_link_to_itself(root):
    path = root / "workspace" / "MEMORY.md"
    path.unlink(missing_ok=True)
    path.symlink_to(path)
    return "memory"


def a_summary_that_is_a_folder(root):
    path = root / "memory" / ALICE.file_name / "summary.md"
    path.unlink()
    path.mkdir()
    return "records"


def a_record(root):
    record(root).write_text("{")
    return "records"


def a_summary(root):
    (root / "memory" / ALICE.file_name / "summary.md").write_text("something else")
    return "records"


def a_cursor_beyond_the_end(root):
    said = json.loads(record(root).read_text())
    record(root).write_text(json.dumps({**said, "last_consolidated": 500, "offset": -1}) + "\n")
    return "records"


def an_index_of_the_database(root):
    with closing(sqlite3.connect(root / "gateway.db", isolation_level=None)) as db:
        sql, page = db.execute("SELECT sql, rootpage FROM sqlite_master WHERE name = 'inbox_work'").fetchone()
        db.execute("PRAGMA writable_schema = ON")
        db.execute("DELETE FROM sqlite_master WHERE name = 'inbox_work'")
    with closing(sqlite3.connect(root / "gateway.db", isolation_level=None)) as db:
        db.execute("UPDATE inbox SET state = 'dead'")
        db.execute("PRAGMA writable_schema = ON")
        db.execute("INSERT INTO sqlite_master VALUES ('index', 'inbox_work', 'inbox', ?, ?)", (page, sql))
    return "database"


def a_row_without_its_message(root):
    with closing(sqlite3.connect(root / "gateway.db", isolation_level=None)) as db:
        db.execute("UPDATE outbox SET inbox_id = 4711 WHERE id = (SELECT MIN(id) FROM outbox)")
    return "database"


def words_of_the_index(root):
    with closing(sqlite3.connect(root / "search.db", isolation_level=None)) as db:
        db.execute("DELETE FROM words_idx")
        db.execute("DELETE FROM words_data WHERE id > 10")
    return "search index"


def the_head_of_the_index(root):
    with (root / "search.db").open("r+b") as file:
        file.write(b"\x00" * 4096)
    return "search index"


def a_changed_file(root):
    next(path for path in root.glob("attachments/??/*")).write_bytes(b"another content")
    return "attachments"


MENDABLE = [
    a_line_of_rubbish, a_line_in_the_middle, a_torn_last_line, a_missing_newline, a_version_of_memory, a_document_that_is_a_folder,
    a_document_that_is_a_link_to_itself, a_summary_that_is_a_folder, a_record,
    a_summary, a_cursor_beyond_the_end, an_index_of_the_database, a_row_without_its_message,
    words_of_the_index, the_head_of_the_index, a_changed_file,
]  # fmt: skip


def fill(disk: Path) -> Path:
    """A file that takes all that is left."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (64 * 1024, 1024, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast
