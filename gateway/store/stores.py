"""
The stores of the durable queue: `Queue` combines them over one open database of either engine. No caller sees
SQL. Methods may raise `StoreUnavailable`, and then nothing has happened, except after a lost connection,
where keys and fences make repeating harmless; forbidden moves raise `IllegalMove`. A *turn* is one or more
inbox rows of a session answered together; the latest claim owns it, older ones get `LostTurn`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from agent_core.memory_ports import MemoryPort, SearchIndexPort
from gateway.store.model import (
    AcceptedBatch,
    Completion,
    InboxRow,
    JournalLine,
    Lease,
    Machine,
    NewOutbound,
    OutboxRow,
    Pending,
    Step,
    StoppedTurn,
    Suspect,
    Turn,
    UsageRow,
)
from gateway.store.sql.engine import Database
from gateway.store.sql.inbox_store import InboxStore
from gateway.store.sql.job_store import JobStore
from gateway.store.sql.maintenance_store import MaintenanceStore
from gateway.store.sql.outbox_store import OutboxStore
from gateway.store.sql.question_store import GrantStore, QuestionStore
from gateway.store.sql.receipt_store import ReceiptStore
from gateway.store.sql.state_store import HistoryJournal, StateStore
from gateway.store.sql.turn_store import TurnStore
from gateway.store.sql.usage_store import UsageStore
from gateway.store.states import StoreStats
from gateway.store.store_errors import LostTurn, StoreCorrupt, StoreTooNew, StoreUnavailable, StoreUnusable


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy's schema, highest ids, identity (a secret) and lengths of the histories in bytes."""

    schema: int
    inbox: int
    outbox: int
    secret: str = field(repr=False)
    lengths: dict[str, int]


class SnapshotStore(Protocol):
    """Copies the database while it is in use."""

    @property
    def file(self) -> str:
        """The place of the database."""

    async def snapshot(self, target: str, histories: str) -> Snapshot:
        """Copy the database durably to a new file and measure ``histories``. Raises StoreUnavailable."""


class Trouble(NamedTuple):
    """A problem with the stored data: the affected part, and what to do about it."""

    part: str
    text: str
    remedy: str
    serious: bool = True


@dataclass(frozen=True, slots=True)
class MemoryInDatabase:
    """
    Histories and memory in tables of the queue's database.

    A completed turn's answer is in the history at once, and the journal stays empty. Both parts raise
    `StorageUnavailable`.
    """

    memory: MemoryPort
    search: SearchIndexPort
    named_files: Callable[[], Awaitable[set[str]]]


__all__ = [
    "AcceptedBatch",
    "Completion",
    "GrantStore",
    "HistoryJournal",
    "InboxRow",
    "InboxStore",
    "JobStore",
    "JournalLine",
    "Lease",
    "LostTurn",
    "Machine",
    "MaintenanceStore",
    "MemoryInDatabase",
    "NewOutbound",
    "OutboxRow",
    "OutboxStore",
    "Pending",
    "QuestionStore",
    "Queue",
    "ReceiptStore",
    "StateStore",
    "Step",
    "StoppedTurn",
    "StoreCorrupt",
    "StoreStats",
    "StoreTooNew",
    "StoreUnavailable",
    "StoreUnusable",
    "Suspect",
    "Trouble",
    "Turn",
    "TurnStore",
    "UsageRow",
    "UsageStore",
]


class Queue:
    """
    The stores of one queue in one database; each call is one transaction.

    All calls come from the event loop on which it was opened.
    """

    def __init__(self, database: Database, snapshots: SnapshotStore) -> None:
        self.database = database
        self.inbox = InboxStore(database)
        self.turns = TurnStore(database)
        self.journal = HistoryJournal(database)
        self.outbox = OutboxStore(database)
        self.approvals = QuestionStore(database)
        self.jobs = JobStore(database)
        self.usage = UsageStore(database)
        self.receipts = ReceiptStore(database)
        self.grants = GrantStore(database)
        self.state = StateStore(database)
        self.maintenance = MaintenanceStore(database)
        self.snapshots = snapshots

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Finish the queued calls and close the database."""
        await self.database.reader.aclose()
        await self.database.writer.aclose()
