"""Defines the tables of the state of accounts; `gateway.queue.postgres.schema` creates them."""

from __future__ import annotations

TABLES = """
CREATE TABLE account_document (
    folder TEXT NOT NULL, name TEXT NOT NULL, content BLOB, claim TEXT, claimed_until REAL,
    PRIMARY KEY (folder, name)
);
CREATE TABLE account_file (
    folder TEXT NOT NULL, file TEXT NOT NULL, generation INTEGER NOT NULL,
    PRIMARY KEY (folder, file)
);
CREATE TABLE account_row (
    folder TEXT NOT NULL, file TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (folder, file, kind, key)
);
"""
