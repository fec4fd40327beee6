"""Defines the tables of histories and memory; `gateway.queue.postgres.schema` creates them from this text."""

from __future__ import annotations

TABLES = """
CREATE TABLE history (
    session TEXT NOT NULL, seq INTEGER NOT NULL, msg_id TEXT, line TEXT NOT NULL,
    scope TEXT, at INTEGER NOT NULL, said TEXT, words TSVECTOR,
    PRIMARY KEY (session, seq), UNIQUE (session, msg_id)
);
CREATE TABLE consolidation (
    session TEXT PRIMARY KEY, record TEXT NOT NULL, version INTEGER NOT NULL
);
CREATE TABLE memory (
    scope TEXT NOT NULL, version INTEGER NOT NULL, line TEXT NOT NULL,
    PRIMARY KEY (scope, version)
);
"""
NAMES = ("history", "consolidation", "memory")

INDEXES = (
    # Without a list of pending index entries: each search would read it.
    "CREATE INDEX history_words ON {schema}.all_history USING GIN (words) WITH (fastupdate = off)",
    "CREATE INDEX history_first ON {schema}.all_history (home, session) WHERE seq = 0",
)
TRIGGERS = (
    (
        "CREATE TRIGGER line_added AFTER INSERT ON {schema}.all_history"
        " FOR EACH ROW EXECUTE FUNCTION {schema}.line_added()"
    ),
)
