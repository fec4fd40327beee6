"""
Detects which signals the embedded queue must fire, by triggers on the one connection that writes.

They are TEMP triggers, which belong to the connection and not to the file. They see every statement that
moves a row, so no caller and no new statement can forget a signal. Signals are fired after the commit; a
transaction that is rolled back fires none.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from gateway.queue.sql.signals import Fact, Signals

_WORK = (
    "SELECT became_true('session', session, next_at, channel, kind,"
    " CASE WHEN json_valid(payload) THEN json_extract(payload, '$.sender.address') END,"
    " CASE WHEN json_valid(payload) THEN json_extract(payload, '$.sender.verified') END)"
    " FROM main.inbox WHERE {which};"
)
_NEXT = (
    # A subquery: SQLite ignores the ORDER BY of a query whose rows a trigger discards.
    "id = (SELECT id FROM main.inbox WHERE state = 'ready' AND session = NEW.session"
    " ORDER BY COALESCE(next_at, 0), id LIMIT 1)"
)
# A row can be sent when it is pending and when a wait ends; a row that is done unblocks the next one.
_TRIGGERS = (
    f"""
    CREATE TEMP TRIGGER work_added AFTER INSERT ON main.inbox WHEN NEW.state = 'ready'
    BEGIN {_WORK.format(which="id = NEW.id")} END
    """,
    # A row that is put back without a time fires nothing: its handler knows when to continue.
    f"""
    CREATE TEMP TRIGGER work_due AFTER UPDATE OF state, next_at ON main.inbox
    WHEN NEW.state = 'ready' AND NOT (OLD.state = 'running' AND NEW.next_at IS NULL)
        AND (OLD.state <> 'ready' OR (OLD.next_at IS NOT NULL
            AND (NEW.next_at IS NULL OR NEW.next_at < OLD.next_at)))
    BEGIN {_WORK.format(which="id = NEW.id")} END
    """,
    # A row that is done unblocks the next one.
    f"""
    CREATE TEMP TRIGGER work_next AFTER UPDATE OF state ON main.inbox
    WHEN OLD.state IN ('ready', 'running') AND NEW.state NOT IN ('ready', 'running')
    BEGIN
        {_WORK.format(which=_NEXT)}
    END
    """,
    """
    CREATE TEMP TRIGGER turn_stopped AFTER UPDATE OF state ON main.inbox
    WHEN OLD.state = 'running' AND NEW.state = 'ignored'
    BEGIN SELECT became_true('stopped', NEW.session, NEW.turn, NEW.error); END
    """,
    """
    CREATE TEMP TRIGGER outbox_added AFTER INSERT ON main.outbox WHEN NEW.state = 'pending'
    BEGIN SELECT became_true('outbox', NEW.channel); END
    """,
    """
    CREATE TEMP TRIGGER outbox_moved AFTER UPDATE OF state, next_at ON main.outbox
    WHEN (NEW.state IN ('pending', 'dead', 'unknown') AND NEW.state <> OLD.state)
        OR (NEW.state IN ('pending', 'uncertain') AND OLD.next_at IS NOT NULL
            AND (NEW.next_at IS NULL OR NEW.next_at < OLD.next_at))
    BEGIN SELECT became_true('outbox', NEW.channel); END
    """,
    """
    CREATE TEMP TRIGGER draft_added AFTER INSERT ON main.outbox WHEN NEW.state = 'held'
    BEGIN SELECT became_true('drafts', NEW.channel); END
    """,
    """
    CREATE TEMP TRIGGER line_added AFTER INSERT ON main.history_journal
    BEGIN SELECT became_true('history', NEW.session); END
    """,
    """
    CREATE TEMP TRIGGER usage_added AFTER INSERT ON main.usage
    BEGIN SELECT became_true('usage', NEW.day); END
    """,
    """
    CREATE TEMP TRIGGER usage_grew AFTER UPDATE ON main.usage
    BEGIN SELECT became_true('usage', NEW.day); END
    """,
    """
    CREATE TEMP TRIGGER job_added AFTER INSERT ON main.jobs
    BEGIN SELECT became_true('jobs', NEW.id); END
    """,
    """
    CREATE TEMP TRIGGER job_sooner AFTER UPDATE OF state, next_at ON main.jobs
    WHEN NEW.state = 'active' AND NEW.next_at IS NOT NULL
        AND (OLD.state <> 'active' OR OLD.next_at IS NULL OR NEW.next_at < OLD.next_at)
    BEGIN SELECT became_true('jobs', NEW.id); END
    """,
)


class CommitWatch:
    """Records on the writing thread what became true, and reports it on the event loop."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._noted: dict[Fact, None] = {}

    # ── on the thread ──

    def install(self, db: sqlite3.Connection) -> None:
        """Watch this connection."""
        db.create_function("became_true", -1, self._note)
        for trigger in _TRIGGERS:
            db.execute(trigger)

    def _note(self, *fact: Any) -> None:
        self._noted[fact] = None

    def forget_rolled_back(self) -> None:
        """Forget the facts of a transaction that was rolled back."""
        self._noted.clear()

    def facts_of_commit(self) -> list[Fact]:
        """Return what became true with this commit, each fact once."""
        facts = list(self._noted)
        self._noted.clear()
        return facts

    # ── on the event loop ──

    def fire(self, facts: Sequence[Fact]) -> None:
        """Fire the signals of these facts."""
        self._signals.fire(facts)
