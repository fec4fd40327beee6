"""
How the embedded store notices what became true: triggers on the one connection that writes.

They are TEMP triggers, which live in the connection and not in the file, so every statement that moves a row
is seen, whoever wrote it, and nothing is left for a caller or for a new statement to forget. What they note
counts after the commit only; a transaction that is undone has told nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from gateway.queue.sqlite.codec import session_or_none
from gateway.queue.wakeups import Wakeups

__all__ = ["Fact", "Watch"]

Fact = tuple[str, str]
"""What became true, and where."""

# A row can be sent when it is pending and when a wait ends; one that is out of the way lets the next one go.
_TRIGGERS = (
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


class Watch:
    """Notes on the writing thread what became true, and fires it on the event loop."""

    def __init__(self, wakeups: Wakeups) -> None:
        self._wakeups = wakeups
        self._fire: dict[str, Callable[[str], None]] = {
            "outbox": wakeups.outbox.fire,
            "drafts": wakeups.drafts.fire,
            "history": self._history,
            "usage": wakeups.usage.fire,
            "jobs": wakeups.jobs.fire,
        }
        self._noted: dict[Fact, None] = {}

    def install(self, db: sqlite3.Connection) -> None:
        """Watch this connection."""
        db.create_function("became_true", 2, self._note)
        for trigger in _TRIGGERS:
            db.execute(trigger)

    def _note(self, what: str, where: str) -> None:
        self._noted[what, where] = None

    def undone(self) -> None:
        """The transaction was rolled back."""
        self._noted.clear()

    def committed(self) -> list[Fact]:
        """What became true with this commit, each once."""
        facts = list(self._noted)
        self._noted.clear()
        return facts

    def _history(self, session: str) -> None:
        key = session_or_none(session)
        if key is not None:
            self._wakeups.history.fire(key)

    def fire(self, facts: Sequence[Fact]) -> None:
        """Tell whoever waits. To be called on the event loop."""
        for what, where in facts:
            self._fire[what](where)
