"""What the stores over one database share: the threads, the database's secret, the clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo

from agent_core.messages import OutboundMessage
from agent_core.ports import Clock
from gateway.queue.model import OutboxRow
from gateway.queue.sql.codec import instant
from gateway.queue.sql.engine import Connection, Fencing, Reader, Writer
from gateway.queue.states import OutboxState

Journal = Callable[[Connection, str, Sequence[str], float], None]
"""Commits lines of a history, as JSON, at a time, under the lock of their session."""


def journal_lines(db: Connection, session: str, lines: Sequence[str], now: float) -> None:  # noqa: ARG001 - a line that has no time gets it in the file
    """Commit lines to the journal; they stay until their file has them."""
    db.executemany(
        "INSERT INTO history_journal (session, line) VALUES (?, ?)", [(session, line) for line in lines]
    )


@dataclass(frozen=True, slots=True)
class Database:
    """
    An open database: what all stores over it share.

    Args:
        writer, reader: The two threads.
        secret: The database's identity.
        clock: Read on the event loop only; the threads are given the time.
        zone: Where the days begin by which usage is kept; None is the zone of this machine.
        journal: Where lines of histories go.
        fencing: Sees that nothing is written under a lease that was lost; None: there is one process.
        server_clock: Asks the clock that all processes of this database share; None: ``clock`` is that.
    """

    writer: Writer
    reader: Reader
    secret: str
    clock: Clock
    zone: tzinfo | None = UTC
    journal: Journal = journal_lines
    server_clock: Callable[[Connection], float] | None = None
    fencing: Fencing | None = None

    def now(self) -> float:
        """The time, as the tables keep it."""
        return self.clock.now().timestamp()

    def lease_clock(self) -> Callable[[Connection], float]:
        """What tells the time of leases, inside of a transaction."""
        now = self.now()
        return self.server_clock or (lambda _: now)

    def day(self, now: float) -> str:
        """The day of usage at this moment."""
        return instant(now).astimezone(self.zone).strftime("%Y-%m-%d")


class Part:
    """A store over some tables of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._writer = database.writer
        self._reader = database.reader
        self._secret = database.secret
        self._now = database.now
        self._day = database.day
        self._journal = database.journal


def pending(
    ids: Sequence[int],
    messages: Sequence[tuple[OutboundMessage, str]],
    inbox_id: int | None,
    held: Sequence[bool],
) -> list[OutboxRow]:
    """Messages that have just become rows."""
    return [
        OutboxRow(
            row_id, inbox_id, message, OutboxState.HELD if hold else OutboxState.PENDING, 0, None, None, None
        )
        for row_id, (message, _), hold in zip(ids, messages, held, strict=True)
    ]
