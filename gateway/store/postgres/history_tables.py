"""
Defines the tables of histories and memory; `gateway.store.postgres.postgres_schema` creates them from this
text.
"""

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
CREATE TABLE vectors (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, seq INTEGER NOT NULL, scope TEXT NOT NULL,
    vectors BLOB NOT NULL, UNIQUE (session, seq)
);
CREATE INDEX vectors_scope ON vectors (scope, id)
"""
NAMES = ("history", "consolidation", "memory", "vectors")

INDEXES = (
    # Without a list of pending index entries: each search would read it.
    "CREATE INDEX history_words ON {schema}.all_history USING GIN (words) WITH (fastupdate = off)",
    "CREATE INDEX history_first ON {schema}.all_history (home, session) WHERE seq = 0",
)
NEWEST = "CREATE INDEX history_newest ON {schema}.all_history (home, scope, at)"
TRIGGERS = (
    (
        "CREATE TRIGGER line_added AFTER INSERT ON {schema}.all_history"
        " FOR EACH ROW EXECUTE FUNCTION {schema}.line_added()"
    ),
    # Vectors go with the text of their line, whichever program removes it, and whatever its own rights are.
    """
CREATE FUNCTION {schema}.line_erased() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = '' AS $$
BEGIN
    DELETE FROM {schema}.all_vectors WHERE home = OLD.home AND session = OLD.session AND seq = OLD.seq;
    RETURN NULL;
END $$;
CREATE TRIGGER line_erased AFTER DELETE ON {schema}.all_history
    FOR EACH ROW EXECUTE FUNCTION {schema}.line_erased();
CREATE TRIGGER line_changed AFTER UPDATE ON {schema}.all_history FOR EACH ROW
    WHEN ((OLD.session, OLD.seq, OLD.scope, OLD.said) IS DISTINCT FROM
        (NEW.session, NEW.seq, NEW.scope, NEW.said))
    EXECUTE FUNCTION {schema}.line_erased()
""",
)
