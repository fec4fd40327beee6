"""The open database that all stores share: its workers, its secret, its clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo

from agent_core.messages import OutboundMessage
from agent_core.ports import Clock
from gateway.store.model import OutboxRow
from gateway.store.sql.engine import ConnectionPort, Fencing, ReadPort, WritePort
from gateway.store.sql.row_codec import instant
from gateway.store.states import OutboxState

Journal = Callable[[ConnectionPort, str, Sequence[str], float], None]
"""Commits history lines, as JSON and with a time, under the lock of their session."""


def journal_lines(db: ConnectionPort, session: str, lines: Sequence[str], now: float) -> None:  # noqa: ARG001 - a line that has no time gets it in the file
    """Commit lines to the journal; they stay there until they are in the history file."""
    db.executemany(
        "INSERT INTO history_journal (session, line) VALUES (?, ?)", [(session, line) for line in lines]
    )


@dataclass(frozen=True, slots=True)
class Database:
    """
    An open database, shared by all its stores.

    Args:
        secret: The database's identity.
        clock: Read on the event loop only.
        zone: The time zone of the days of usage; None: this machine's.
        journal: Stores the lines of histories.
        fencing: Refuses writes under a lost lease; None: one process.
        server_clock: Reads the clock that all processes share; None: ``clock``.
    """

    writer: WritePort
    reader: ReadPort
    secret: str
    clock: Clock
    zone: tzinfo | None = UTC
    journal: Journal = journal_lines
    server_clock: Callable[[ConnectionPort], float] | None = None
    fencing: Fencing | None = None

    def now(self) -> float:
        """Return the time as the tables store it."""
        return self.clock.now().timestamp()

    def lease_clock(self) -> Callable[[ConnectionPort], float]:
        """Return a function that reads the clock of the leases, inside a transaction."""
        now = self.now()
        return self.server_clock or (lambda _: now)

    def day(self, now: float) -> str:
        """Return the current day of usage."""
        return instant(now).astimezone(self.zone).strftime("%Y-%m-%d")


class Store:
    """The base of a store over some tables of a database."""

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
    """Return messages that have just become rows, as pending or held."""
    return [
        OutboxRow(
            row_id, inbox_id, message, OutboxState.HELD if hold else OutboxState.PENDING, 0, None, None, None
        )
        for row_id, (message, _), hold in zip(ids, messages, held, strict=True)
    ]
