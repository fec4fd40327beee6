"""
The contract of the durable queue: `Queue` keeps the truth, `Dispatcher` only says that there is work.

Semantics, with the reasons and the measurements: the state machines are in ``states.py``; the stores are in
``queue/sql``, over ``queue/sqlite`` and ``queue/postgres``. No caller sees SQL or an engine, and
every delay goes in as seconds, so that the adapter's own clock decides when it is over. All methods may raise
`StoreUnavailable` (a full disk, a locked or broken database): then nothing of the call has happened. Only if
the connection to a database on another machine is lost in the commit nobody knows; keys and fences make it
harmless to call again. A call that is cancelled may or may not have happened, too. A move that the state
machines do not know (a send that a person has dropped meanwhile) raises `IllegalMove` and changes nothing.

A *turn* is one or more inbox rows of one session that are answered together. It is fenced: whoever claimed
it last owns it. `complete`, `retry`, `dead_letter` and the step methods of an older claim raise `LostTurn`.
"""

from __future__ import annotations

from typing import Protocol

from gateway.queue.errors import LostTurn, StoreCorrupt, StoreTooNew, StoreUnavailable, StoreUnusable
from gateway.queue.model import (
    Accepted,
    Cluster,
    Completion,
    InboxRow,
    JournalLine,
    Lease,
    NewOutbound,
    OutboxRow,
    Pending,
    Step,
    Stopped,
    Suspect,
    Turn,
    UsageRow,
)
from gateway.queue.ports.approvals import ApprovalStore
from gateway.queue.ports.dispatcher import Dispatcher, RunSession
from gateway.queue.ports.grants import GrantStore
from gateway.queue.ports.inbox import IGNORED_S, QUARANTINE_S, InboxStore
from gateway.queue.ports.jobs import JobStore
from gateway.queue.ports.journal import HistoryJournal
from gateway.queue.ports.maintenance import MaintenanceStore
from gateway.queue.ports.memory import MemoryBeside
from gateway.queue.ports.outbox import OutboxStore
from gateway.queue.ports.receipts import ReceiptStore
from gateway.queue.ports.snapshots import SnapshotStore
from gateway.queue.ports.state import StateStore
from gateway.queue.ports.turns import TurnStore
from gateway.queue.ports.usage import CallsInFlight, UsageStore
from gateway.queue.states import StoreStats

__all__ = [
    "IGNORED_S",
    "QUARANTINE_S",
    "Accepted",
    "ApprovalStore",
    "CallsInFlight",
    "Cluster",
    "Completion",
    "Dispatcher",
    "GrantStore",
    "HistoryJournal",
    "InboxRow",
    "InboxStore",
    "JobStore",
    "JournalLine",
    "Lease",
    "LostTurn",
    "MaintenanceStore",
    "MemoryBeside",
    "NewOutbound",
    "OutboxRow",
    "OutboxStore",
    "Pending",
    "Queue",
    "ReceiptStore",
    "RunSession",
    "SnapshotStore",
    "StateStore",
    "Step",
    "Stopped",
    "StoreCorrupt",
    "StoreStats",
    "StoreTooNew",
    "StoreUnavailable",
    "StoreUnusable",
    "Suspect",
    "Turn",
    "TurnStore",
    "UsageRow",
    "UsageStore",
]


class Queue(Protocol):
    """The stores of one queue: one database, and each call is one transaction over all of it."""

    inbox: InboxStore
    turns: TurnStore
    journal: HistoryJournal
    outbox: OutboxStore
    approvals: ApprovalStore
    jobs: JobStore
    usage: UsageStore
    receipts: ReceiptStore
    grants: GrantStore
    state: StateStore
    maintenance: MaintenanceStore
    snapshots: SnapshotStore

    async def aclose(self) -> None:
        """Finish what is queued and let go of the database."""
        ...
