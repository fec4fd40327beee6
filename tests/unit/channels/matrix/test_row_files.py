"""The files of an account that are rows in a database: a move reads them through the plugin."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from channels.email.plugin import EmailPlugin
from channels.matrix.plugin import MatrixPlugin


def key_store(path, generation):
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE accounts (device_id TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID")
        db.execute("CREATE TABLE squidbot (id INTEGER PRIMARY KEY, generation INTEGER)")
        db.execute("INSERT INTO accounts VALUES ('DEVICE')")
        db.execute("INSERT INTO squidbot VALUES (1, ?)", (generation,))


def test_key_stores_are_read(tmp_path):
    """A damaged one, and a mere copy, are refused with their path; other kinds have no such files."""
    key_store(tmp_path / "crypto-1.db", 7)
    key_store(tmp_path / "crypto-2.db", -1)
    (tmp_path / "crypto-3.db").write_bytes(b"no database at all" * 100)
    refused = []
    [(name, generation, _)] = MatrixPlugin().read_row_files(tmp_path, refused.append)
    assert (name, generation) == ("DEVICE", 7)
    assert [text.partition(":")[0].rpartition("/")[2] for text in refused] == ["crypto-2.db", "crypto-3.db"]

    assert list(EmailPlugin().read_row_files(tmp_path, refused.append)) == []
    assert len(refused) == 2
