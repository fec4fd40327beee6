"""
Defines the tables of the queue in SQLite's SQL; `gateway.store.postgres.postgres_schema` derives
PostgreSQL's. Every change gets the next version. ``inbox`` has one row per accepted message, whose ``id``
orders everything; ``tail`` is the turn's last row, to which ``outbox`` refers. ``history_journal`` holds
lines not durable in files, ``turn_steps`` unfinished turns' steps, ``receipts`` effects, ``grants`` approvals
in advance. Payloads become NULL when forgotten, keys stay; ignored rows end as digests in ``seen``.
``positions`` belongs to channels, ``state`` to the gateway, ``once`` has the newest value of topics. Times
are Unix seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

VERSION = 9
"""The schema version of `TABLES`."""

TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE positions (
    channel TEXT NOT NULL, account TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (channel, account, name)
) WITHOUT ROWID;
CREATE TABLE state (topic TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE once (topic TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE inbox (
    id INTEGER PRIMARY KEY,
    channel TEXT NOT NULL, account TEXT NOT NULL, native_id TEXT NOT NULL,
    session TEXT NOT NULL, kind TEXT NOT NULL, payload TEXT,
    state TEXT NOT NULL CHECK (state IN ('ready', 'running', 'answered', 'settled', 'dead', 'ignored',
        'quarantined')),
    attempts INTEGER NOT NULL DEFAULT 0, deferrals INTEGER NOT NULL DEFAULT 0,
    first_deferred_at REAL, next_at REAL, fence INTEGER NOT NULL DEFAULT 0, turn TEXT, tail INTEGER,
    error TEXT, accepted_at REAL NOT NULL, ended_at REAL, withdrawn TEXT, waits_for TEXT,
    UNIQUE (channel, account, native_id)
);
CREATE INDEX inbox_work ON inbox (state, session);
CREATE INDEX inbox_taken_back ON inbox (state, accepted_at) WHERE state = 'ignored' AND turn IS NOT NULL;
CREATE INDEX inbox_background ON inbox (id) WHERE kind = 'background_job';
CREATE TABLE turn_steps (
    turn TEXT NOT NULL, number INTEGER NOT NULL, kind TEXT NOT NULL, digest TEXT NOT NULL,
    request TEXT NOT NULL, result TEXT,
    PRIMARY KEY (turn, number)
);
CREATE TABLE receipts (
    id INTEGER PRIMARY KEY, turn TEXT NOT NULL, number INTEGER NOT NULL, at REAL NOT NULL,
    session TEXT NOT NULL, tool TEXT NOT NULL, effect TEXT NOT NULL, call TEXT NOT NULL,
    asked_by TEXT NOT NULL, origins TEXT NOT NULL, approved_by TEXT NOT NULL,
    outcome TEXT NOT NULL, told TEXT, undo TEXT, ended_at REAL,
    UNIQUE (turn, number)
);
CREATE INDEX receipts_at ON receipts (at);
CREATE TABLE grants (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, tool TEXT NOT NULL, what TEXT NOT NULL,
    session TEXT NOT NULL, people TEXT NOT NULL, given_by TEXT NOT NULL, at REAL NOT NULL,
    until REAL NOT NULL, turn TEXT NOT NULL, origins TEXT NOT NULL, seen_at REAL
) WITHOUT ROWID;
CREATE TABLE history_journal (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, line TEXT NOT NULL
);
CREATE INDEX history_journal_session ON history_journal (session);
CREATE TABLE outbox (
    id INTEGER PRIMARY KEY,
    inbox_id INTEGER REFERENCES inbox (id), turn TEXT, key TEXT NOT NULL,
    channel TEXT NOT NULL, account TEXT NOT NULL, session TEXT NOT NULL, payload TEXT,
    state TEXT NOT NULL CHECK (state IN ('pending', 'sending', 'uncertain', 'sent', 'dead', 'unknown',
        'held')),
    attempts INTEGER NOT NULL DEFAULT 0, next_at REAL, uncertain_at REAL, provider_id TEXT, error TEXT,
    created_at REAL NOT NULL, ended_at REAL, waits_for TEXT
);
CREATE INDEX outbox_inbox ON outbox (inbox_id);
CREATE INDEX outbox_key ON outbox (key);
CREATE INDEX outbox_state ON outbox (state);
CREATE INDEX outbox_open ON outbox (channel, account, session)
    WHERE state IN ('pending', 'sending', 'uncertain');
CREATE INDEX outbox_provider ON outbox (provider_id) WHERE provider_id IS NOT NULL;
CREATE TABLE usage (
    day TEXT NOT NULL, session TEXT NOT NULL, purpose TEXT NOT NULL, model TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, calls INTEGER NOT NULL, cost_usd REAL,
    cached_tokens INTEGER NOT NULL DEFAULT 0, thinking_tokens INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (day, session, purpose, model)
) WITHOUT ROWID;
CREATE TABLE leases (
    name TEXT PRIMARY KEY, holder TEXT, fence INTEGER NOT NULL, expires_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE seen (digest BLOB PRIMARY KEY, day INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE jobs (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, text TEXT NOT NULL, timing TEXT NOT NULL,
    session TEXT NOT NULL, account TEXT NOT NULL, person TEXT NOT NULL, audience TEXT NOT NULL,
    context TEXT NOT NULL, state TEXT NOT NULL CHECK (state IN ('active', 'paused', 'done')),
    created_at REAL NOT NULL, next_at REAL, last_at REAL, ended_at REAL,
    revision INTEGER NOT NULL, note TEXT NOT NULL
);
CREATE TABLE ledger (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, instant REAL NOT NULL, until REAL NOT NULL,
    ticks INTEGER NOT NULL, at REAL NOT NULL, outcome TEXT NOT NULL, reason TEXT NOT NULL,
    tokens INTEGER NOT NULL, calls INTEGER NOT NULL, took_s REAL NOT NULL, said TEXT NOT NULL
);
CREATE INDEX ledger_name ON ledger (name, until);
CREATE INDEX ledger_said ON ledger (said) WHERE said <> '';
CREATE TABLE collected (
    id INTEGER PRIMARY KEY, channel TEXT NOT NULL, person TEXT NOT NULL, text TEXT NOT NULL,
    at REAL NOT NULL
);
CREATE TABLE deaths (
    number INTEGER NOT NULL, item TEXT NOT NULL, step INTEGER NOT NULL, company INTEGER NOT NULL,
    at REAL NOT NULL, PRIMARY KEY (item, number)
) WITHOUT ROWID;
"""

_LEFT_OUT = frozenset({"meta", "leases"})
_CREATE = re.compile(r"CREATE TABLE (\w+) \((.*?)\n?\)(?: WITHOUT ROWID)?;", re.DOTALL)
_COLUMN = re.compile(r"(?:^|,)\s*([a-z_]+) (?:INTEGER|TEXT|REAL|BLOB)")


def _columns() -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, body in _CREATE.findall(TABLES):
        if name not in _LEFT_OUT:
            yield name, tuple(_COLUMN.findall(body))


COLUMNS: Mapping[str, tuple[str, ...]] = dict(_columns())
"""The columns of each table that is moved; the order of the tables respects the references between them."""
