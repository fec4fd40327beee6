"""The stores over one open database, whatever its engine: what `gateway.queue.ports.Queue` promises."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from gateway.queue.ports import (
    ApprovalStore,
    GrantStore,
    HistoryJournal,
    InboxStore,
    JobStore,
    MaintenanceStore,
    OutboxStore,
    ReceiptStore,
    SnapshotStore,
    StateStore,
    TurnStore,
    UsageStore,
)
from gateway.queue.sql.approvals import SqlApprovals
from gateway.queue.sql.base import Database
from gateway.queue.sql.grants import SqlGrants
from gateway.queue.sql.inbox import SqlInbox
from gateway.queue.sql.jobs import SqlJobs
from gateway.queue.sql.journal import SqlJournal
from gateway.queue.sql.maintenance import SqlMaintenance
from gateway.queue.sql.outbox import SqlOutbox
from gateway.queue.sql.receipts import SqlReceipts
from gateway.queue.sql.state import SqlState
from gateway.queue.sql.turns import SqlTurns
from gateway.queue.sql.usage import SqlUsage


class SqlQueue:
    """
    Implements `gateway.queue.ports.Queue`; ended by `aclose` or ``async with``.

    Each engine opens its own. All calls come from the event loop on which it was opened.
    """

    def __init__(self, database: Database, snapshots: SnapshotStore) -> None:
        self.database = database
        self.inbox: InboxStore = SqlInbox(database)
        self.turns: TurnStore = SqlTurns(database)
        self.journal: HistoryJournal = SqlJournal(database)
        self.outbox: OutboxStore = SqlOutbox(database)
        self.approvals: ApprovalStore = SqlApprovals(database)
        self.jobs: JobStore = SqlJobs(database)
        self.usage: UsageStore = SqlUsage(database)
        self.receipts: ReceiptStore = SqlReceipts(database)
        self.grants: GrantStore = SqlGrants(database)
        self.state: StateStore = SqlState(database)
        self.maintenance: MaintenanceStore = SqlMaintenance(database)
        self.snapshots: SnapshotStore = snapshots

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Finish what is queued and let go of the database."""
        await self.database.reader.aclose()
        await self.database.writer.aclose()
